"""verl's registered policy losses with weights that correct for the sampler."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.losses import ADAPTERS as OF_LOSSES
from seatrial.targets.verl.losses import LOSSES, VerlRegisteredLoss
from seatrial.targets.verl.registries import CORE

WEIGHED_BY_ROW = ("geo_mean",)
"""Losses of a row's mean, which takes the geometric mean of the weights of its tokens."""
OWN_WEIGHTS = ("bypass_mode", "bypass_mode-reinforce")
"""Losses that compute their weights."""


class VerlWeightedLosses:
    """Each registered loss that takes `rollout_is_weights`, with the settings of `loss-NAME`."""

    def __init__(self) -> None:
        """Find the losses.

        Raises:
            Gone: none of the release takes weights.
        """
        self.losses: dict[str, VerlRegisteredLoss] = {}
        find_name("verl", [f"{CORE}:POLICY_LOSS_REGISTRY"])
        for name in LOSSES:
            with contextlib.suppress(Gone):
                own = OF_LOSSES[f"loss-{name}"]()
                takes = inspect.signature(own.compute).parameters
                if "rollout_is_weights" in takes and name not in OWN_WEIGHTS:
                    self.losses[name] = own
        if not self.losses:
            raise Gone(f"no loss of verl {release('verl')} takes weights")
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "weighted policy loss": self._loss,
            "names of weighted losses": lambda: {
                name: "rows" if name in WEIGHED_BY_ROW else "tokens" for name in self.losses
            },
        }

    def _loss(self, name: str, columns: Mapping[str, Tensor], weights: Tensor | None) -> tuple[float, Tensor]:
        """Return the loss of a batch, and its gradient by log-probability."""
        logprobs_BT = columns["logprobs"].clone().requires_grad_()
        own, mask_BT = self.losses[name], columns["mask"]
        loss: Tensor = own.compute(
            old_log_prob=columns["old_logprobs"].clone(),
            log_prob=logprobs_BT,
            advantages=columns["advantages"].clone(),
            response_mask=mask_BT.bool(),
            loss_agg_mode=own.mode,
            config=own.configuration(float(mask_BT.sum()), 1, len(mask_BT)),
            rollout_is_weights=None if weights is None else weights.clone(),
        )[0]
        (gradient_BT,) = torch.autograd.grad(loss, logprobs_BT)
        return float(loss.detach()), gradient_BT


ADAPTERS: dict[str, type[Any]] = {"weighted-losses": VerlWeightedLosses}
