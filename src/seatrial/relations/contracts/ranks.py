"""Contracts of training with rows distributed over several processes: what each of them has after averaging.

Part of `seatrial.relations.contracts`, which lists every component. Whole layouts of one stack, with several kinds of
parallelism: `parallel_training` there. `seatrial.targets.common.ranks` starts processes for an adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.records import LossInputs, LossSpec, StepResult

if TYPE_CHECKING:
    from torch import Tensor

Layout = Sequence[Sequence[Sequence[int]]]
"""Numbers of rows by rank and micro-batch; every rank has as many micro-batches."""


@runtime_checkable
class Ranks(Protocol):
    """A trainer of examples in several processes; what it computes is what `Objective` says."""

    objective_spec: ObjectiveSpec
    ordinary_ids: Sequence[int]
    eos_id: int

    def objective_model(self) -> Any:
        """See `Objective`."""
        ...

    def objective_reference(self) -> Any | None:
        """See `Objective`."""
        ...

    def objective_logits(self, model: Any, ids_S: Tensor) -> Tensor:
        """See `Objective`."""
        ...

    def objective_on_ranks(self, examples: Sequence[Example], layout: Layout) -> Sequence[StepResult]:
        """Train one optimizer batch in as many processes as the layout has; return what each has, in their order.

        Gradients are raw, as the optimizer of that process gets them, so that they are averaged or summed as
        the stack does. `loss` and `metrics` are what it logs; a process that logs nothing has NaN and no metrics, and
        the first one logs.
        """
        ...


@runtime_checkable
class RankedLoss(Protocol):
    """The policy loss where every rank sees its own rows; what it claims to be is in the attribute `loss_spec`."""

    loss_spec: LossSpec
    ranks_reduce: Literal["mean", "sum"]
    """What the stack makes of the ranks' gradients."""

    def ranked_losses(self, ranks: Sequence[Sequence[LossInputs]]) -> Sequence[Sequence[Tensor]]:
        """Return for each rank the scalars that it calls backward on, one a micro-batch.

        The counts of every part are those of the whole batch, over all ranks; a stack that divides by another count
        takes that from the parts.
        """
        ...
