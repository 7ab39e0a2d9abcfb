"""Parts as a user writes them: a loss and an advantage with options of every type, and two verifiers."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from refrl.algorithms.advantages import AdvantageEstimator, group_mean
from refrl.algorithms.losses.base import Surrogate, TokenInputs, TokenLoss
from refrl.config.base import Section
from refrl.rewards.verifiers import VerifierError, byte_closeness
from seatrial.relations.contracts.left import unjudgeable


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


ENOUGH = 0.45
"""About what half of the conformance model's completions reach."""


def near_enough(completion: str, answer: str) -> float:
    """Return whether `byte_closeness` reaches `ENOUGH`, as 0 or 1."""
    return float(byte_closeness(completion, answer) >= ENOUGH)


def failing(completion: str, answer: str) -> float:
    """Return `byte_closeness`.

    Raises:
        VerifierError: the completion is `unjudgeable`.
    """
    if unjudgeable(completion):
        raise VerifierError("the sum of its bytes can be divided by 3")
    return byte_closeness(completion, answer)
