"""verl's controllers of the KL coefficient, and its sharing out of rows by length, whichever release is installed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from seatrial.relations.contracts.controllers import ControllerPlan
from seatrial.targets.common.target import find_name


class VerlKLController:
    """`get_kl_controller`; see `contracts.controllers.KLController`."""

    def __init__(self) -> None:
        """Find the function."""
        self.make = find_name("verl", ["verl.trainer.ppo.core_algos:get_kl_controller"])

    def kl_coefficients(self, plan: ControllerPlan) -> Sequence[float]:
        given = SimpleNamespace(
            type=plan.kind, kl_coef=plan.coefficient, target_kl=plan.target, horizon=plan.horizon
        )
        # Before 0.3 they are options of the critic.
        is_of_critic = "critic.kl_ctrl" in inspect.getsource(self.make)
        controller = self.make(
            SimpleNamespace(critic=SimpleNamespace(kl_ctrl=given), kl_ctrl=given) if is_of_critic else given
        )
        found = []
        for divergence, size in plan.updates:
            controller.update(current_kl=divergence, n_steps=size)
            found.append(float(controller.value))
        return found


class VerlBalance:
    """`get_seqlen_balanced_partitions`; see `contracts.controllers.LengthBalance`."""

    def __init__(self) -> None:
        """Find the function."""
        self.share = find_name("verl", ["verl.utils.seqlen_balancing:get_seqlen_balanced_partitions"])

    def balanced_parts(
        self, lengths: Sequence[int], num_parts: int, equal_sizes: bool
    ) -> Sequence[Sequence[int]]:
        parts: Sequence[Sequence[int]] = self.share(
            list(lengths), k_partitions=num_parts, equal_size=equal_sizes
        )
        return parts


ADAPTERS: dict[str, type[Any]] = {"kl-controller": VerlKLController, "length-balance": VerlBalance}
