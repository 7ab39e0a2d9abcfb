"""An advantage estimator and a loss of a user's own, each with an option."""

from __future__ import annotations

from torch import Tensor

from refrl.algorithms.advantages import AdvantageEstimator, group_mean
from refrl.algorithms.losses.base import Surrogate, TokenInputs, TokenLoss
from refrl.config.base import Section


class Factor(Section):
    """What both have."""

    factor: float = 1.0


class Scaled(AdvantageEstimator):
    """The reward less its group's mean, times a factor."""

    Options = Factor

    def advantages(self, rewards: Tensor, index_B: Tensor) -> Tensor:
        """See `AdvantageEstimator`."""
        scaled: Tensor = self.options.factor * (rewards - group_mean(rewards, index_B))
        return scaled


class Weighed(TokenLoss):
    """The ratio times the advantage, times a factor."""

    Options = Factor

    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """See `TokenLoss`."""
        ratio_BT = (inputs.logprobs_BT - inputs.old_logprobs_BT).exp()
        return Surrogate(-self.options.factor * inputs.advantages_B1 * ratio_BT, ratio_BT, ratio_BT)
