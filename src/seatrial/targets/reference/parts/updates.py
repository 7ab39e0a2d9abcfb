"""How refrl cuts a step into micro-batches, and takes its updates, without a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.policy.base import LossFunction, Update
from refrl.policy.scoring import make_cuts
from refrl.policy.updates import Accumulated, UpdatingPolicy, take_updates
from seatrial.targets.reference.configuration import policy_configuration


def cuts(options: Mapping[str, Any], lengths: Sequence[tuple[int, int]]) -> dict[str, list[list[int]]]:
    """Return the rows of each micro-batch, of training and of scoring; trimmed columns are checked on the way."""
    batch = _batch(lengths, [1] * len(lengths))
    found = {}
    for name, cut in zip(("train", "score"), make_cuts(policy_configuration(options)), strict=True):
        parts = []
        for rows, micro in cut.micro_batches(batch):
            numbers = list(range(batch.num_rows))[rows] if isinstance(rows, slice) else list(rows)
            parts.append(numbers)
            if micro.input_ids_BS[:, 0].tolist() != [row + 1 for row in numbers]:
                parts.append(numbers)  # other rows than those that it names
        found[name] = parts
    return found


def _batch(lengths: Sequence[tuple[int, int]], trains: Sequence[int]) -> Batch:
    """Return rows that begin with their own number, counted from 1."""
    rows = [
        TrainSample(
            prompt_ids=(number + 1,) * prompt,
            completion_ids=(number + 1,) * completion,
            completion_mask=(trains[number],) * completion,
            sampling_logprobs=(-1.0,) * completion,
            reward=0.0,
            group_id=0,
        )
        for number, (prompt, completion) in enumerate(lengths)
    ]
    return make_batch(rows, pad_token_id=0)


class Taken(NamedTuple):
    """The updates of a step."""

    rows: list[list[int]]
    scores: list[bool]
    observed: list[tuple[int, list[int]]]
    """First row and rows of each update, as they are reported to an observer."""
    metrics: Mapping[str, float]


class _Counting(UpdatingPolicy):
    """A policy that keeps what it is asked for; the loss of an update is its number, in two micro-batches."""

    def __init__(self, norms: Sequence[float]) -> None:
        self._norms = list(norms)
        self.rows: list[list[int]] = []
        self.scores: list[bool] = []

    def accumulate(
        self,
        batch: Batch,
        loss: LossFunction,
        micro_batches: Sequence[Sequence[int]] | None = None,
        *,
        scores: bool = False,
        with_rows: bool = False,
    ) -> Accumulated:
        self.rows.append([int(first) - 1 for first in batch.input_ids_BS[:, 0]])
        self.scores.append(scores)
        number = float(len(self.rows))
        return Accumulated(
            [{"loss": number / 4}, {"loss": 3 * number / 4}],
            [list(range(batch.num_rows))] if with_rows else [],
        )

    def named_gradients(self) -> dict[str, Tensor]:
        return {}

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())

    def trained_weights(self) -> Mapping[str, Tensor]:
        return {"weight": torch.zeros(1)}

    def step(self) -> tuple[float, float]:
        number = len(self.rows)
        return self._norms[number - 1], 0.1 * number


def updates(trains: Sequence[int], size: int, norms: Sequence[float], scored: bool) -> Taken:
    """Take the updates of one step.

    Args:
        trains: of each row, whether it trains.
        size: rows of an update.
        norms: of the gradient of each update.
        scored: whether the rows have old log-probabilities.
    """
    batch = _batch([(2, 2)] * len(trains), trains)
    batch.old_logprobs_BT = torch.zeros_like(batch.mask_BT) if scored else None
    policy = _Counting(norms)
    observed: list[tuple[int, list[int]]] = []

    def watch(update: Update) -> None:
        observed.append((update.first_row, [row for rows in update.micro_batches for row in rows]))

    loss: Any = None
    metrics = take_updates(policy, batch, loss, watch, global_batch_size=size)
    return Taken(policy.rows, policy.scores, observed, metrics)
