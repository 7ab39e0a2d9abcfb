"""A loss: REINFORCE in which good and bad completions weigh differently.

Source: W-REINFORCE, "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning", arXiv 2506.01347.
"""

from __future__ import annotations

from pydantic import Field

from refrl.algorithms.losses.base import Surrogate, TokenInputs, TokenLoss
from refrl.config import LossConfig
from refrl.config.base import Section


class WeightedReinforce(TokenLoss):
    """-w A log c, where w is `positive_weight` where the advantage A is positive and 1 where it is not."""

    class Options(Section):
        """What `loss_fn.options` takes."""

        positive_weight: float = Field(default=0.1, ge=0, le=1)
        """Weight of completions that are better than their group."""

    @classmethod
    def check(cls, config: LossConfig) -> None:
        """Refuse what has no effect: nothing is clipped here (ValueError)."""
        if config.ratio_clip_c is not None:
            raise ValueError("loss_fn.ratio_clip_c has no effect with weighted_reinforce: leave it out")

    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """Return the loss of each token; refrl adds the KL, divides by the counts of the whole batch, and logs."""
        weights_B1 = (inputs.advantages_B1 <= 0) + self.options.positive_weight * (inputs.advantages_B1 > 0)
        loss_BT = -weights_B1 * inputs.advantages_B1 * inputs.logprobs_BT
        ratio_BT = (inputs.logprobs_BT - inputs.old_logprobs_BT).exp().detach()
        return Surrogate(loss_BT, ratio_BT, ratio_BT)
