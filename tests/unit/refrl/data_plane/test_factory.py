"""A store for the length of a block."""

from __future__ import annotations

import sys

import pytest

from refrl.config import ConfigError, DataPlaneConfig
from refrl.data_plane import DataPlaneError, data_plane_processes, opened_data_plane


def test_a_store_of_this_process_ends_with_its_block() -> None:
    with opened_data_plane(DataPlaneConfig()) as client:
        client.register_partition("rollouts", ["x"], 4, ["train"])
        assert data_plane_processes(DataPlaneConfig()) == {}
    with pytest.raises(DataPlaneError, match="closed"):
        client.partitions()


def test_a_package_that_is_missing_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("transfer_queue", "refrl.data_plane.transfer_queue", "ray", "refrl.data_plane.ray"):
        monkeypatch.setitem(sys.modules, name, None)
    opened = opened_data_plane(DataPlaneConfig(implementation="transfer_queue"))
    with pytest.raises(ConfigError, match=r"pip install 'seatrial\[transfer_queue\]'"):
        opened.__enter__()
