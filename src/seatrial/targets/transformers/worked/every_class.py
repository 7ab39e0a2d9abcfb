"""Every small class of every kind of model on record: starts of its weights, its files, what is read, its attributes.

The record says by release, kind and class what the release gives; `record_of` makes an entry. Numbers are spreads
over seeds, and checksums of names, sizes and tensors that are drawn by their names: no stream of torch is on record.
"""

from __future__ import annotations

import copy
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.target import release
from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.family_options import draw_by_names
from seatrial.targets.transformers.small_models import OF_PARTS, fresh_model, model_class, small_config
from seatrial.targets.transformers.worked.family_files import _drawn
from seatrial.targets.transformers.worked.weights import rewrite, saved, tensors

RECORD = Path(__file__).with_name("recorded_classes.json")
LARGEST = 6_000_000
"""Parameters of a model that is judged."""
SEEDS = (0,)
NOISE, ROUNDED = 7.0, 2e-3
"""Allowed distance in standard errors, and of a recorded number relative to its size."""
FEWEST = 64
"""Values of a parameter that are not constant, whose mean and spread are judged."""
STARTS = (
    "initializer_range",
    "init_std",
    "initializer_factor",
    "_init_range",
    "init_range",
    "initializer_std",
)
"""Ends of names of options that say how weights begin."""
FACTOR = 2.5
"""Of these options, in the second of two records."""
ATTRIBUTES = (
    "base_model_prefix", "main_input_name", "_no_split_modules", "_keep_in_fp32_modules",
    "_keep_in_fp32_modules_strict", "_tied_weights_keys", "_supports_sdpa", "_supports_flash_attn",
    "_supports_flex_attn", "_supports_attention_backend", "_can_compile_fullgraph", "supports_gradient_checkpointing",
    "_skip_keys_device_placement", "_keys_to_ignore_on_load_missing", "_keys_to_ignore_on_load_unexpected",
    "_keys_to_ignore_on_save", "_checkpoint_conversion_mapping", "_is_stateful", "_no_placeholder_mask",
    "_can_record_outputs", "input_modalities", "accepts_loss_kwargs", "_pp_plan", "_tp_plan", "_ep_plan",
)  # fmt: skip
"""Of a class: how it is read, placed, saved and computed."""


def crc(value: Any) -> int:
    """Return a checksum of a value."""
    return zlib.crc32(json.dumps(value, sort_keys=True, default=str).encode())


def classes() -> dict[str, list[str]]:
    """Return names of classes by kind, of all tasks that the installed release maps."""
    import transformers.models.auto.modeling_auto as auto

    found: dict[str, list[str]] = {}
    names = [name for name in dir(auto) if name.startswith("MODEL_") and name.endswith("MAPPING_NAMES")]
    for name in sorted(names, key=lambda name: (name != "MODEL_MAPPING_NAMES", name)):
        for kind, given in dict(getattr(auto, name)).items():
            for one in [given] if isinstance(given, str) else given:
                if one not in found.setdefault(kind, []):
                    found[kind].append(one)
    return found


def _shrink(config: Any) -> Any:
    """Give a configuration and its parts the sizes of a small one, and return it."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            _shrink(value)
        elif name in OF_PARTS and isinstance(value, type(OF_PARTS[name])):
            setattr(config, name, OF_PARTS[name])
    return config


def configuration(kind: str) -> Any:
    """Return a small configuration of a kind.

    Raises:
        NotServed: it refuses small sizes.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if kind not in CONFIG_MAPPING:
        raise NotServed(f"no kind {kind}")
    config_class = CONFIG_MAPPING[kind]
    try:
        plain = config_class()
    except Exception as error:
        raise NotServed(str(error)) from error
    try:
        config = small_config(config_class)
    except Exception:  # noqa: BLE001  it takes parts in another form
        config = _shrink(plain)
    config.tie_word_embeddings = getattr(config_class(), "tie_word_embeddings", True)
    return config


def drawn_model(make: Callable[[], Any]) -> Any:
    """Return the model that a call makes, with drawn weights and in evaluation mode.

    Raises:
        NotServed: it is refused, before anything is computed.
    """
    try:
        model = make()
    except NotServed:
        raise
    except Exception as error:
        raise NotServed(error_line(error)) from error
    draw_by_names(model)
    return model.eval()


def enlarged(config: Any) -> bool:
    """Enlarge options of starts of a configuration and its parts, and return whether there are any."""
    found = False
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            found |= enlarged(value)
        elif isinstance(value, float) and name.endswith(STARTS):
            setattr(config, name, value * FACTOR)
            found = True
    return found


Start = tuple[int, float, float]
"""Number of values, mean, spread."""


def starts_of(model_type: Any, config: Any) -> dict[str, Start]:
    """Return the start of each parameter; those of all layers are one."""
    values: dict[str, list[Tensor]] = {}
    for seed in SEEDS:
        model = fresh_model(model_type, copy.deepcopy(config), LARGEST, seed=seed)
        for name, value in model.named_parameters():
            values.setdefault(re.sub(r"\.\d+(?=\.|$)", ".*", name), []).append(
                value.detach().double().flatten()
            )
    found = {name: torch.cat(drawn) for name, drawn in sorted(values.items())}
    return {
        name: (one.numel(), float(one.mean()), float(one.std(correction=0))) for name, one in found.items()
    }


def _error(count: int, mean: float, spread: float) -> float:
    return NOISE * spread / math.sqrt(max(count, 1)) + ROUNDED * max(abs(mean), spread)


def coded(starts: Mapping[str, Start]) -> list[Any]:
    """Return a checksum of names, pairs of means and spreads, and the number of the pair of each name."""
    pairs: list[list[float]] = []
    numbers = []
    sizes = sorted(starts, key=lambda name: -starts[name][0])
    for name in sizes:
        count, mean, spread = starts[name]
        if count < FEWEST and spread:
            continue
        mean = 0.0 if abs(mean) <= _error(count, 0.0, spread) and spread else mean
        error = _error(count, mean, spread) / 2
        near = [
            abs(mean - one) <= error and abs(spread - two) <= error and (two == 0) == (spread == 0)
            for one, two in pairs
        ]
        if not any(near):
            pairs.append([float(f"{mean:.4g}"), float(f"{spread:.4g}")])
    for name in starts:
        count, mean, spread = starts[name]
        far = [abs(mean - one) + abs(spread - two) + ((two == 0) != (spread == 0)) for one, two in pairs]
        numbers.append(far.index(min(far)))
    return [crc(list(starts)), pairs, "".join(chr(48 + one) for one in numbers)]


def wrong_starts(starts: Mapping[str, Start], due: Sequence[Any]) -> Iterator[str]:
    """Yield the parameters that start elsewhere than on record."""
    names, pairs, codes = due
    if crc(list(starts)) != names:
        yield "other names of parameters"
        return
    for (name, (count, mean, spread)), code in zip(starts.items(), codes, strict=True):
        right, wide = pairs[ord(code) - 48]
        if count < FEWEST and (spread or wide):
            continue
        error = _error(count, right, wide)
        if not abs(mean - right) <= error or not abs(spread - wide) <= error:
            yield f"{name}: {mean:.4g} +- {spread:.4g}, right is {right:.4g} +- {wide:.4g}"


def _bytes(value: Tensor) -> int:
    return zlib.crc32(value.detach().float().mul(1e4).round().to(torch.int64).contiguous().numpy().tobytes())


def files_of(model_type: Any, config: Any) -> list[int]:
    """Return checksums of names and sizes in files, of what is read, of what is written again, and of names missed."""
    model = fresh_model(model_type, copy.deepcopy(config), LARGEST)
    path = saved(model)
    written = tensors(path)
    drawn = {
        name: _drawn(name, value) if value.is_floating_point() else value for name, value in written.items()
    }
    read, said = model_type.from_pretrained(
        rewrite(path, drawn), attn_implementation="eager", output_loading_info=True
    )
    values = read.state_dict()
    again = tensors(saved(read))
    return [
        crc(sorted((name, list(value.shape)) for name, value in written.items())),
        crc(sorted((name, _bytes(value)) for name, value in values.items() if value.is_floating_point())),
        crc(sorted((name, _bytes(value)) for name, value in again.items() if value.is_floating_point())),
        crc([sorted(map(str, said["missing_keys"])), sorted(map(str, said["unexpected_keys"]))]),
        len({value.data_ptr() for value in read.parameters()}),
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return re.sub(r" at 0x[0-9a-f]+|<function |<class ", "", str(value))[:80]


def attributes_of(model_type: Any) -> dict[str, Any]:
    """Return the attributes of a class that say how it is read, placed, saved and computed."""
    return {name: _plain(getattr(model_type, name)) for name in ATTRIBUTES if hasattr(model_type, name)}


def record_of(kind: str, name: str) -> list[Any]:
    """Return what is on record of a class: its starts, those of enlarged options, its files, its attributes.

    Raises:
        NotServed: no small model of it is made.
    """
    model_type, config = model_class(name), configuration(kind)
    found: list[Any] = [coded(starts_of(model_type, config))]
    other = copy.deepcopy(config)
    found.append(coded(starts_of(model_type, other)) if enlarged(other) else None)
    return [*found, files_of(model_type, config), crc(attributes_of(model_type))]


@cache
def record() -> Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]]:
    """Return entries by release, kind and class."""
    found: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]] = json.loads(RECORD.read_text("utf-8"))
    return found


def release_on_record() -> str:
    """Return the release whose record the installed one is checked against.

    Raises:
        NotServed: it is between those on record.
    """
    installed = Version(release("transformers"))
    if installed >= Version("5.24"):
        return "5.24"
    if Version("4.57.2") <= installed < Version("4.58"):
        return "4.57"
    raise NotServed(f"transformers {installed} is not on record")


def of_kind(kind: str) -> Mapping[str, Sequence[Any]]:
    """Return the entries of a kind by class.

    Raises:
        NotServed: the record of the release has no such kind.
    """
    found = record()[release_on_record()].get(kind)
    if not found:
        raise NotServed(f"{kind} is not on record")
    return found


def _starts(kind: str, function: Any) -> list[str]:
    """Return the parameters of classes of a kind that start elsewhere, by two values of the options of starts."""
    wrong = []
    for name, (plain, other, _, _) in of_kind(kind).items():
        for due, large in ((plain, False), (other, True)):
            config = configuration(kind)
            if due is None or (large and not enlarged(config)):
                continue
            found = wrong_starts(starts_of(model_class(name), config), due)
            wrong += [f"{name}{', enlarged' if large else ''}: {one}" for one in found]
    return wrong[:5]


def _files(kind: str, function: Any) -> list[str]:
    """Return which files and attributes of classes of a kind are not those on record."""
    wrong = []
    words = ("names or sizes in files", "weights that are read", "files that are written again",
             "names that are missing or unexpected", "weights that are shared")  # fmt: skip
    for name, (_, _, files, attributes) in of_kind(kind).items():
        model_type = model_class(name)
        if crc(attributes_of(model_type)) != attributes:
            wrong.append(f"{name}: other attributes of the class")
        found = files_of(model_type, configuration(kind))
        wrong += [
            f"{name}: other {word}" for word, one, due in zip(words, found, files, strict=True) if one != due
        ]
    return wrong[:5]


PLACE = "transformers:PreTrainedModel"
# Source: what releases 4.57.6 and 5.24 give; `record_of` makes an entry.
CLASS_ROWS: Sequence[Row] = tuple(
    Row("models", PLACE, f"{what} of classes of {kind}", partial(call, kind), [])
    for kind in sorted({kind for one in record().values() for kind in one})
    for what, call in (("starts", _starts), ("files", _files))
)


class OfClasses(Worked):
    """Every class of a kind; see `contracts.worked`."""

    package = "transformers"
    worked_rows = CLASS_ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-classes": OfClasses}
