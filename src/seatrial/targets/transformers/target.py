"""The target `transformers`."""

from __future__ import annotations

from typing import Any

from seatrial.targets.common.target import ComponentsTarget, available


class TransformersTarget(ComponentsTarget):
    """`transformers.Trainer` as it is installed."""

    name = "transformers"
    modules = ("transformers", "datasets", "accelerate")
    packages = ("transformers", "accelerate", "torch")

    def components(self) -> dict[str, Any]:
        """Return the adapters by name."""
        self.preflight()
        from seatrial.targets.transformers.causal import ADAPTERS

        return available(ADAPTERS)
