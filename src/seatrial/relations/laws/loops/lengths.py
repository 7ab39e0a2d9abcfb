"""R30.rows: a loader reads as many batches as it says."""

from __future__ import annotations

from typing import Any

from seatrial.relations.contracts.loops import LoaderPlan, SizedLoader
from seatrial.relations.law import Measure
from seatrial.relations.laws.loops.rows import ROWS, plan

LENGTHS = (
    "the length of another process or of all, a last batch that is not counted, a skip that is not taken off"
)
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    ", uneven ends": {"even": False, "num_rows": 9},
    ", split batches": {"split": True, "batch_size": 4},
    ", split batches and uneven ends": {"split": True, "batch_size": 4, "even": False},
    ", dispatched": {"dispatch": True},
    ", dispatched and split": {"dispatch": True, "split": True, "batch_size": 4},
    ", dispatched, the last one dropped": {"dispatch": True, "drop_last": True},
    ", the last one dropped": {"drop_last": True},
    ", rows that fill all steps": {"num_rows": 12},
    ", fewer rows than a step": {"num_rows": 1},
    ", a sampler of part of the data": {"num_rows": 20, "drawn": 9},
    ", a batch sampler": {"batched_by": "batch sampler"},
    ", iterable data": {"iterable": True},
    ", iterable data, the last one dropped": {"iterable": True, "drop_last": True},
    ", iterable data, split batches": {"iterable": True, "split": True, "batch_size": 4},
    ", in a resumed epoch": {"skip": 1},
    ", in a resumed epoch, split batches": {"skip": 1, "split": True, "batch_size": 4},
    ", in a resumed epoch of iterable data": {"skip": 1, "iterable": True},
    ", three processes": {"num_ranks": 3, "num_rows": 13},
}


def _says_nothing(stack: Any) -> str | None:
    return None if isinstance(stack, SizedLoader) else "it says no lengths"


def batches_are_as_many_as_said(stack: Any, case: LoaderPlan) -> Measure:
    """Compare the lengths that loaders say with the batches that are read."""
    read = [[len(batches) for batches in epochs] for epochs in stack.loaded_rows(case)]
    wrong = [
        f"process {number} says {list(said)} and reads {own} batches of its epochs"
        for number, (said, own) in enumerate(zip(stack.said_lengths(case), read, strict=True))
        if list(said) != own
    ]
    return Measure.count(wrong, "processes that read other numbers of batches than they say")


for _name, _options in VARIANTS.items():
    ROWS.law(
        f"batches that are said{_name}",
        LENGTHS,
        cases=plan(**_options),
        excluded=_says_nothing,
        thorough=_name not in ("", ", uneven ends", ", in a resumed epoch"),
    )(batches_are_as_many_as_said)
