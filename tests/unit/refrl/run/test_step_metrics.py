"""Metrics of a step, worked out by hand."""

import pytest
import torch

from refrl.algorithms.batching import TrainSample, make_batch
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example
from refrl.training.performance import performance_metrics
from refrl.training.step_records import advantage_metrics, baseline_metrics


def test_advantages_are_averaged_over_sampled_tokens() -> None:
    """A long completion counts for each of its tokens; tokens that were not sampled do not count."""
    batch = make_batch(
        [
            TrainSample((1,), (2, 3, 4), (-1.0, -1.0, -1.0), 0.0, 0, advantage=2.0),
            TrainSample((1,), (2, 3), (-1.0, -1.0), 0.0, 0, completion_mask=(1, 0), advantage=-1.0),
        ],
        pad_token_id=0,
    )
    metrics = advantage_metrics(batch)
    assert metrics == {
        "advantages/mean": pytest.approx((3 * 2.0 - 1.0) / 4),
        "advantages/min": -1.0,
        "advantages/max": 2.0,
    }


def test_advantages_are_required() -> None:
    """Nothing stands in for them."""
    batch = make_batch([TrainSample((1,), (2,), (-1.0,), 0.0, 0)], pad_token_id=0)
    with pytest.raises(ValueError, match="advantages_B"):
        advantage_metrics(batch)


def test_baselines_are_told_by_group_wherever_its_rows_stand() -> None:
    """Group 7 all wrong, group 3 all right, group 5 mixed: 2, 2 and 4 of 8 rows."""
    rewards = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.5, 0.0])
    groups = torch.tensor([7, 3, 5, 7, 3, 5, 5, 5])
    assert baseline_metrics(rewards, groups) == {
        "baseline_reward/pct_0": 0.25,
        "baseline_reward/pct_1": 0.25,
        "baseline_reward/pct_mixed": 0.5,
    }


def test_rates_divide_by_the_phase_they_are_of() -> None:
    """A phase that did not happen has no rate; the rate of a GPU is that of one of two processes."""
    rates = performance_metrics(
        {"total_step_time": 2.0, "generation": 0.5},
        num_samples=8,
        num_tokens=100.0,
        num_generated=20.0,
        num_processes=2,
    )
    assert rates == {
        "samples_per_sec": 4.0,
        "tokens_per_sec": 50.0,
        "tokens_per_sec_per_gpu": 25.0,
        "generation_tokens_per_sec": 40.0,
        "generation_tokens_per_sec_per_gpu": 20.0,
    }


def test_rollout_metrics() -> None:
    """Three completions: lengths 1, 2 and 4, one of them cut off."""
    example = Example(prompt_id=1, prompt="p", answer="a", task="reverse")
    completions = [
        Completion(prompt_ids=(1, 2), ids=(3,), logprobs=(-1.0,), finish_reason="stop"),
        Completion(prompt_ids=(1, 2, 3), ids=(3, 4), logprobs=(-1.0, -1.0), finish_reason="stop"),
        Completion(prompt_ids=(1,), ids=(3, 4, 5, 6), logprobs=(-1.0,) * 4, finish_reason="length"),
    ]
    scores = Scores(rewards=[1.0, 0.0, 0.5], num_errors=1, first_error="row 1")
    assert Rollouts([example] * 3, completions, ["a", "b", "c"], scores).metrics() == {
        "reward": 0.5,
        "mean_prompt_length": 2.0,
        "mean_gen_tokens_per_sample": pytest.approx(7 / 3),
        "max_gen_tokens_per_sample": 4.0,
        "mean_total_tokens_per_sample": pytest.approx(13 / 3),
        "total_num_tokens": 13.0,
        "truncation_rate": pytest.approx(1 / 3),
        "natural_termination_rate": pytest.approx(2 / 3),
        "num_verifier_errors": 1.0,
    }
