"""Starting values of weights that a checkpoint leaves out: of every class of every kind, those of a fresh model.

Memory that torch allocates is filled with NaN meanwhile, so a weight that nothing sets is seen in any process.
"""

from __future__ import annotations

import copy
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.small_models import model_class
from seatrial.targets.transformers.worked.every_class import (
    configuration,
    of_kind,
    record,
    release_on_record,
)

NOISE, ROUNDED = 8.0, 1e-3
"""Allowed distance of two means or spreads, in standard errors, and relative to the size of the values."""
FEWEST = 16
"""Numbers of a weight whose mean and spread are compared."""
NUMBER = re.compile(r"\.\d+(?=\.|$)")
PLAIN = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
"""Ends of names of classes that add a matrix alone to the base."""
RECORD = Path(__file__).with_name("recorded_left_out.json")


@cache
def never_set() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Return by release and kind the names of weights that do not begin as in a fresh model, which is a finding."""
    found: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(RECORD.read_text("utf-8"))
    return found


def _half(name: str) -> int:
    """Return in which of two checkpoints a name is left out."""
    return zlib.crc32(NUMBER.sub("", name).encode()) % 2


@contextmanager
def marked_memory() -> Iterator[None]:
    """Fill all memory that torch allocates with NaN, or the largest whole number."""
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    was = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(was, warn_only=warns)


def _unlike(found: Tensor, due: Tensor) -> str | None:
    """Return how values that were drawn are not spread as others, or constant ones are others."""
    one, two = found.detach().double().flatten(), due.detach().double().flatten()
    if not bool(torch.isfinite(one).all()):
        return None if torch.allclose(one, two, equal_nan=True) else "never set"
    if one.numel() == 0 or torch.equal(one, two):
        return None
    spread = float(two.std(correction=0))
    error = NOISE * spread * (2 / two.numel()) ** 0.5 + ROUNDED * float(two.abs().max()) + 1e-12
    mean, wide = float(one.mean()), float(one.std(correction=0))
    if two.numel() == 1 or (two.numel() < FEWEST and spread):  # one number does not say whether it was drawn
        far = float(one.abs().max()) > 30 * max(float(two.abs().max()), 0.1)
        return f"as large as {float(one.abs().max()):.3g}" if far else None
    if abs(mean - float(two.mean())) <= error and abs(wide - spread) <= error:
        return None
    return f"{mean:.3g} +- {wide:.3g}, {float(two.mean()):.3g} +- {spread:.3g} are due"


def left_out(model_type: Any, config: Any, half: int) -> Iterator[tuple[str, str]]:
    """Yield names of weights that do not begin as in a fresh model, or are not the ones that were given, and how."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        fresh = model_type._from_config(copy.deepcopy(config), attn_implementation="eager").float()
    shared: dict[int, list[str]] = {}
    for name, value in fresh.state_dict().items():
        shared.setdefault(value.data_ptr(), []).append(name)
    gone = {name for names in shared.values() if any(_half(one) == half for one in names) for name in names}
    given = {name: value.clone() + 1 for name, value in fresh.state_dict().items()
             if name not in gone and value.is_floating_point()}  # fmt: skip
    with torch.random.fork_rng(devices=[]), marked_memory():
        torch.manual_seed(2)
        read = model_type.from_pretrained(
            None, config=copy.deepcopy(config), state_dict=dict(given), dtype=torch.float32,
            attn_implementation="eager",
        )  # fmt: skip
    due = {**dict(fresh.named_parameters()), **dict(fresh.named_buffers())}
    for name, value in [*read.named_parameters(), *read.named_buffers()]:
        if name not in due or not value.is_floating_point() or due[name].shape != value.shape:
            continue
        if name in given:
            if not torch.equal(value, given[name]):
                yield name, "not the one that is given"
        elif wrong := _unlike(value, due[name]):
            yield name, wrong


def _judged(names: Sequence[str]) -> list[str]:
    """Return the classes of a kind with weights of their own: a head has its base within it."""
    own = [name for name in names if not name.endswith(PLAIN)]
    heads = [name for name in own if not name.endswith("Model")]
    return heads or own or list(names)[:1]


def wrong_of(kind: str) -> dict[str, str]:
    """Return the names of weights that begin otherwise, with those of all layers as one, in the classes of a kind."""
    wrong: dict[str, str] = {}
    config = configuration(kind)
    for name in _judged(list(of_kind(kind))):
        for half in range(2):
            for weight, how in left_out(model_class(name), config, half):
                wrong.setdefault(NUMBER.sub(".*", weight), f"{name}, {weight}: {how}")
    return wrong


def _wrong(kind: str, function: Any) -> list[str]:
    """Return the wrong starts of classes of a kind that are not on record."""
    known = never_set()[release_on_record()].get(kind, ())
    if "*" in known:
        raise NotServed("this release does not read these files")
    return [how for name, how in wrong_of(kind).items() if name not in known][:6]


PLACE = "transformers:PreTrainedModel"
# Source: the documentation of from_pretrained: weights that are missing are initialized again, as those of a new model.
LEFT_ROWS: Sequence[Row] = tuple(
    Row("models", PLACE, f"weights that a checkpoint of {kind} leaves out", partial(_wrong, kind), [])
    for kind in sorted({kind for one in record().values() for kind in one})
)


class OfLeftOut(Worked):
    """Weights that checkpoints leave out; see `contracts.worked`."""

    package = "transformers"
    worked_rows = LEFT_ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-left-out": OfLeftOut}


def main() -> None:
    """Print a line for each kind of the installed release with weights that begin otherwise."""
    for kind in sorted(record()[release_on_record()]):
        try:
            wrong = wrong_of(kind)
        except Exception as error:  # noqa: BLE001  seen as such
            print(json.dumps([kind, error_line(error)]), flush=True)
            continue
        print(json.dumps([kind, wrong]), flush=True)


if __name__ == "__main__":
    main()
