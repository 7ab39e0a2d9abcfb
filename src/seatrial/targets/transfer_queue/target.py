"""The target `transfer-queue`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.target import ComponentsTarget


class TransferQueueTarget(ComponentsTarget):
    """TransferQueue's controller as it is installed."""

    name = "transfer-queue"
    modules = ("transfer_queue",)
    packages = ("TransferQueue", "torch")
    relation_seeds = (0, 1, 2)

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.transfer_queue import boards, tables

        return {**boards.ADAPTERS, **tables.ADAPTERS}
