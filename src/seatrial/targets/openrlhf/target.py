"""The target `openrlhf`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.target import ComponentsTarget


class OpenRLHFTarget(ComponentsTarget):
    """OpenRLHF's losses and experience as they are installed."""

    name = "openrlhf"
    modules = ("openrlhf",)
    packages = ("openrlhf", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.openrlhf import algorithms, losses, small, tables

        return {**losses.ADAPTERS, **algorithms.ADAPTERS, **small.ADAPTERS, **tables.ADAPTERS}
