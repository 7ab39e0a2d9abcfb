"""The target `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.target import ComponentsTarget


class TransformersTarget(ComponentsTarget):
    """`transformers.Trainer` as it is installed."""

    name = "transformers"
    modules = ("transformers", "datasets", "accelerate")
    packages = ("transformers", "accelerate", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.transformers import causal, heads

        return {**causal.ADAPTERS, **heads.ADAPTERS}
