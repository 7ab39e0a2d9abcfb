"""The target `openrlhf`."""

from __future__ import annotations

from typing import Any

from seatrial.targets.common.target import ComponentsTarget, available


class OpenRLHFTarget(ComponentsTarget):
    """OpenRLHF's losses as they are installed."""

    name = "openrlhf"
    modules = ("openrlhf",)
    packages = ("openrlhf", "torch")

    def components(self) -> dict[str, Any]:
        """Return the adapters by name."""
        self.preflight()
        from seatrial.targets.openrlhf.losses import ADAPTERS

        return available(ADAPTERS)
