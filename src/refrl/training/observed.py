"""What a run passes to its observers: the tensors that are trained on, not copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.policy.base import Update
from refrl.rollout.collect import GroupFate
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example


@dataclass(frozen=True, kw_only=True)
class TrainedStep:
    """One GRPO step, after it was logged."""

    step: int
    served: Sequence[Example]
    """Every prompt drawn for the step, in order."""
    rollouts: Rollouts
    discarded: Rollouts | None
    """Rows that dynamic sampling sampled and discarded; None if there are none."""
    fates: Sequence[GroupFate]
    """Asynchronous rollouts: the groups that the step trained on, and those that were too old for it."""
    batch: Batch
    """The batch as trained on, with log-probabilities, advantages and masks."""
    updates: Sequence[Update]
    """One per optimizer step; empty if the observer does not need gradients."""
    metrics: Mapping[str, float]
    """Scalars logged under `train/`."""


@dataclass(frozen=True, kw_only=True)
class TunedStep:
    """One SFT step, after it was logged."""

    step: int
    batch: Batch
    """Prompts with their answers, as trained on."""
    updates: Sequence[Update]
    """One per optimizer step; empty if the observer does not need gradients."""
    metrics: Mapping[str, float]
    """Scalars logged under `train/`."""


class PassedBatch(NamedTuple):
    """A micro-batch in the training pass."""

    batch: Batch
    logprobs_BT: Tensor
    """Attached to the graph."""
    global_valid_tokens: Tensor
    """Divisor of the loss if it averages over tokens: a scalar."""
    global_valid_seqs: Tensor
    """Divisor of the loss if it averages over sequences: a scalar."""
