"""The target `transfer-queue`."""

from __future__ import annotations

from typing import Any

from seatrial.targets.common.target import ComponentsTarget, available


class TransferQueueTarget(ComponentsTarget):
    """TransferQueue's controller as it is installed."""

    name = "transfer-queue"
    modules = ("transfer_queue",)
    packages = ("TransferQueue", "torch")
    relation_seeds = (0, 1, 2)

    def components(self) -> dict[str, Any]:
        """Return the adapters by name."""
        self.preflight()
        from seatrial.targets.transfer_queue.boards import ADAPTERS

        return available(ADAPTERS)
