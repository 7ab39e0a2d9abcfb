"""Contracts of what a trainer makes of rollouts: the window of an optimizer step, and the tokens that train.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from seatrial.relations.cases.examples import Example
from seatrial.relations.cases.windows import WindowCase, WindowSpec
from seatrial.relations.records import StepResult

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class RolloutWindow(Protocol):
    """A trainer from completions and rewards to raw gradients, on the adapter's own tiny model."""

    window_spec: WindowSpec
    ordinary_ids: Sequence[int]
    eos_id: int

    def objective_model(self) -> Any:
        """See `Objective`."""
        ...

    def objective_logits(self, model: Any, ids_S: Tensor) -> Tensor:
        """See `Objective`."""
        ...

    def window_step(self, case: WindowCase, num_micro_batches: int) -> StepResult:
        """Return the raw gradients of one step on exactly these completions and rewards.

        The window goes through the model in so many micro-batches of equal size, in the stack's own order of rows.
        """
        ...


@runtime_checkable
class TrainedTokens(Protocol):
    """The tokens of a trainer's own batch: what it sees, and what it is trained to say."""

    tokens_train: Literal["completion", "all"]
    """Whether the tokens of the prompt train too."""
    ordinary_ids: Sequence[int]
    eos_id: int

    def trained_tokens(self, examples: Sequence[Example]) -> list[tuple[list[int], list[int]]]:
        """Return the ids of each example's row without padding, and 1 for each that is a target, in their order."""
        ...


@runtime_checkable
class DefaultSampling(Protocol):
    """Sampling as the stack configures it by default, from a policy that is the same after every token."""

    default_temperature: float
    """By which the loss divides logits, at the stack's defaults."""

    def sample_with_defaults(self, logits_V: Tensor, num_tokens: int, seed: int) -> list[int]:
        """Return ids that the stack's rollout sampled where every next token has these logits."""
        ...
