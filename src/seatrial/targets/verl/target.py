"""The target `verl`."""

from __future__ import annotations

from typing import Any

from seatrial.targets.common.target import ComponentsTarget, available


class VerlTarget(ComponentsTarget):
    """verl's core algorithms as they are installed."""

    name = "verl"
    modules = ("verl",)
    packages = ("verl", "torch")

    def components(self) -> dict[str, Any]:
        """Return the adapters by name."""
        self.preflight()
        from seatrial.targets.verl.algorithms import ADAPTERS

        return available(ADAPTERS)
