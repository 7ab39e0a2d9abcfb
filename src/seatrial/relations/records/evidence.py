"""Evidence of a run by name (`records.run.EVIDENCE`), and the comparison of two runs by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from seatrial.relations.records.run import RunRecord, StepRecord

_OF_ROWS = (
    "prompt_ids",
    "ids",
    "finish_reason",
    "sampling_logprobs",
    "old_logprobs",
    "ref_logprobs",
    "kept_support",
    "reward_before_shaping",
    "reward",
    "mask",
    "advantage",
)
_OF_UPDATES = ("row_indices", "micro_batches", "gradients", "learning_rate")
_OF_STEPS: Mapping[str, Callable[[StepRecord], Any]] = {
    "prompts_served": lambda step: step.prompts_served,
    "num_rows": lambda step: len(step.rows),
    "metrics": lambda step: dict(step.metrics),
}


def evidence(record: RunRecord, name: str, *, first: bool) -> Any:
    """Return one kind of evidence of a run; with `first`, of its first step and that step's first update only."""
    steps = record.steps[:1] if first else record.steps
    if name in _OF_ROWS:
        return [[getattr(row, name) for row in step.rows] for step in steps]
    if name in _OF_UPDATES or name == "weights_after":
        updates = [step.updates[:1] if first else step.updates for step in steps]
        return [[getattr(update, name) for update in of_step] for of_step in updates]
    if name in _OF_STEPS:
        return [_OF_STEPS[name](step) for step in steps]
    if name == "num_steps":
        return len(record.steps)
    assert name == "validations"
    return [(one.step, one.rows, dict(one.metrics)) for one in record.validations]


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, bit by bit; NaN equals NaN."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return (
            isinstance(other, list | tuple)
            and len(one) == len(other)
            and all(same(a, b) for a, b in zip(one, other, strict=True))
        )
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def whole(record: RunRecord) -> dict[str, Any]:
    """Return all evidence that a second run of the same seed must repeat."""
    names = {
        "prompts served": "prompts_served",
        "gradients": "gradients",
        "learning rates": "learning_rate",
        "weights": "weights_after",
        "metrics": "metrics",
        "validations": "validations",
    }
    rows = {"rows": [step.rows for step in record.steps]}
    return rows | {what: evidence(record, name, first=False) for what, name in names.items()}


def differences(one: RunRecord, other: RunRecord) -> list[str]:
    """Return the names of the evidence (of `whole`) in which two runs differ."""
    left, right = whole(one), whole(other)
    return [name for name in left if not same(left[name], right[name])]
