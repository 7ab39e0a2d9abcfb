"""The target `accelerate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.target import ComponentsTarget


class AccelerateTarget(ComponentsTarget):
    """Accelerate as it is installed."""

    name = "accelerate"
    modules = ("accelerate",)
    packages = ("accelerate", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.accelerate import configurations
        from seatrial.targets.accelerate.loops import ADAPTERS
        from seatrial.targets.accelerate.worked import adapter

        return {**ADAPTERS, **configurations.ADAPTERS, **adapter.ADAPTERS}

    def uncovered(self) -> Mapping[str, str]:
        """Return the public names of the installed release that no adapter covers, by the reason."""
        from seatrial.targets.accelerate.offered import uncovered

        return uncovered()
