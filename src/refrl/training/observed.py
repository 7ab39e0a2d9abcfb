"""What a run shows of a step to whoever observes it: the objects that are trained on, not copies made for it."""

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
    """One step of a GRPO run, after it was logged."""

    step: int
    served: Sequence[Example]
    """Every prompt drawn for it, in order."""
    rollouts: Rollouts
    discarded: Rollouts | None
    """Rows that dynamic sampling sampled and left out; None where there are none."""
    fates: Sequence[GroupFate]
    """Asynchronous rollouts: groups that it trained on, and groups that were too old for it."""
    batch: Batch
    """As it was trained on: log-probabilities, advantages and masks included."""
    updates: Sequence[Update]
    """One per optimizer step; empty where the observer does not want gradients."""
    metrics: Mapping[str, float]
    """Scalars logged under `train/`."""


@dataclass(frozen=True, kw_only=True)
class TunedStep:
    """One step of an SFT run, after it was logged."""

    step: int
    batch: Batch
    """Prompts with their answers, as they were trained on."""
    updates: Sequence[Update]
    """One per optimizer step; empty where the observer does not want gradients."""
    metrics: Mapping[str, float]
    """Scalars logged under `train/`."""


class PassedBatch(NamedTuple):
    """A micro-batch in the training pass."""

    batch: Batch
    logprobs_BT: Tensor
    """With its gradient."""
    global_valid_tokens: Tensor
    """What its share of the loss is divided by, where tokens are averaged: a scalar."""
    global_valid_seqs: Tensor
    """The same, where sequences are."""
