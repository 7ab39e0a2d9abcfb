"""What the trials of level 2 ask of a run that is not what it should be."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from seatrial.evidence.runlog import Series
from seatrial.trials.refit import (
    BYTES,
    CONSUMER,
    FULL,
    VERIFIED,
    WRITING,
    deltas_between_full_syncs,
    every_tensor_verified,
)
from seatrial.verdict import Outcome


def evidence(num_tensors: int = 3, num_steps: int = 3, **series: list[float] | None) -> Any:
    """Return the parts of a run's evidence that these sensors read; a series that is None was not logged."""
    tags = {"verified": VERIFIED, "full": FULL, "sent": BYTES}
    tags |= {phase: f"{CONSUMER}{phase}" for phase in WRITING}
    logged = {
        tags[name]: Series(
            tag=tags[name], steps=np.arange(1, len(values) + 1), values=np.array(values, dtype=np.float64)
        )
        for name, values in series.items()
        if values is not None
    }
    return SimpleNamespace(
        series=logged.get,
        job=SimpleNamespace(num_steps=num_steps),
        weights=SimpleNamespace(changes=[None] * num_tensors),
    )


@pytest.mark.parametrize(
    ("verified", "outcome"),
    [
        ([3, 3, 3], Outcome.PASS),
        ([5, 5, 5], Outcome.PASS),  # buffers too
        ([3, 2, 3], Outcome.FAIL),
        ([3, float("nan"), 3], Outcome.FAIL),
        ([3, 3], Outcome.FAIL),
        ([], Outcome.FAIL),
        (None, Outcome.FAIL),
    ],
)
def test_every_tensor_at_every_step(verified: list[float] | None, outcome: Outcome) -> None:
    """A step without a verified sync is a step that may have sampled with anything."""
    assert every_tensor_verified(evidence(verified=verified)).outcome is outcome


def test_a_model_without_tensors_proves_nothing() -> None:
    """Nought is at least nought, and no evidence."""
    assert every_tensor_verified(evidence(num_tensors=0, verified=[0, 0, 0])).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("full", "sent", "outcome"),
    [
        ([1, 0, 0, 1], [100, 40, 30, 100], Outcome.PASS),
        ([1, 1, 1, 1], [100, 100, 100, 100], Outcome.FAIL),
        ([1, 0, 0, 0], [100, 40, 30, 20], Outcome.FAIL),
        ([1, 0, 0, 1], [100, 0, 30, 100], Outcome.FAIL),
        ([1, 0, 0, 1], [100, 40, 100, 100], Outcome.FAIL),
        ([1, 0, 0, 1], [100, 40, float("nan"), 100], Outcome.FAIL),
        ([1, 0, 0], [100, 40, 30, 100], Outcome.FAIL),
        (None, [100.0], Outcome.FAIL),
    ],
)
def test_changes_travel_between_full_syncs(
    full: list[float] | None, sent: list[float] | None, outcome: Outcome
) -> None:
    """Two of each, none empty, none as large as a full one."""
    timed: dict[str, list[float] | None] = {phase: [0.1, 0.1] for phase in WRITING}
    assert deltas_between_full_syncs(evidence(full=full, sent=sent, **timed)).outcome is outcome


@pytest.mark.parametrize("phase", WRITING)
def test_a_phase_that_is_not_timed_is_named(phase: str) -> None:
    """Where changes were written."""
    timed: dict[str, list[float] | None] = {one: [0.1] for one in WRITING if one != phase}
    verdict = deltas_between_full_syncs(evidence(full=[1, 0, 0, 1], sent=[100, 40, 30, 100], **timed))
    assert verdict.outcome is Outcome.FAIL
    assert f"{CONSUMER}{phase} was not logged" in verdict.reason
