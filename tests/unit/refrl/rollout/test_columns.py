"""Rollouts go through the data plane and come back equal, in every form that they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from refrl.data_plane import DataPlaneClient, KVBatchMeta, kv_first_write, read_columns
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.columns import FIELDS, from_columns, to_columns, to_tags
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example

MakeRollouts = Callable[..., Rollouts]


def through(client: DataPlaneClient, rollouts: Rollouts) -> Rollouts:
    """Return rollouts as a trainer reads them."""
    samples = [f"s{row}" for row in range(len(rollouts.examples))]
    client.register_partition("rollouts", FIELDS, 64, ["train"])
    kv_first_write(to_columns(rollouts), samples, client, "rollouts")
    meta = KVBatchMeta(partition_id="rollouts", sample_ids=samples)
    return from_columns(read_columns(client, meta, FIELDS, layout="jagged"))


ROWS = [
    Completion((1,), (2, 3), (-0.1, -1e-30), "stop"),
    Completion((1, 9), (2,), (float(2**-149),), "length", weight_version=3),
    Completion((1,), (2, 3, 4), (0.0, 0.0, -2.5), "stop", None, 5, ((0, 5), (2, 6)), (1, 0, 1)),
    Completion((7,), (2, 3), (-0.5, -1.0), "stop", ((2, 4, 151_935), (3,)), 1),
    Completion((7,), (2,), (-0.5,), "stop", ((),), 1, (), (0,)),
]
"""One of each form: plain; a log-probability that no float32 short of the smallest holds; several versions and turns;
the ids that a filter kept; a filter that kept none, on a token that was not sampled."""


def test_every_form_of_a_completion_comes_back_as_it_was(client: DataPlaneClient) -> None:
    rollouts = Rollouts(
        examples=[
            Example(2**63 - 1, "ä\ud800\n", "", "made"),
            *(Example(row, "p", "a", "code", "x = 1") for row in range(4)),
        ],
        completions=ROWS,
        texts=["", "\x00", "🙂", '"', "e"],
        scores=Scores([0.0, 1.0, 0.1, 1 / 3, 0.5], 0, None, failed=[False] * 5),
    )
    assert through(client, rollouts) == rollouts


def test_rewards_before_and_after_shaping_come_back(
    client: DataPlaneClient, make_rollouts: MakeRollouts
) -> None:
    scores = Scores([0.5, -0.5], 0, None, penalties=[0.0, -1.0], failed=[False, False], unshaped=[0.5, 0.5])
    rollouts = replace(make_rollouts([1, 1]), scores=scores)
    assert through(client, rollouts).scores == scores


def test_errors_of_the_verifier_come_back_with_their_rows(
    client: DataPlaneClient, make_rollouts: MakeRollouts
) -> None:
    scores = Scores([0.0, 0.5, 0.0], 2, "row 0: broken", failed=[True, False, True])
    rollouts = replace(make_rollouts([1, 1, 1]), scores=scores)
    assert through(client, rollouts).scores == scores
    assert rollouts.rows([1]).scores == Scores([0.5], 0, None, failed=[False])


def test_a_group_is_as_old_as_its_oldest_row_and_is_judged_before_shaping(
    make_rollouts: MakeRollouts,
) -> None:
    old, new = make_rollouts([8, 8], version=3), make_rollouts([9, 9], version=4)
    rollouts = Rollouts(
        [*new.examples, *new.examples],
        [new.completions[0], old.completions[1], *new.completions],
        ["a"] * 4,
        Scores([-1.0] * 4, 0, None, [-1.0] * 4, [False] * 4, unshaped=[0.0, 0.1, 0.2, 0.3]),
    )
    tags = to_tags(rollouts, [5, 5, 6, 6])
    assert [tag["weight_version"] for tag in tags] == [3, 3, 4, 4]
    assert [tag["reward"] for tag in tags] == [0.0, 0.1, 0.2, 0.3]
    assert [tag["group_id"] for tag in tags] == [5, 5, 6, 6]
    assert {tag["prompt_id"] for tag in tags} == {9}


@pytest.mark.parametrize("field", ["input_ids", "generation_logprobs", "token_mask", "kept_ids"])
def test_nothing_is_shared_with_what_was_put(client: DataPlaneClient, field: str) -> None:
    """Who reads may write into what was read; nobody else sees it (R27)."""
    rollouts = Rollouts(
        [Example(1, "p", "a", "made")], [ROWS[2]], ["t"], Scores([0.0], 0, None, failed=[False])
    )
    before = through(client, rollouts)
    meta = KVBatchMeta(partition_id="rollouts", sample_ids=["s0"])
    read_columns(client, meta, FIELDS, layout="jagged")[field][0].fill_(9)
    assert from_columns(read_columns(client, meta, FIELDS, layout="jagged")) == before == rollouts
