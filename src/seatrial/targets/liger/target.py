"""The target `liger`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.target import ComponentsTarget


class LigerTarget(ComponentsTarget):
    """Liger's chunked losses as they are installed; its kernels need a GPU, and are not called."""

    name = "liger"
    modules = ("liger_kernel", "transformers")
    packages = ("liger-kernel", "transformers", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.liger import losses, policy

        return {**losses.ADAPTERS, **policy.ADAPTERS}
