"""Contract of supervised training of any head: classes of rows or of tokens, masked tokens, encoder and decoder.

Part of `seatrial.relations.contracts`, which lists every component. Language models and pairs: `objectives` there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case
from seatrial.relations.records import StepResult

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SupervisedSpec:
    """What the stack says that it minimises: the mean loss over all items of an optimizer batch."""

    num_examples: int = 8
    """The first half has items of equal numbers."""
    smoothing: float = 0.0
    """Share of the target that is spread evenly over all classes."""
    items: str = "tokens"
    """What an item is: one of an example's `tokens`, or the example (`rows`)."""
    loss: Literal["classes", "numbers", "labels"] = "classes"
    """Of an item: the cross-entropy; the mean of squared errors over its outputs; or the mean of the cross-entropies of
    labels that are each on or off."""
    balance: float = 0.0
    """Weight of the routers' load-balancing loss, a mean over micro-batches, which is added once. The adapter then has
    a method `supervised_balance(model, examples)` that returns that of some examples together."""


@runtime_checkable
class SupervisedStep(Protocol):
    """A trainer with one model, on the adapter's own examples, which are numbered from 0."""

    supervised_spec: SupervisedSpec

    def supervised_model(self) -> Any:
        """Return the `torch.nn.Module` that training starts from; the laws copy it and change nothing."""
        ...

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[Any]]:
        """Return outputs [N, V] of the items of one example without padding, and their targets, of such a model.

        A target is the number of a class; for other losses than that of classes it is V numbers.
        """
        ...

    def supervised_step(self, micro_batches: Sequence[Sequence[int]]) -> StepResult:
        """Return the logged loss and the raw gradients of one optimizer batch, in these micro-batches of examples."""
        ...


@dataclass(frozen=True, kw_only=True)
class EpochsPlan(Case):
    """A run over epochs whose last update may have fewer micro-batches; a made input."""

    num_examples: int = 8
    """The first ones of the adapter's."""
    batch_size: int = 1
    """Of a micro-batch; the last one of an epoch has the rest."""
    num_micro_batches: int = 3
    """Of an update; the last one of an epoch has the rest."""
    num_epochs: float = 2
    num_steps: int | None = None
    """Updates after which the run ends, in place of a number of epochs."""
    seed: int = 0

    def smaller(self) -> Iterator[EpochsPlan]:
        """Yield the run of one epoch."""
        if self.num_epochs > 1 and self.num_steps is None:
            yield replace(self, num_epochs=1)

    @property
    def epoch(self) -> list[list[int]]:
        """Sizes of the micro-batches of each update of an epoch."""
        sizes = [
            min(self.batch_size, self.num_examples - start)
            for start in range(0, self.num_examples, self.batch_size)
        ]
        return [
            sizes[start : start + self.num_micro_batches]
            for start in range(0, len(sizes), self.num_micro_batches)
        ]

    @property
    def updates(self) -> list[list[int]]:
        """Sizes of the micro-batches of each update of the run."""
        epoch = self.epoch
        number = math.ceil(self.num_epochs * len(epoch)) if self.num_steps is None else self.num_steps
        return [epoch[place % len(epoch)] for place in range(number)]


class SupervisedUpdate(NamedTuple):
    """What is seen of one update; weights stay as they are."""

    micro_batches: tuple[tuple[int, ...], ...]
    """Numbers of the examples."""
    step: StepResult
    """Logged loss and raw gradients."""


@runtime_checkable
class SupervisedRun(Protocol):
    """Runs of such a trainer over epochs, in the order that it chooses."""

    supervised_spec: SupervisedSpec

    def supervised_model(self) -> Any:
        """See `SupervisedStep`."""
        ...

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[Any]]:
        """See `SupervisedStep`."""
        ...

    def supervised_run(self, plan: EpochsPlan) -> Sequence[SupervisedUpdate]:
        """Return the updates of a run whose optimizer moves nothing."""
        ...


@dataclass(frozen=True, kw_only=True)
class EvaluatedPlan(Case):
    """An evaluation; a made input."""

    num_examples: int = 7
    """The first ones of the adapter's."""
    batch_size: int = 3
    in_parts: int | None = None
    """Batches after which what is gathered is put aside; None: once, at the end."""
    loss_alone: bool = False


class Evaluated(NamedTuple):
    """What an evaluation gives."""

    loss: float
    outputs: Sequence[Tensor]
    """[N, V] of the items of each row that a metric is given, in their order; empty if it is given none."""
    targets: Sequence[Sequence[Any]]
    """Of the same."""


@runtime_checkable
class SupervisedEvaluation(Protocol):
    """Evaluations of such a trainer."""

    supervised_spec: SupervisedSpec

    @property
    def gives_items(self) -> bool:
        """Whether outputs and targets of a metric can be compared; else the loss alone is."""
        ...

    def supervised_model(self) -> Any:
        """See `SupervisedStep`."""
        ...

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[Any]]:
        """See `SupervisedStep`."""
        ...

    def supervised_evaluation(self, plan: EvaluatedPlan) -> Evaluated:
        """Return what an evaluation of the first examples gives, in their order."""
        ...
