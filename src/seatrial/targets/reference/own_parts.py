"""Parts as a user writes them, with options of every type: a loss and an advantage that the relations configure."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from refrl.algorithms.advantages import AdvantageEstimator, group_mean
from refrl.algorithms.losses.base import Surrogate, TokenInputs, TokenLoss
from refrl.config.base import Section


class Options(Section):
    """See `seatrial.relations.contracts.parts.OWN_DEFAULTS`."""

    factor: float = 1.5
    count: int = 3
    on: bool = True
    label: str = "x"
    places: list[int] = Field(default_factory=lambda: [1])


class Scaled(AdvantageEstimator):
    """The reward less the group's mean, times a factor."""

    Options = Options

    def advantages(self, rewards: Tensor, index_B: Tensor) -> Tensor:
        """See `AdvantageEstimator`."""
        scaled: Tensor = self.options.factor * (rewards - group_mean(rewards, index_B))
        return scaled


class Weighed(TokenLoss):
    """The ratio times the advantage, times a factor."""

    Options = Options

    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """See `TokenLoss`."""
        ratio_BT = (inputs.logprobs_BT - inputs.old_logprobs_BT).exp()
        return Surrogate(-self.options.factor * inputs.advantages_B1 * ratio_BT, ratio_BT, ratio_BT)
