"""Random schedules of deaths, delays and repeats on the local data plane; a failing one is replayed by its seed."""

import pytest

from seatrial.relations.benches import schedules as data_plane_schedules
from seatrial.relations.benches.data_plane import Bench, make_case
from seatrial.relations.benches.schedules import Ledger, play
from seatrial.targets.reference.data_plane.local import ReferenceDataPlane


def errors(seed: int) -> list[str]:
    stack = ReferenceDataPlane()
    return play(Bench(stack, stack.data_plane(), make_case(stack, seed, False)))


@pytest.fixture(autouse=True)
def _short_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_plane_schedules, "LEASE_S", 0.05)


@pytest.mark.parametrize("seed", range(24))
def test_the_ledger_closes(seed: int) -> None:
    assert errors(seed) == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(24, 200))
def test_the_ledger_closes_at_night(seed: int) -> None:
    assert errors(seed) == []


def test_a_ledger_tells_what_does_not_add_up() -> None:
    ledger = Ledger(put=["lost", "twice", "again", "both"], dropped={"both": "stale"})
    ledger.trained.update(["twice", "twice", "again", "both"])
    assert ledger.errors({"again"}) == [
        "twice was trained on 2 times",
        "both was both dropped and trained on",
        "lost is lost",
        "again is still served after it was trained on or dropped",
    ]
