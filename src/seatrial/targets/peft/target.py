"""The target `peft`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.target import ComponentsTarget


class PeftTarget(ComponentsTarget):
    """PEFT as it is installed."""

    name = "peft"
    modules = ("peft", "transformers")
    packages = ("peft", "transformers", "accelerate", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.peft.kinds import ADAPTERS

        return ADAPTERS
