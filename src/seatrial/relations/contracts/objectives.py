"""Contracts of objectives other than the policy loss: supervised and preference training, examples to raw gradients.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.records import StepResult

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Objective(Protocol):
    """A trainer of examples, on the adapter's own tiny model (fixed weights, no dropout)."""

    objective_spec: ObjectiveSpec
    ordinary_ids: Sequence[int]
    """Ids that texts are made of: no special ones."""
    eos_id: int

    def objective_model(self) -> Any:
        """Return the `torch.nn.Module` that training starts from; the laws copy it and change nothing."""
        ...

    def objective_reference(self) -> Any | None:
        """Return the frozen reference model; None where there is none."""
        ...

    def objective_logits(self, model: Any, ids_S: Tensor) -> Tensor:
        """Return the logits [S, V] of such a model, or of a copy in float64, for one sequence without padding.

        Of a reward model: scores [S, 1], or that of the whole sequence alone, [1, 1].
        """
        ...

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        """Return the logged loss and the raw gradients of one optimizer batch, in these micro-batches of examples."""
        ...
