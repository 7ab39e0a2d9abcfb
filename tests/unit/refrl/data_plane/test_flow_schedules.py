"""The rollout flow under deaths, delays and repeated calls, in any order that a seed draws."""

from __future__ import annotations

from typing import Any

import pytest

from refrl.data_plane.client import StoreClient
from refrl.data_plane.control import ControlState
from refrl.data_plane.factory import LocalControl
from refrl.data_plane.store import LocalStore
from seatrial.targets.reference.data_plane.schedules import Schedule


class Store:
    """A store in this process, whose clock stands still unless leases are to be over."""

    lease_s = 1.0

    def __init__(self) -> None:
        self._now = 0.0
        self._control = LocalControl(ControlState(clock=lambda: self._now))
        self._columns = LocalStore()

    def client(self) -> StoreClient:
        return StoreClient(self._control, self._columns, lease_s=self.lease_s)

    def outlast_leases(self) -> None:
        self._now += 2 * self.lease_s

    def kill_control(self) -> None:
        """It has no process."""


def play(seed: int) -> Schedule:
    """Play a schedule, and hold its ledger to account."""
    schedule = Schedule(Store(), seed)
    assert schedule.play() == [], f"seed {seed}"
    return schedule


def test_the_ledger_closes_whoever_dies_and_whatever_is_called_twice() -> None:
    """Two hundred schedules; among them every fate of a group, or they would show nothing."""
    played = [play(seed).ledger for seed in range(200)]
    assert sum(ledger.num_crashes for ledger in played) > 200
    assert sum(len(ledger.trained) for ledger in played) > 500
    assert sum(len(ledger.stale) for ledger in played) > 500


def test_a_seed_replays_its_schedule() -> None:
    assert [play(seed).ledger for seed in range(5)] == [play(seed).ledger for seed in range(5)]


def leases_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlState, "expire", lambda self: None)


def acknowledgements_are_never_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlState, "acknowledge", lambda self, lease_id, samples: None)


def too_old_groups_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refrl.algorithms.schedule.Schedule.is_fresh", lambda self, sample, trainer: True)


def a_claim_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControlState, "lease", lambda self, **words: None)


def repeated_puts_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one frees the bytes of the first, which are its own."""
    publish = ControlState.publish

    def forgetful(self: ControlState, partition_id: str, samples: Any, blocks: Any, tags: Any) -> Any:
        for block in blocks:
            self.blocks.pop(block.name, None)
        return publish(self, partition_id, samples, blocks, tags)

    monkeypatch.setattr(ControlState, "publish", forgetful)


@pytest.mark.parametrize(
    "broken",
    [
        leases_never_end,
        acknowledgements_are_never_late,
        too_old_groups_are_kept,
        a_claim_takes_nothing,
        repeated_puts_are_new,
    ],
)
def test_schedules_see_a_broken_store(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    assert any(Schedule(Store(), seed).play() for seed in range(20))
