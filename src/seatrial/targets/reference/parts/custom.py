"""Parts as a user writes them: a loss and an advantage with options of every type, verifiers, an environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from refrl.algorithms.advantages import AdvantageEstimator, group_mean
from refrl.algorithms.losses.base import Surrogate, TokenInputs, TokenLoss
from refrl.config.base import Section
from refrl.rewards.verifiers import VerifierError, byte_closeness
from refrl.tasks.text import ReverseTask
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


class Answering:
    """An environment of two turns."""

    max_turns = 2

    def respond(self, turns: Sequence[str]) -> str | None:
        """Return a few words after the first turn."""
        return f" {len(turns[0])} read; " if len(turns) == 1 else None


@dataclass(frozen=True)
class Answers(ReverseTask):
    """The task `reverse`, with its own answers or with others to the same prompts."""

    other: bool = False

    def example(self, number: int) -> tuple[str, str]:
        """Return the prompt, and its answer or one with a letter more."""
        prompt, answer = super().example(number)
        return prompt, answer + "x" * self.other
