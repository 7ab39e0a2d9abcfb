"""The target `verl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.checkout_trials import CheckoutTrials


class VerlTarget(CheckoutTrials):
    """verl's core algorithms, rewards and batches as they are installed.

    Its trials are the stages of a checkout (`stages.yaml`).
    """

    name = "verl"
    package = "seatrial.targets.verl"
    variable = "VERL_REPO"
    modules = ("verl",)
    packages = ("verl", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.verl import algorithms, estimators, losses, ranks, rewards, tables
        from seatrial.targets.verl.micro_batches import VerlMicroBatches

        return {
            **algorithms.ADAPTERS,
            **estimators.ADAPTERS,
            **losses.ADAPTERS,
            **ranks.ADAPTERS,
            **rewards.ADAPTERS,
            **tables.ADAPTERS,
            "micro-batches": VerlMicroBatches,
        }
