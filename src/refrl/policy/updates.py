"""The optimizer steps of one training batch, for every policy backend."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.algorithms.metrics import merge_metrics
from refrl.policy.base import LossFunction, Update
from refrl.policy.tensors import copied


def row_numbers(cut: Sequence[tuple[slice | list[int], Batch]], own_rows: Sequence[int]) -> list[list[int]]:
    """Return the rows of each micro-batch, numbered as in the whole batch."""
    return [
        list(own_rows[rows]) if isinstance(rows, slice) else [own_rows[row] for row in rows]
        for rows, _ in cut
    ]


def split_updates(batch: Batch, num_rows: int) -> list[tuple[int, Batch]]:
    """Cut a batch into parts of at most `num_rows` rows; return (first row, part) of each."""
    if batch.num_rows <= num_rows:
        return [(0, batch)]
    starts = range(0, batch.num_rows, num_rows)
    return [(start, batch.rows(slice(start, start + num_rows))) for start in starts]


Parts = list[dict[str, Tensor | float]]
"""Metrics of each micro-batch."""


@dataclass(frozen=True)
class Accumulated:
    """The result of accumulating the gradient of one optimizer step over its micro-batches and ranks."""

    parts: Parts
    """Metrics of each micro-batch of all ranks."""
    micro_batches: Sequence[Sequence[int]]
    """Rows of each, numbered as in the whole update; empty unless requested."""


class UpdatingPolicy(ABC):
    """The part of a `refrl.policy.base.Policy` that trains, on any backend."""

    _global_batch_size: int
    """Rows of an optimizer step."""

    @abstractmethod
    def accumulate(
        self,
        batch: Batch,
        loss: LossFunction,
        micro_batches: Sequence[Sequence[int]] | None = None,
        *,
        scores: bool = False,
        with_rows: bool = False,
    ) -> Accumulated:
        """Add up the gradients of all rows of one optimizer step.

        Args:
            batch: all rows of the step, on any device.
            loss: divides by the counts of the whole batch.
            micro_batches: rows of each pass, of those that this process has; None takes the configuration's.
            scores: the batch gets the log-probabilities of this pass as its `old_logprobs_BT`.
            with_rows: report the rows of each micro-batch, which costs one more exchange.
        """

    @abstractmethod
    def named_gradients(self) -> dict[str, Tensor]:
        """Return whole copies of the raw gradients (see `refrl.policy.base.Policy`)."""

    @abstractmethod
    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole weights (see `refrl.policy.base.Policy`)."""

    @abstractmethod
    def trained_weights(self) -> Mapping[str, Tensor]:
        """Return what training changes (see `refrl.policy.base.Policy`)."""

    @abstractmethod
    def step(self) -> tuple[float, float]:
        """Clip, update, clear the gradients (see `refrl.policy.base.Policy`)."""

    def gradients(
        self, batch: Batch, loss: LossFunction, micro_batches: Sequence[Sequence[int]] | None = None
    ) -> dict[str, float]:
        """Add up the gradient of one optimizer step (see `refrl.policy.base.Policy`)."""
        return merge_metrics(self.accumulate(batch, loss, micro_batches).parts)

    def train(
        self, batch: Batch, loss: LossFunction, watch: Callable[[Update], None] | None = None
    ) -> dict[str, float]:
        """Take one optimizer step per global batch of rows (see `take_updates`)."""
        return take_updates(self, batch, loss, watch, global_batch_size=self._global_batch_size)


def take_updates(
    policy: UpdatingPolicy,
    batch: Batch,
    loss: LossFunction,
    watch: Callable[[Update], None] | None,
    *,
    global_batch_size: int,
) -> dict[str, float]:
    """Take one optimizer step per global batch of rows, in their order.

    A step whose rows are all masked is left out. Stops at the first gradient norm that is not finite; that step
    changes no weight. A batch of one optimizer step that was not scored before (`old_logprobs_BT` is None) gets the
    values of the pass it is trained by: the weights are those that sampled it.

    Returns:
        The loss's metrics merged over micro-batches, ranks and steps; `grad_norm` (before clipping) and `lr`,
        their means over the steps.

    Raises:
        ValueError: no row has a token to train on.
        refrl.distributed.DivergenceError: weights that ranks hold alike are no longer the same.
    """
    parts: Parts = []
    norms: list[float] = []
    rates: list[float] = []
    for first_row, update in split_updates(batch, global_batch_size):
        if not update.num_valid_tokens:
            continue
        scores = update is batch and batch.old_logprobs_BT is None
        accumulated = policy.accumulate(update, loss, scores=scores, with_rows=watch is not None)
        parts += accumulated.parts
        gradients = {} if watch is None else policy.named_gradients()
        norm, rate = policy.step()
        norms.append(norm)
        rates.append(rate)
        if watch is not None:
            watch(
                Update(
                    first_row=first_row,
                    num_rows=update.num_rows,
                    gradients=gradients,
                    grad_norm=norm,
                    learning_rate=rate,
                    micro_batches=[[first_row + row for row in rows] for rows in accumulated.micro_batches],
                    weights=copied({**dict(policy.named_weights()), **policy.trained_weights()}),
                )
            )
        if not math.isfinite(norm):
            break
    if not norms:
        raise ValueError("every row of the batch is masked: there is nothing to train on")
    return {
        **merge_metrics(parts, num_updates=len(norms)),
        "grad_norm": sum(norms) / len(norms),
        "lr": sum(rates) / len(rates),
    }
