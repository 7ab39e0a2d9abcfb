"""An asynchronous run that is ended goes on with the rollouts that waited for their step, as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from refrl.checkpointing.layout import whole_checkpoints
from refrl.config import ConfigError, GRPORunConfig, load_config
from refrl.training.grpo import run_grpo

from .conftest import CONFIGS
from .test_async_grpo import ASYNC, fates
from .test_grpo_run import rows

Overrides = Callable[[str], list[str]]
STEPS = 4
STOP = "checkpointing.checkpoint_must_save_by=00:00:00:00"
"""Ends every attempt after one step."""


def configure(overrides: list[str], *more: str) -> GRPORunConfig:
    """Return a short run, two steps ahead."""
    words = [
        *overrides,
        *ASYNC,
        "grpo.val_at_end=false",
        f"grpo.max_num_steps={STEPS}",
        "grpo.async_grpo.max_trajectory_age_steps=2",
        "checkpointing.save_period=1",
        *more,
    ]
    return load_config(GRPORunConfig, CONFIGS / "grpo-smoke.yaml", words)


WIDE = "data.task_args={max_length: 3, alphabet_size: 8}"
"""A task with more words than the recipe's."""


@pytest.mark.parametrize(
    "more", [(), ("grpo.use_dynamic_sampling=true", "data.num_train=64", WIDE, "policy.generation.top_k=20")]
)
def test_a_run_in_parts_is_the_run_in_one(overrides: Overrides, more: tuple[str, ...]) -> None:
    """Rows, fates of groups, and the order of the prompts, bit for bit."""
    whole, parts = configure(overrides("a"), *more), configure(overrides("b"), STOP, *more)
    run_grpo(whole)
    for step in range(1, STEPS + 1):
        run_grpo(parts)
        assert len(whole_checkpoints(Path(parts.checkpointing.checkpoint_dir))) == step
    for step in range(1, STEPS + 1):
        assert rows(parts, step) == rows(whole, step)
        assert fates(parts, "group_data", step) == fates(whole, "group_data", step)
    assert {row["weight_version"] for row in rows(parts, STEPS)} == {1}


def test_what_waited_is_taken_up_where_nothing_more_is_saved(overrides: Overrides) -> None:
    whole = configure(overrides("a"))
    run_grpo(whole)
    run_grpo(configure(overrides("b"), STOP))
    rest = configure(overrides("b"), "checkpointing.save_period=0")
    run_grpo(rest)
    for step in range(2, STEPS + 1):
        assert rows(rest, step) == rows(whole, step)
        assert fates(rest, "group_data", step) == fates(whole, "group_data", step)


def test_weights_that_change_in_flight_leave_no_moment_to_save(overrides: Overrides) -> None:
    with pytest.raises(ConfigError, match="something is always being sampled"):
        configure(overrides("a"), "grpo.async_grpo.in_flight_weight_updates=true")
