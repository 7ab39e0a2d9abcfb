"""Verdicts on two runs that should be the same: every series but seconds, and every column of every row.

Tokens, texts and counts are equal; numbers agree within the tolerance of the caller.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.runlog import Series
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.paths import run_facts
from seatrial.verdict import Outcome, Verdict

ROWS, SERIES = "same rows as of one process", "same other series as of one process"
SECONDS = ("timing/", "performance/")
"""Beginnings of series that no two runs have alike."""
OF_MICRO_BATCHES = ("train/global_valid_",)
"""Counters whose mean over micro-batches is logged where updates differ: another check compares them."""


def compare_other_series(
    alone: RunEvidence,
    shared: RunEvidence,
    compared: Sequence[str],
    tolerance: float,
    name: str = SERIES,
    *,
    last_step: float = math.inf,
) -> Verdict:
    """Compare every series of two runs, step by step, but seconds and those that another check compares.

    Args:
        alone: one run.
        shared: the other.
        compared: series that are left out.
        tolerance: largest difference, of the larger of 1 and the value.
        name: of the verdict.
        last_step: the last one that is compared.

    Raises:
        NotGivenError: the runs write no record of themselves: which of their series time alone changes is not known.
    """
    if not run_facts(alone):
        raise NotGivenError(
            "the run writes no run_info.json, so that it is not known which series should be the same"
        )
    names = {
        tag
        for log in (alone.log, shared.log)
        for tag in log.series
        if tag not in compared and not tag.startswith((*SECONDS, *OF_MICRO_BATCHES))
    }
    wrong, largest, number = [], 0.0, 0
    for tag in sorted(names):
        one, other = alone.series(tag), shared.series(tag)
        if one is None or other is None or one.steps.tolist() != other.steps.tolist():
            wrong.append(f"{tag} is not logged at the same steps by both")
            continue
        gap = _gap(one, other, last_step)
        number += int((one.steps <= last_step).sum())
        largest = max(largest, gap)
        if not gap <= tolerance:
            wrong.append(f"{tag} differs by {gap:.3g}")
    return _verdict(name, wrong, f"{len(names)} series, largest difference {largest:.3g}", tolerance, number)


def compare_rows(
    alone: RunEvidence,
    shared: RunEvidence,
    tolerance: float,
    name: str = ROWS,
    *,
    last_step: float = math.inf,
) -> Verdict:
    """Compare every column of every trained row of two runs.

    Args:
        alone: one run.
        shared: the other.
        tolerance: largest difference of a number, of the larger of 1 and the value.
        name: of the verdict.
        last_step: the last one that is compared.
    """
    ours, others = (
        sorted((row for row in of.ledger if row.step <= last_step), key=lambda row: (row.step, row.index))
        for of in (alone, shared)
    )
    wrong = [f"{len(others)} rows, alone there are {len(ours)}"] if len(ours) != len(others) else []
    largest = 0.0
    for one, other in zip(ours, others, strict=False):
        for column, gap in _differences(one, other):
            largest = max(largest, gap)
            if not gap <= tolerance:
                wrong.append(f"{one.where()} has another {column}, by {gap:.3g}")
    return _verdict(name, wrong, f"{len(ours)} rows, largest difference {largest:.3g}", tolerance, len(ours))


def _gap(one: Series, other: Series, last_step: float) -> float:
    errors = np.abs(one.values - other.values) / np.maximum(1.0, np.abs(one.values))
    errors = errors[one.steps <= last_step]
    return float(np.max(errors)) if len(errors) else 0.0


def _differences(one: LedgerRow, other: LedgerRow) -> Iterator[tuple[str, float]]:
    """Yield each column of a row with the largest difference of its numbers; infinite where anything else differs."""
    for field in dataclasses.fields(one):
        yield field.name, _distance(getattr(one, field.name), getattr(other, field.name))


def _distance(one: Any, other: Any) -> float:
    if isinstance(one, float) and isinstance(other, float):
        return 0.0 if math.isnan(one) and math.isnan(other) else abs(one - other) / max(1.0, abs(one))
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return max(map(_distance, one, other), default=0.0)
    return 0.0 if one == other else math.inf


def _verdict(name: str, wrong: Sequence[str], good: str, tolerance: float, number: int) -> Verdict:
    return Verdict(
        name=name,
        outcome=Outcome.FAIL if wrong or not number else Outcome.PASS,
        reason="; ".join(wrong[:3]) or good,
        value=float(len(wrong)),
        bound=f"equal, numbers within {tolerance:g} of the larger of 1 and the value",
        num_samples=number,
    )
