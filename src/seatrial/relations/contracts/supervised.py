"""Contract of supervised training of any head: classes of rows or of tokens, masked tokens, encoder and decoder.

Part of `seatrial.relations.contracts`, which lists every component. Language models and pairs: `objectives` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from seatrial.relations.records import StepResult

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SupervisedSpec:
    """What the stack says that it minimises: the mean cross-entropy over all items of an optimizer batch."""

    num_examples: int = 8
    """The first half has items of equal numbers."""
    smoothing: float = 0.0
    """Share of the target that is spread evenly over all classes."""
    items: str = "tokens"
    """What an item is: one of an example's `tokens`, or the example (`rows`)."""


@runtime_checkable
class SupervisedStep(Protocol):
    """A trainer with one model, on the adapter's own examples, which are numbered from 0."""

    supervised_spec: SupervisedSpec

    def supervised_model(self) -> Any:
        """Return the `torch.nn.Module` that training starts from; the laws copy it and change nothing."""
        ...

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[int]]:
        """Return logits [N, V] of the items of one example without padding, and their classes, of such a model."""
        ...

    def supervised_step(self, micro_batches: Sequence[Sequence[int]]) -> StepResult:
        """Return the logged loss and the raw gradients of one optimizer batch, in these micro-batches of examples."""
        ...
