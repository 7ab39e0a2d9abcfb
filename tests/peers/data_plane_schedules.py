"""The rollout flow on a store of a Ray cluster, under random schedules; run by test_data_plane.py."""

from __future__ import annotations

import os
import time

import pytest

from refrl.data_plane.client import StoreClient
from seatrial.targets.reference.data_plane.ray import RayPlane, start_ray
from seatrial.targets.reference.data_plane.schedules import Schedule

FIRST, NUM = int(os.environ.get("FIRST_SCHEDULE", "0")), int(os.environ.get("NUM_SCHEDULES", "3"))


class Store(RayPlane):
    """A store whose control is killed and restored; on a busy machine that takes its time."""

    lease_s = 1.0
    timeout_s = 120.0

    def client(self) -> StoreClient:
        client: StoreClient = self._client.attach()
        return client

    def outlast_leases(self) -> None:
        time.sleep(1.2 * self.lease_s)


@pytest.fixture(scope="module")
def store() -> Store:
    start_ray()
    return Store(os.environ["IMPLEMENTATION"])  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(FIRST, FIRST + NUM))
def test_the_ledger_closes(store: Store, seed: int) -> None:
    assert Schedule(store, seed).play() == []
