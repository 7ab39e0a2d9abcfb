"""Worked examples of models of every kind in half precision: what is computed from sizes alone, and in which types."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.target import Gone
from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers import class_records
from seatrial.targets.transformers.any_models import LARGEST
from seatrial.targets.transformers.any_pictures import media_of, rows_with
from seatrial.targets.transformers.class_configs import parts_of
from seatrial.targets.transformers.class_inputs import (
    LABELS_OF,
    Inputs,
    inputs_of,
    labels_of,
    takes,
    whole_numbers,
)
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.family_records import line_of
from seatrial.targets.transformers.half_traces import Traced, misplaced, traced, unlike_record, wide_steps
from seatrial.targets.transformers.small_models import fresh_model, is_small

RECORD = Path(__file__).parent.with_name("recorded_halves.json")
"""By steps of modules and line of releases, the names of the classes; an empty line: both."""
HALF = torch.bfloat16
NUM_PATCHES = 12
"""Of a side of a picture: no power of two."""
GRIDS = ((1, 12, 10), (1, 6, 10))
"""Patches of pictures."""
LONG = 280
"""Ids of a row: bfloat16 has no number for some of their places."""
PLACES = ("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions")
"""Options that bound the places of ids."""
PATCHES = KnownFailure(
    "places of patches are rounded",
    finding="Transformers: places of patches in half precision",
    releases=before("transformers", "5.21"),
)
KNOWN: Mapping[str, KnownFailure] = {
    "funnel": KnownFailure("places are rounded", finding="Transformers: places of Funnel in half precision"),
    "pegasus_x": KnownFailure("angles are rounded", finding="Transformers: places of PEGASUS-X in half precision"),
    **dict.fromkeys(("idefics2", "idefics3", "smolvlm"), PATCHES),
}  # fmt: skip
"""By kind, what is known to be rounded."""


def _wide(config: Any, *, long: bool) -> Any:
    """Return a configuration for pictures whose number of patches is no power of two, and for long rows."""
    found = copy.deepcopy(config)
    for part in parts_of(found).values():
        known = vars(part)
        patch = known.get("patch_size")
        if isinstance(patch, int) and isinstance(known.get("image_size"), int):
            part.image_size = NUM_PATCHES * patch
        for name in PLACES:
            if long and isinstance(known.get(name), int) and known[name] < 2 * LONG:
                setattr(part, name, 2 * LONG)
    return found


def _candidates(model: Any) -> Iterator[Inputs]:
    try:
        for media in media_of(model, GRIDS):
            given = rows_with(model, media)
            yield {name: value for name, value in given.items() if name not in LABELS_OF}
    except Exception:  # noqa: BLE001  no pictures in rows of ids
        pass
    for inputs in inputs_of(model):
        if {*inputs} <= {"input_ids", "attention_mask", "decoder_input_ids"} and inputs[
            "input_ids"
        ].dim() == 2:
            yield {name: whole_numbers(5, 45, 1, LONG) + 3 for name in inputs if name.endswith("ids")}
        pictures = inputs.get("pixel_values")
        if (
            "interpolate_pos_encoding" in takes(model.forward)
            and pictures is not None
            and pictures.dim() == 4
        ):
            wider = torch.cat([pictures, pictures.flip(-1)], -1)
            yield {**inputs, "pixel_values": wider, "interpolate_pos_encoding": True}
        yield inputs


def _is_taken(model: Any, inputs: Inputs) -> bool:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            model(**inputs)
    except Exception:  # noqa: BLE001  the class takes another input
        return False
    return True


@cache
def _stack(kind: str) -> Any:
    try:
        return class_records._adapter(kind)()
    except Gone as gone:
        raise NotServed(str(gone)) from gone


@lru_cache(maxsize=4)
def _made(kind: str, name: str) -> tuple[Any, Inputs]:
    """Return a small model in float32 and inputs that it takes, with labels if it has some.

    Raises:
        NotServed: none is found.
    """
    stack = _stack(kind)
    model_class, config = stack._classes[name], stack._config(name)
    for given in (_wide(config, long=True), _wide(config, long=False), config):
        if not is_small(model_class, given, LARGEST):
            continue
        model = fresh_model(model_class, copy.deepcopy(given), LARGEST).eval()
        draw_by_names_alone(model)
        inputs = next((one for one in _candidates(model) if _is_taken(model, one)), None)
        if inputs is not None:
            labels = (one for one in labels_of(model, inputs) if _is_taken(model, {**inputs, **one}))
            return model, {**inputs, **next(labels, {})}
    raise NotServed("no small model, or no inputs that it takes")


def _rounded(model: nn.Module) -> None:
    """Round the weights of a model."""
    for value in model.parameters():
        if value.is_floating_point():
            value.data = value.data.to(HALF).to(value.dtype)


def _typed(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {
        name: value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


def _others(model: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """Return a model with other weights, and inputs with other real numbers."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(3)

    def changed(value: Tensor) -> Tensor:
        drawn: Tensor = torch.rand(value.shape, generator=generator)
        return torch.where(drawn < 0.5, 0.5 + drawn, -drawn) * value

    with torch.no_grad():
        for value in other.parameters():
            if value.is_floating_point():
                value.copy_(changed(value))
    given = {
        name: changed(value) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
    return other, given


def _halved(model: Any) -> Any:
    """Return a model made in half precision, as a loaded one is, with the weights of another."""
    with torch.random.fork_rng(devices=[]):
        found = type(model)._from_config(copy.deepcopy(model.config), attn_implementation="eager", dtype=HALF)
    found.load_state_dict(model.state_dict())
    return found.eval()


@lru_cache(maxsize=4)
def traces(kind: str, name: str) -> tuple[Traced, Traced, Traced]:
    """Return the traces of a class in half precision, in float32, and there with other weights and inputs."""
    found, inputs = _made(kind, name)
    model = copy.deepcopy(found)
    _rounded(model)
    halved = _typed(inputs, HALF)
    exact = _typed(halved, torch.float32)
    other, others = _others(model, exact)
    return traced(_halved(model), halved), traced(model, exact), traced(other, others, seed=1)


def _all_traces(kind: str) -> Iterator[tuple[str, tuple[Traced, Traced, Traced]]]:
    """Yield the traces of the main classes of a kind.

    Raises:
        NotServed: no small model is made in half precision.
    """
    num = 0
    for name in _stack(kind)._main:
        try:
            found = traces(kind, name)
        except Exception:  # noqa: BLE001  no small model of the class is made, or none in half precision
            continue
        num += 1
        yield name, found
    if not num:
        raise NotServed("no small model in half precision")


def steps_of(kind: str) -> dict[str, str]:
    """Return by class what modules of a kind compute in a type more precise than half."""
    return {part: steps for _, (half, _, _) in _all_traces(kind) for part, steps in wide_steps(half).items()}


def _of_sizes(kind: str, mixin: Any) -> list[str]:
    """Return what a kind computes from sizes and rounds in half precision."""
    return [
        f"{name}: {one}"
        for name, found in _all_traces(kind)
        for one in misplaced(*found, torch.finfo(HALF).eps)
    ][:6]


@cache
def _record() -> dict[str, set[str]]:
    """Return by class the steps on record of the line of the installed release."""
    found, line = dict[str, set[str]](), line_of()
    if line is None:
        raise NotServed("the record has neither this release nor one that it follows")
    for steps, lines in json.loads(RECORD.read_text(encoding="utf-8")).items():
        for kind in (*lines.get(line, ()), *lines.get("", ())):
            found.setdefault(kind, set()).add(steps)
    return found


def _of_types(kind: str, mixin: Any) -> list[str]:
    """Return which modules of a kind compute in other types than those on record."""
    record = _record()
    return unlike_record(record, steps_of(kind))[:6]


# Source: the pages on precision: what places and sizes give does not depend on the type of weights. What models compute
# in float32 in spite of it, as the models that they follow do, is on record.
HALF_ROWS: Sequence[Row] = tuple(
    Row("models", "transformers:PreTrainedModel", f"{what} in half precision in {kind}", partial(call, kind), [],
        known=KNOWN.get(kind) if what == "sizes" else None)
    for kind in sorted(class_records.record()) for what, call in (("sizes", _of_sizes), ("types", _of_types))
)  # fmt: skip


def _adapter(first: str, last: str) -> type[Worked]:
    rows = [row for row in HALF_ROWS if first <= row.name.rpartition(" ")[2][0] <= last]
    words = {
        "__doc__": f"Models in half precision whose kind begins with {first} to {last}; see `contracts.worked`.",
        "package": "transformers", "worked_rows": rows,
    }  # fmt: skip
    return type(f"Halves_{first}", (Worked,), words)


ADAPTERS: dict[str, type[Any]] = {
    f"worked-halves-{letters}": _adapter(*letters.split("-"))
    for letters in ("a-c", "d-f", "g-l", "m-p", "q-r", "s-z")
}
