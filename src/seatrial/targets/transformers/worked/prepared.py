"""What each class of a model makes of the arguments of a step of `generate`, against what a release on record makes.

`python -m seatrial.targets.transformers.worked.prepared` prints what the installed release makes, as JSON.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.worked_rows import Row

RECORD = Path(__file__).with_name("recorded_steps.json")
B, T = 2, 5
"""Rows, and ids of a prompt."""
LARGEST = 100
"""Numbers of a tensor that is kept whole; of a larger one the shape is kept."""
MASK = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]])
STANDARD = (
    "self", "input_ids", "decoder_input_ids", "attention_mask", "inputs_embeds", "past_key_values", "cache",
    "cache_position", "next_sequence_length", "is_first_iteration", "use_cache", "position_ids", "kwargs",
    "model_kwargs", "past", "encoder_outputs", "generation_config",
)  # fmt: skip
FIRST: Mapping[str, Any] = {"number": T, "read": 0}
"""A step: how many ids there are, how many of them a cache holds, and which other arguments are given."""
STEPS: Mapping[str, Mapping[str, Any]] = {
    "first": FIRST,
    "first, places": {**FIRST, "places": True},
    "first, embeddings": {**FIRST, "embeds": True},
    "next": {"number": T + 1, "read": T},
    "next, places": {"number": T + 1, "read": T, "places": True},
    "next after embeddings": {"number": 1, "read": T, "embeds": True},
    "next without a cache": {"number": T + 1, "read": 0, "cached": False},
    "first ids after a cache": {"number": T + 2, "read": T, "first": True},
    "pictures": {**FIRST, "pictures": True},
}


class _Outputs(dict[str, Any]):
    """Outputs of a model, whose entries are attributes too."""

    __getattr__ = dict.__getitem__


def _given(name: str, place: int, number: int) -> Any:
    """Return the value of an argument that is not one of every model's, by its name."""
    if name.startswith(("return_", "output_", "use_", "is_")):
        return True
    if name in ("logits_to_keep", "num_logits_to_keep"):
        return 1
    if "token_type" in name or name.endswith("position_ids"):
        return torch.arange(B * number).reshape(B, number) + 100 * (place + 1)
    if "attention_mask" in name:
        return torch.ones(B, number, dtype=torch.long)
    if "grid_thw" in name:
        return torch.tensor([[1, 4, 4], [1, 4, 2]])
    return torch.arange(B * 2).reshape(B, 2).float() + 10 * (place + 1)


def _shown(value: Any) -> Any:
    """Return a value as JSON keeps it."""
    if isinstance(value, Tensor):
        if value.numel() > LARGEST:
            return {"shape": list(value.shape)}
        return value.to(torch.int64).tolist() if value.dtype != torch.bool else value.int().tolist()
    if isinstance(value, Mapping):
        return {str(name): _shown(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_shown, value)]
    return value if value is None or isinstance(value, bool | int | str) else type(value).__name__


def _cache(model: Any, read: int) -> Any:
    """Return a cache of one layer with as many ids."""
    dynamic = find_name("transformers", ["transformers:DynamicCache"])
    found = [dynamic(), dynamic()]
    for one in found[:1] if read == 0 else found:
        if read:
            one.update(torch.zeros(B, 1, read, 1), torch.zeros(B, 1, read, 1), 0)
    if not getattr(model.config, "is_encoder_decoder", False):
        return found[0]
    return find_name("transformers", ["transformers:EncoderDecoderCache"])(*found)


def _stand_in(made: Any, read: int = 0) -> Any:
    """Return a model of a class, without weights, of the configuration that its class makes by itself."""
    model = made.__new__(made)
    nn.Module.__init__(model)
    model.config = made.config_class()
    model.generation_config = find_name("transformers", ["transformers:GenerationConfig"])()
    kind = type(made.__name__, (made,), {"device": torch.device("cpu"), "dtype": torch.float32})
    model.__class__ = kind
    inner = _inner(made)
    if inner is not None:
        inside = inner.__new__(inner)
        nn.Module.__init__(inside)
        inside.config, inside.rope_deltas = model.config, torch.tensor([[2], [-1]]) if read else None
        setattr(model, made.base_model_prefix or "model", inside)
    return model


def _inner(made: Any) -> Any:
    """Return the class of the model without a head, or None."""
    module = importlib.import_module(made.__module__)
    stem = made.__name__.removesuffix("ForConditionalGeneration").removesuffix("ForCausalLM")
    return getattr(module, f"{stem}Model", None)


def _takes(made: Any, name: str) -> set[str]:
    """Return the arguments that a method of a class, or of those that it is of, names."""
    found: set[str] = set()
    for one in made.__mro__:
        if name in vars(one):
            found |= set(inspect.signature(getattr(one, name)).parameters)
    return found


def _step(made: Any, number: int, read: int, *, places: bool = False, embeds: bool = False, cached: bool = True,
          first: bool | None = None, pictures: bool = False) -> Any:  # fmt: skip
    """Return the inputs of a model at a step."""
    model, name = _stand_in(made, read), "prepare_inputs_for_generation"
    takes = _takes(made, name)
    whole = read + number if embeds and read else number
    mask = torch.cat([MASK, torch.ones(B, whole - T, dtype=torch.long)], dim=1)
    ids = torch.arange(number * B).reshape(B, number) + 3
    given: dict[str, Any] = {"attention_mask": mask, "use_cache": cached}
    encodes = getattr(model.config, "is_encoder_decoder", False)
    if cached:
        given["cache" if "cache" in takes else "past_key_values"] = _cache(model, read)
    if "cache_position" in takes:
        given["cache_position"] = torch.arange(read, whole)
    if "is_first_iteration" in takes:
        given["is_first_iteration"] = read == 0 if first is None else first
    if "next_sequence_length" in takes:
        given["next_sequence_length"] = whole - read if cached and read else None
    if embeds:
        given["inputs_embeds"] = torch.arange(B * T).reshape(B, T, 1).float() + 1000
        ids = ids if read else ids[:, :0]
    if places:
        given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    if encodes or "encoder_outputs" in takes:
        given["encoder_outputs"] = SimpleNamespace()
    own = sorted(takes & set(inspect.signature(getattr(made, name)).parameters) - {*STANDARD})
    given |= {one: _given(one, place, whole) for place, one in enumerate(own)}
    given["another"] = torch.tensor([[7], [8]])
    if pictures:
        ids, more = _pictured(model.config)
        given |= {**more, "cache_position": torch.arange(ids.shape[1])} if "cache_position" in takes else more
    return {
        key: value for key, value in getattr(model, name)(ids, **given).items() if key != "encoder_outputs"
    }


def _updated(made: Any, number: int) -> Any:
    """Return the arguments of the step after one that gave so many ids."""
    model = _stand_in(made)
    outputs = _Outputs(logits=torch.zeros(B, 1, 3), past_key_values=_cache(model, 2), cache=_cache(model, 2))
    for place, name in enumerate(("image_hidden_states", "rope_deltas", "encoder_last_hidden_state")):
        outputs[name] = torch.full((B, 1), float(place))
    given = {
        "attention_mask": MASK, "decoder_attention_mask": MASK[:, :2], "position_ids": MASK.cumsum(-1) - 1,
        "token_type_ids": torch.arange(B * T).reshape(B, T), "cache_position": torch.arange(T), "use_cache": True,
        "pixel_values": torch.ones(B, 1), "pixel_values_videos": torch.ones(B, 1), "input_values": torch.ones(B, 1),
        "cross_attention_mask": torch.ones(B, T, 1, 1), "mm_token_type_ids": torch.arange(B * T).reshape(B, T),
        "image_attention_mask": torch.ones(B, T, 1), "perceiver_embeddings": None, "another": 3,
    }  # fmt: skip
    more = {"num_new_tokens": number} if number > 1 else {}
    encodes = bool(getattr(model.config, "is_encoder_decoder", False))
    return model._update_model_kwargs_for_generation(outputs, given, is_encoder_decoder=encodes, **more)


def _pictured(config: Any) -> tuple[Tensor, dict[str, Any]]:
    """Return ids of two prompts with pictures, of two and of one, and their arguments."""
    text = getattr(config, "text_config", config)

    def token(*names: str) -> int:
        found = [getattr(one, name, None) for name in names for one in (config, text)]
        return next((one for one in found if isinstance(one, int)), 5)

    start, image = token("vision_start_token_id"), token("image_token_id")
    rows = [[start, *[image] * 4, 8, start, *[image] * 2, 9], [7, 7, 7, 7, start, *[image] * 4, 9]]
    ids = torch.tensor(rows)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    return ids, {
        "attention_mask": mask, "mm_token_type_ids": (ids == image).long(), "pixel_values": torch.arange(40.0)[:, None],
        "image_grid_thw": torch.tensor([[1, 4, 4], [1, 2, 4], [1, 4, 4]]),
    }  # fmt: skip


def _places(made: Any) -> Any:
    model = _stand_in(made)
    ids, given = _pictured(model.config)
    given["input_ids"] = ids
    return [model._prepare_position_ids_for_generation(ids, given), given]


def _expanded(made: Any) -> Any:
    model = _stand_in(made)
    ids, given = _pictured(model.config)
    given["another"] = torch.tensor([1, 2])
    return model._expand_inputs_for_generation(
        expand_size=2, is_encoder_decoder=False, input_ids=ids, **given
    )


def _reordered(made: Any) -> Any:
    past = tuple(
        tuple(torch.arange(3.0).reshape(3, 1, 1, 1) + 10 * one for one in range(4 * layer, 4 * layer + 4))
        for layer in range(2)
    )
    return made._reorder_cache(past, torch.tensor([2, 0, 1]))


CALLS: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    "prepare_inputs_for_generation": {name: partial(_step, **given) for name, given in STEPS.items()},
    "_update_model_kwargs_for_generation": {
        "one id": partial(_updated, number=1), "two ids": partial(_updated, number=2),
    },
    "_prepare_position_ids_for_generation": {"pictures": _places},
    "_expand_inputs_for_generation": {"pictures": _expanded},
    "_reorder_cache": {"rows": _reordered},
}  # fmt: skip
"""Methods that classes have of their own, and calls of them."""


def made_of(made: Any, method: str) -> dict[str, Any]:
    """Return what each call of a method gives, or the type of its error, as JSON keeps it."""
    found = {}
    for name, call in CALLS[method].items():
        with torch.no_grad():
            try:
                found[name] = json.loads(json.dumps(_shown(call(made))))
            except Exception as error:  # noqa: BLE001  a stand-in is not whole
                found[name] = f"raises {type(error).__name__}"
    return found


INHERITING = ("llama.modeling_llama:LlamaForCausalLM", "bart.modeling_bart:BartForConditionalGeneration")
"""Classes that have the methods of all."""


def _own_methods() -> Iterator[tuple[str, str]]:
    """Yield the places of classes of the installed release with methods of their own, and each method."""
    yield from ((place, name) for place in INHERITING for name in [*CALLS][:-1])
    models = Path(inspect.getfile(importlib.import_module("transformers.models"))).parent
    for path in sorted([*models.glob("*/modeling_*.py"), *models.glob("*/generation_*.py")]):
        if path.stem.startswith(("modeling_tf_", "modeling_flax_")):
            continue
        for part in ast.parse(path.read_text(encoding="utf-8")).body:
            methods = {one.name for one in getattr(part, "body", ()) if isinstance(one, ast.FunctionDef)}
            if isinstance(part, ast.ClassDef):
                yield from (
                    (f"{path.parent.name}.{path.stem}:{part.name}", name) for name in CALLS if name in methods
                )


@cache
def record() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return by release what the methods of each class make of each call, as `class, method`."""
    found: Mapping[str, Mapping[str, Mapping[str, Any]]] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def _unlike(method: str, known: str, right: Mapping[str, Any], made: Any) -> list[str]:
    """Return which calls of a method give something else than on record."""
    if release("transformers") != known:
        raise NotServed(f"what is on record is of Transformers {known}")
    found = made_of(made, method)
    wrong = []
    for name, due in right.items():
        got = found[name]
        if got == due:
            continue
        if isinstance(due, dict) and isinstance(got, dict):
            wrong += [
                f"{name}, {key}: {got.get(key, 'none')}, {due.get(key, 'none')} is due"
                for key in sorted({*got, *due})
                if got.get(key, "none") != due.get(key, "none")
            ]
        else:
            wrong.append(f"{name}: {got}, {due} is due")
    return wrong


def _rows() -> Iterator[Row]:
    for known, classes in record().items():
        for what, right in classes.items():
            place, method = what.split(", ")
            name = f"{method.strip('_').replace('_', ' ')}, {place.partition('.')[0]}"
            call = partial(_unlike, method, known, right)
            yield Row("inputs", f"transformers.models.{place}", name, call, [], since=known)


# Source: what these releases give, compared with their code.
PREPARED_ROWS: Sequence[Row] = tuple(_rows())


def main() -> None:
    """Print what the methods of all classes of the installed release give."""
    lines = []
    for place, method in _own_methods():
        try:
            made = find_name("transformers", [f"transformers.models.{place}"])
            found = made_of(made, method)
        except Exception as error:  # noqa: BLE001  not on record then
            print(place, method, repr(error)[:200], file=sys.stderr, flush=True)
            continue
        kept = {name: one for name, one in found.items() if not str(one).startswith("raises")}
        for name in sorted({*found} - {*kept}):
            print(place, method, name, found[name], file=sys.stderr, flush=True)
        if kept:
            lines.append(f"{json.dumps(f'{place}, {method}')}: {json.dumps(kept, separators=(',', ':'))}")
    print("{" + json.dumps(release("transformers")) + ": {\n" + ",\n".join(lines) + "\n}}")


if __name__ == "__main__":
    main()
