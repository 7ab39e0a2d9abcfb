"""Filters: which groups carry a signal, and what is dropped is counted."""

from __future__ import annotations

import math

import pytest
import torch

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import TrainSample, make_batch
from refrl.algorithms.filters import (
    DynamicSampling,
    groups_with_spread,
    mask_overlong,
)
from refrl.config import AdvantageConfig


def row(group: int, reward: float, *, prompt: int = 2, completion: int = 3) -> TrainSample:
    return TrainSample((1,) * prompt, (2,) * completion, (-1.0,) * completion, reward, group)


def test_groups_without_spread_are_those_whose_advantages_are_zero() -> None:
    rewards_B = torch.tensor([0.3, 1.0, 0.3, 0.0, 5.0, 0.3, 0.1])
    group_ids_B = torch.tensor([1, 2, 1, 2, 3, 1, 4])
    kept_B = groups_with_spread(rewards_B, group_ids_B)
    assert kept_B.tolist() == [False, True, False, True, False, False, False]
    advantages_B = compute_advantages(rewards_B, group_ids_B, AdvantageConfig())
    assert torch.equal(advantages_B != 0, kept_B)


def test_a_nan_reward_does_not_pass_as_spread() -> None:
    with pytest.raises(ValueError, match=r"rows \[1\]"):
        groups_with_spread(torch.tensor([1.0, math.nan]), torch.tensor([0, 0]))


def test_overlong_rows_leave_the_loss_and_the_counts_but_not_the_baseline() -> None:
    batch = make_batch([row(0, 1.0), row(0, 0.0), row(0, 0.5)], pad_token_id=0)
    masked = mask_overlong(batch, torch.tensor([False, True, False]))
    assert masked.mask_BT.sum(1).tolist() == [3, 0, 3]
    assert float(masked.num_valid_tokens) == 6
    assert float(masked.num_valid_seqs) == 2
    assert batch.mask_BT.sum() == 9
    assert torch.equal(masked.rewards_B, batch.rewards_B)


def test_dynamic_sampling_fills_a_step_and_counts_the_rest() -> None:
    step = DynamicSampling(num_groups=2, max_generation_batches=3)
    assert not step.add([row(1, 1.0), row(2, 0.0), row(1, 0.0), row(2, 0.0)])
    assert step.add([row(3, 0.0), row(3, 1.0), row(4, 1.0), row(4, 0.0), row(5, 1.0), row(5, 1.0)])
    assert [sample.group_id for sample in step.kept] == [1, 1, 3, 3]
    assert step.num_generation_batches == 2
    assert step.num_dropped_groups == 2
    assert step.num_discarded_valid_samples == 2


def test_dynamic_sampling_is_full_with_exactly_what_it_needs() -> None:
    step = DynamicSampling(num_groups=2, max_generation_batches=1)
    assert step.add([row(1, 1.0), row(2, 0.0), row(1, 0.0), row(2, 1.0)])
    assert step.num_discarded_valid_samples == 0


def test_dynamic_sampling_does_not_wait_for_ever() -> None:
    step = DynamicSampling(num_groups=1, max_generation_batches=2)
    assert not step.add([row(1, 1.0), row(1, 1.0)])
    with pytest.raises(RuntimeError, match=r"2 generation batches gave 0 of 1 groups .*2 dropped"):
        step.add([row(2, 0.0), row(2, 0.0)])
