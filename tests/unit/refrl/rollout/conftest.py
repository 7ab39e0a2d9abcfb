"""Rollouts of made rows, and a buffer over a data plane of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from refrl.config import DataPlaneConfig
from refrl.data_plane import DataPlaneClient, build_data_plane_client
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.replay import ReplayBuffer
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example


@pytest.fixture
def client() -> DataPlaneClient:
    return build_data_plane_client(DataPlaneConfig())


@pytest.fixture
def make_rollouts() -> Callable[..., Rollouts]:
    """Return a function that gives a row for each prompt id, no two of the same length."""

    def make(prompt_ids: Sequence[int], *, version: int = 0, rewards: Sequence[float] = ()) -> Rollouts:
        num = len(prompt_ids)
        return Rollouts(
            examples=[Example(prompt, f"p{prompt}", "a", "made") for prompt in prompt_ids],
            completions=[
                Completion(
                    prompt_ids=(prompt, *range(row)),
                    ids=tuple(range(1 + row)),
                    logprobs=tuple(-0.1 * token for token in range(1 + row)),
                    finish_reason="stop",
                    weight_version=version,
                )
                for row, prompt in enumerate(prompt_ids)
            ],
            texts=[f"t{row}" for row in range(num)],
            scores=Scores(list(rewards) or [0.5] * num, 0, None, failed=[False] * num),
        )

    return make


@pytest.fixture
def make_buffer(client: DataPlaneClient) -> Callable[..., ReplayBuffer]:
    """Return a function that gives a buffer of groups of two, of which a step takes two."""

    def make(**words: Any) -> ReplayBuffer:
        given = {"groups_per_step": 2, "group_size": 2, "capacity": 6, "timeout_s": 0.0, **words}
        return ReplayBuffer(client, **given)

    return make
