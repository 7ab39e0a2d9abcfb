"""Patterns of ranks, scales and the like: each layer is that of a model whose option has the layer's value everywhere.

By the documentation, a key is a name or an expression that the layer's name ends with; each pattern is looked up apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.adapter_parts import Use
from seatrial.relations.not_served import NotServed
from seatrial.targets.peft.bases import base
from seatrial.targets.peft.parts.shared import drawn

LAYERS = ["q_proj", "o_proj", "up_proj", "down_proj"]
OPTIONS: Mapping[str, str] = {
    "rank_pattern": "r",
    "alpha_pattern": "alpha",
    "lambda_pattern": "delora_lambda",
    "n_frequency_pattern": "n_frequency",
    "block_size_pattern": "block_size",
}
"""The option that a pattern is of; a type may name it another way."""
UNLIKE = (
    ("the ends of names", "longer ends"),
    ("expressions", "the ends of names"),
    ("full names", "expressions"),
    ("longer ends", "expressions"),
)
"""Keys of the first pattern, and of others."""
LEFT_OUT = ("AdaLoraConfig", "HiraConfig")
"""AdaLoRA's are of ranks that it left in each layer; HiRA's are ignored, which `hira-rank-pattern` is about."""
VALUES: Mapping[str, Sequence[int]] = {"block_size": (8, 16, 32), "n_frequency": (20, 9, 13)}
"""The default, and two other values; else as in `_values`."""
FIRST, ONE, TWO = "default", "one", "two"
WHOLE = "an expression of a whole name"
KEYS: Mapping[str, Mapping[str, str]] = {
    "the ends of names": {"q_proj": ONE, "up_proj": TWO},
    "longer ends": {"layers.0.self_attn.q_proj": ONE, "mlp.up_proj": TWO},
    "full names": {"model.layers.1.mlp.down_proj": ONE, "model.layers.0.self_attn.o_proj": TWO},
    "expressions": {r"layers\.1\..*_proj": ONE},
    WHOLE: {r"model\.layers\.0\.(self_attn|mlp)\.(q|up)_proj": TWO},
    "the end of a part": {"proj": ONE, "n.q_proj": TWO},
}
"""Values by key, in the order in which they are looked up; the last ones fit no layer."""
FITS: Mapping[str, Mapping[str, str]] = {
    "the ends of names": {"q_proj": ONE, "up_proj": TWO},
    "longer ends": {"0.self_attn.q_proj": ONE, "up_proj": TWO},
    "full names": {"1.mlp.down_proj": ONE, "0.self_attn.o_proj": TWO},
    "expressions": {
        f"1.{part}": ONE for part in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
    },
    WHOLE: {"0.self_attn.q_proj": TWO, "0.mlp.up_proj": TWO},
    "the end of a part": {},
}
"""Which value layers have, by the end of their name."""


def _types() -> Iterator[tuple[str, Any, dict[str, str]]]:
    """Yield the types of the release that have a pattern: name, configuration, and option by pattern."""
    import peft

    seen: set[str] = set()
    for config in peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING.values():
        fields = {item.name for item in dataclasses.fields(config)}
        patterns = {}
        for pattern, option in OPTIONS.items():
            if pattern not in fields:
                continue
            options = [
                one
                for one in (option, f"lora_{option}", f"{config.__name__[:-6].lower()}_{option}")
                if one in fields
            ]
            if options:
                patterns[pattern] = options[0]
        if patterns and config.__name__ not in (*seen, *LEFT_OUT):
            seen.add(str(config.__name__))
            yield config.__name__, config, patterns


def _values(option: str) -> tuple[Any, ...]:
    return tuple(VALUES.get(option, (4, 2, 8) if option == "r" else (6, 10, 3)))


def _value(option: str, which: str) -> Any:
    return _values(option)[(FIRST, ONE, TWO).index(which)]


def _model(config: Any, options: Mapping[str, Any]) -> Any:
    import peft

    fields = {item.name for item in dataclasses.fields(config)}
    more = {"init_weights": False} if "init_weights" in fields and "Vera" not in config.__name__ else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return peft.get_peft_model(
            base("linear", torch.float32), config(target_modules=LAYERS, **more, **options)
        ).eval()


def _layers(model: Any) -> dict[str, Any]:
    return {
        name: layer
        for name, layer in model.base_model.model.named_modules()
        if hasattr(layer, "base_layer") and any(name.endswith(end) for end in LAYERS)
    }


def _fitting(name: str, keys: str) -> str:
    return next((which for end, which in FITS[keys].items() if name.endswith(f".{end}")), FIRST)


def _tensors(layer: Any) -> dict[str, Tensor]:
    return {
        name: value
        for name, value in (*layer.named_parameters(), *layer.named_buffers())
        if "base_layer" not in name
    }


def _use(config: Any, patterns: Mapping[str, str], keys: Mapping[str, str], seed: int) -> tuple[Any, Any]:
    """Return the outputs of each layer of a model with patterns, and of the model with a layer's values everywhere."""
    plain = {option: _value(option, FIRST) for option in patterns.values()}
    given = {
        pattern: {key: _value(patterns[pattern], which) for key, which in KEYS[name].items()}
        for pattern, name in keys.items()
    }
    with torch.no_grad():
        found_model, right_models, found, right = _model(config, {**plain, **given}), {}, {}, {}
        for name, layer in _layers(found_model).items():
            values = {
                option: _value(option, _fitting(name, keys[pattern]) if pattern in keys else FIRST)
                for pattern, option in patterns.items()
            }
            key = tuple(values.items())
            if key not in right_models:
                right_models[key] = _layers(_model(config, values))
            other = right_models[key][name]
            own, due = _tensors(layer), _tensors(other)
            if {one: tuple(value.shape) for one, value in own.items()} != {
                one: tuple(value.shape) for one, value in due.items()
            }:
                found[name], right[name] = (
                    {one: tuple(value.shape) for one, value in own.items()},
                    {one: tuple(value.shape) for one, value in due.items()},
                )
                continue
            for one, value in due.items():
                value.copy_(own[one])
            x_SD = drawn(seed, 5, layer.base_layer.in_features)
            found[name], right[name] = layer(x_SD), other(x_SD)
    return found, right


def patterns(seed: int) -> Sequence[Use]:
    """Return each type with each of its patterns alone."""
    return _uses(seed, whole=False)


def unlike_patterns(seed: int) -> Sequence[Use]:
    """Return each type that has several patterns, with other keys for each."""
    uses: list[Use] = []
    for name, config, options in _types():
        first, *others = options
        cases = [{first: one, **dict.fromkeys(others, other)} for one, other in UNLIKE if others]
        uses += [(f"{name}, {_said(case)}", _call(config, options, case, seed)) for case in cases]
    if not uses:
        raise NotServed("no type has several patterns")
    return uses


def _said(case: Mapping[str, str]) -> str:
    return ", ".join(f"{pattern} by {keys}" for pattern, keys in case.items())


def _call(
    config: Any, options: Mapping[str, str], case: Mapping[str, str], seed: int
) -> Callable[[], tuple[Any, Any]]:
    return lambda: _use(config, options, case, seed)


def whole_names(seed: int) -> Sequence[Use]:
    """Return each type with each of its patterns by an expression of a whole name."""
    return _uses(seed, whole=True)


def _uses(seed: int, *, whole: bool) -> Sequence[Use]:
    uses: list[Use] = []
    for name, config, options in _types():
        cases = [{pattern: keys} for pattern in options for keys in KEYS if (keys == WHOLE) == whole]
        uses += [(f"{name}, {_said(case)}", _call(config, options, case, seed)) for case in cases]
    if not uses:
        raise NotServed("no type has patterns")
    return uses
