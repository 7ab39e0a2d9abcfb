"""R2.placement: whatever starts the ranks, the run is the same; torchrun's are, and without Ray that is said."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.unit.relations.toy_run import ToyRun

from seatrial.relations.contracts.placements import PlacedRun
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.verdict import Outcome, Verdict

(RELATION,) = select(["R2.placement"])


class Placed(ToyRun):
    """A toy whose ranks could be started in several ways; one may draw other numbers, or be another than asked for."""

    def __init__(self, ways: Sequence[str] = ("own", "torchrun", "ray"), **faults: str) -> None:
        super().__init__()
        self.ways, self.faults = ways, faults

    def placements(self) -> Sequence[str]:
        """Return the ways."""
        return self.ways

    def placed_run(self, options: Mapping[str, Any], *, seed: int) -> PlacedRun:
        """Run, with the fault of the way."""
        fault = self.faults.get(options["placement"])
        if fault == "missing":
            raise ImportError("No module named 'placer'", name="placer")
        plain = {name: value for name, value in options.items() if name != "placement"}
        record = self.short_run(plain, seed=seed + (fault == "other numbers"))
        return PlacedRun(record, "own" if fault == "ignored" else options["placement"])


def judged(stack: Any) -> Verdict:
    """Return what the relation says."""
    return run_relation(RELATION, stack, seeds=[0], shrink_seconds=0)


def test_ranks_that_make_the_same_run_wherever_they_are_obey() -> None:
    assert judged(Placed()).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("fault", "words"),
    [("other numbers", "rows"), ("ignored", "the run reports that 'own' started its ranks")],
)
def test_a_placement_that_changes_something_is_seen(fault: str, words: str) -> None:
    """Another stream of random numbers; a placement that is not the requested one."""
    verdict = judged(Placed(ray=fault))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.details["laws_broken"] == ["ranks in Ray actors"]
    assert words in verdict.reason


def test_a_way_that_is_not_installed_is_blocked_and_the_others_are_asked() -> None:
    verdict = judged(Placed(ray="missing"))
    assert verdict.outcome is Outcome.BLOCKED
    assert "needs placer" in verdict.reason
    assert verdict.details["laws"] == ["ranks that torchrun starts"]


def test_a_stack_without_such_a_way_declares_it() -> None:
    verdict = judged(Placed(ways=("own", "torchrun")))
    assert verdict.outcome is Outcome.PASS
    assert verdict.details["laws_not_exercised"] == {"ranks in Ray actors": "placements has no ray"}


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is not None, reason="tests/peers/test_ray_ranks.py checks all of it"
)
@pytest.mark.usefixtures("forked_processes")
def test_ranks_of_torchrun_make_the_run_of_ours() -> None:
    """On refrl, bit for bit; without Ray the adapter declares that it has no placement by Ray, and says why."""
    verdict = judged(ReferenceComponents())
    assert verdict.outcome is Outcome.PASS
    assert verdict.details["laws"] == ["ranks that torchrun starts"]
    assert (
        "'ranks in Ray actors' not exercised (declared: placements has no ray: Ray is not installed"
        in verdict.reason
    )
