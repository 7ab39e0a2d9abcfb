"""The laws of histories of loops: a plain loop satisfies them, and faults that need a history are seen."""

import pytest
from tests.unit.relations.plain_loop_histories import PlainLoopHistories

from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(HISTORIES,) = select(["R30.histories"])
SEEDS = range(8)


@pytest.mark.parametrize("tidy", [False, True])
def test_a_plain_loop_satisfies_the_laws(tidy: bool) -> None:
    """In one process and in two."""
    verdict = run_relation(HISTORIES, PlainLoopHistories(), seeds=SEEDS, tidy=tidy, thorough=True)
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("left is taken", "steps, evaluations that are left"),
        ("the order continues", "rows"),
        ("gradients stay", "weights"),
        ("moments are not loaded", "weights, one process"),
        ("rates are not loaded", "rates and norms"),
        ("the rate stays", "rates and norms"),
        ("filling stays", "metrics"),
        ("parts are not padded", "metrics"),
        ("random numbers continue", "random numbers and triggers"),
        ("the trigger stays", "random numbers and triggers"),
    ],
)
def test_a_fault_breaks_its_law(fault: str, law: str) -> None:
    """In one of a few histories."""
    verdict = run_relation(HISTORIES, PlainLoopHistories(fault), seeds=SEEDS, thorough=True, shrink_seconds=0)
    assert law in verdict.details["laws_broken"], verdict.reason
