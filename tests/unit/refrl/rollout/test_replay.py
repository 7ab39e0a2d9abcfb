"""What lies between those who sample and those who train, over a data plane."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from refrl.config import DataPlaneConfig
from refrl.data_plane import (
    DataPlaneClient,
    PartitionFullError,
    StalenessFilter,
    StoreUnavailableError,
    build_data_plane_client,
)
from refrl.errors import TrainingError
from refrl.rollout.replay import PARTITION, Group, ReplayBuffer
from refrl.rollout.sync import Rollouts

MakeRollouts = Callable[..., Rollouts]
MakeBuffer = Callable[..., ReplayBuffer]


def take(buffer: ReplayBuffer, version: int = 0, dropped: list[int] | None = None) -> list[int]:
    """Train on the groups of a step, and return their numbers."""
    gone = [] if dropped is None else dropped
    return buffer.consume(
        lambda groups, rollouts: [group.number for group in groups],
        current_weight_version=version,
        on_drop=lambda name, groups: gone.extend(group.number for group in groups),
    )


def numbers(groups: list[Group]) -> list[int]:
    """Return the numbers of groups."""
    return [group.number for group in groups]


def test_groups_are_taken_in_order_and_once(make_buffer: MakeBuffer, make_rollouts: MakeRollouts) -> None:
    buffer = make_buffer()
    buffer.add(make_rollouts([1, 1, 2, 2, 3, 3]))
    buffer.add(make_rollouts([4, 4]))
    assert [take(buffer), take(buffer)] == [[0, 1], [2, 3]]
    with pytest.raises(TimeoutError, match="fewer than 4 samples"):
        take(buffer)


def test_a_step_gets_the_rows_that_were_put(make_buffer: MakeBuffer, make_rollouts: MakeRollouts) -> None:
    buffer, rollouts = make_buffer(), make_rollouts([1, 1, 2, 2], version=7)
    buffer.add(rollouts)
    groups, taken = buffer.consume(lambda *given: given, current_weight_version=7)
    assert taken == rollouts
    assert groups == [
        Group(number=0, prompt_id=1, weight_version=7),
        Group(number=1, prompt_id=2, weight_version=7),
    ]


def test_too_few_groups_are_left_where_they_are(make_buffer: MakeBuffer, make_rollouts: MakeRollouts) -> None:
    """A step waits; it does not train on a part, nor on something else."""
    buffer = make_buffer()
    buffer.add(make_rollouts([1, 1]))
    with pytest.raises(TimeoutError):
        take(buffer)
    assert len(buffer) == 1
    buffer.add(make_rollouts([2, 2]))
    assert take(buffer) == [0, 1]


@pytest.mark.parametrize("age", [0, 1, 2, 3])
def test_the_window_is_inclusive(make_buffer: MakeBuffer, make_rollouts: MakeRollouts, age: int) -> None:
    """A group that is as old as the bound says is trained on; one that is a version older is not."""
    buffer, dropped = make_buffer(filters=[StalenessFilter(2)], groups_per_step=1), []
    buffer.add(make_rollouts([1, 1], version=10))
    if age > 2:
        with pytest.raises(TimeoutError):
            take(buffer, 10 + age, dropped)
    else:
        assert take(buffer, 10 + age, dropped) == [0]
    assert dropped == ([0] if age > 2 else [])
    assert len(buffer) == 0


def test_others_take_the_place_of_groups_that_are_too_old(
    make_buffer: MakeBuffer, make_rollouts: MakeRollouts
) -> None:
    """What the filter leaves of a claim waits for them, and goes first."""
    buffer, dropped = make_buffer(filters=[StalenessFilter(1)]), []
    for version in (0, 1, 2):
        buffer.add(make_rollouts([version, version], version=version))
    assert take(buffer, 2, dropped) == [1, 2]
    assert dropped == [0]
    assert buffer.close() == []


def test_a_step_that_waits_asks_whether_there_is_still_somebody_to_wait_for(
    make_buffer: MakeBuffer, make_rollouts: MakeRollouts
) -> None:
    """And goes on when the groups are there."""
    buffer = make_buffer(timeout_s=float("inf"))
    buffer.add(make_rollouts([1, 1]))
    asked = []

    def wait() -> None:
        asked.append(len(buffer))
        if len(asked) == 2:
            buffer.add(make_rollouts([2, 2]))

    found = buffer.consume(lambda groups, rollouts: numbers(groups), current_weight_version=0, on_wait=wait)
    assert (found, asked) == ([0, 1], [1, 1])

    def nobody() -> None:
        raise TrainingError("the collector ended")

    with pytest.raises(TrainingError, match="the collector ended"):
        buffer.consume(lambda groups, rollouts: None, current_weight_version=0, on_wait=nobody)


def test_a_group_of_weights_that_do_not_exist_is_refused(
    make_buffer: MakeBuffer, make_rollouts: MakeRollouts
) -> None:
    """A one-sided window would take it for fresh for ever."""
    buffer = make_buffer(filters=[StalenessFilter(1)])
    buffer.add(make_rollouts([1, 1, 2, 2], version=3))
    with pytest.raises(ValueError, match="after the current one, 2"):
        take(buffer, 2)
    assert take(buffer, 3) == [0, 1]


def test_a_full_buffer_says_so_and_changes_nothing(
    make_buffer: MakeBuffer, make_rollouts: MakeRollouts
) -> None:
    """After a step there is room again, and the groups get the numbers that they would have had."""
    buffer = make_buffer(capacity=3)
    buffer.add(make_rollouts([1, 1, 2, 2, 3, 3]))
    with pytest.raises(PartitionFullError):
        buffer.add(make_rollouts([4, 4]))
    assert (len(buffer), buffer.next_number) == (3, 3)
    take(buffer)
    buffer.add(make_rollouts([4, 4]))
    assert take(buffer) == [2, 3]


def test_a_step_that_fails_leaves_its_groups_taken(
    make_buffer: MakeBuffer, make_rollouts: MakeRollouts
) -> None:
    """Nobody else trains on them, and the end of the run says that they are there."""
    buffer = make_buffer()
    buffer.add(make_rollouts([1, 1, 2, 2]))

    def diverges(groups: Any, rollouts: Any) -> None:
        raise FloatingPointError("the gradient is not finite")

    with pytest.raises(FloatingPointError):
        buffer.consume(diverges, current_weight_version=0)
    with pytest.raises(TimeoutError):
        take(buffer)
    with pytest.raises(TrainingError, match=r"4 samples .* taken and never cleared"):
        buffer.close()


def test_what_is_left_at_the_end_is_returned_and_nothing_stays(
    client: DataPlaneClient, make_buffer: MakeBuffer, make_rollouts: MakeRollouts
) -> None:
    buffer = make_buffer()
    buffer.add(make_rollouts([1, 1, 2, 2, 3, 3]))
    take(buffer)
    assert buffer.close() == [Group(number=2, prompt_id=3, weight_version=0)]
    assert client.partitions() == []


class Dead:
    """A client whose store died."""

    def register_partition(self, *words: Any, **options: Any) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        def dead(*words: Any, **options: Any) -> None:
            raise StoreUnavailableError("actor 'blocks' is dead")

        return dead


def test_the_loss_of_the_store_names_the_groups_that_are_lost(make_rollouts: MakeRollouts) -> None:
    buffer = ReplayBuffer(Dead(), groups_per_step=1, group_size=2, capacity=2)  # type: ignore[arg-type]
    lost = r"actor 'blocks' is dead; groups that were put and not trained on: 0, 1$"
    with pytest.raises(TrainingError, match=lost):
        buffer.add(make_rollouts([1, 1, 2, 2]))
    with pytest.raises(TrainingError, match=lost):
        take(buffer)


def test_a_restored_buffer_goes_on_where_the_saved_one_was(
    make_buffer: MakeBuffer, make_rollouts: MakeRollouts
) -> None:
    """Through JSON: same groups, same order, same rows."""
    buffer = make_buffer()
    for prompt in range(5):
        buffer.add(make_rollouts([prompt, prompt], version=prompt))
    take(buffer, 5)
    state = json.loads(json.dumps(buffer.state()))
    other = ReplayBuffer(
        build_data_plane_client(DataPlaneConfig()), groups_per_step=2, group_size=2, capacity=6, timeout_s=0.0
    )
    other.restore(state)
    assert (len(other), other.next_number) == (3, 5)
    for again in (buffer, other):
        again.add(make_rollouts([9, 9]))
    for _ in range(2):
        first, second = (
            one.consume(lambda *given: given, current_weight_version=5) for one in (buffer, other)
        )
        assert first == second
    assert numbers(first[0]) == [4, 5]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: state.pop("next_number"), "has no next_number"),
        (lambda state: state["groups"].append(state["groups"][0]), "each must be there once"),
        (lambda state: state.update(next_number=1), "have been put"),
        (lambda state: state["groups"][0]["texts"].pop(), "columns of lengths"),
    ],
)
def test_a_damaged_state_is_refused_whole(
    make_buffer: MakeBuffer, make_rollouts: MakeRollouts, damage: Any, message: str
) -> None:
    """Nothing of it comes in."""
    buffer = make_buffer()
    buffer.add(make_rollouts([1, 1, 2, 2]))
    state = json.loads(json.dumps(buffer.state()))
    damage(state)
    other = ReplayBuffer(
        build_data_plane_client(DataPlaneConfig()), groups_per_step=2, group_size=2, capacity=6
    )
    with pytest.raises(ValueError, match=message):
        other.restore(state)
    assert (len(other), other.next_number) == (0, 0)


def test_no_group_is_lost_or_used_twice_on_random_schedules(make_rollouts: MakeRollouts) -> None:
    """Every group that came in is taken once, dropped once, or still there; none that was taken was too old."""
    for seed in range(60):
        draw = random.Random(seed)
        window = draw.randint(0, 3)
        client = build_data_plane_client(DataPlaneConfig())
        buffer = ReplayBuffer(
            client,
            groups_per_step=draw.randint(1, 3),
            group_size=2,
            capacity=draw.randint(3, 9),
            filters=[StalenessFilter(window)],
            timeout_s=0.0,
        )
        left: list[int] = []
        version = weights = 0
        for _ in range(40):
            action = draw.random()
            if action < 0.5:
                try:
                    buffer.add(make_rollouts([7, 7], version=weights))
                except PartitionFullError:
                    weights = version
            elif action < 0.8:
                try:
                    groups = buffer.consume(
                        lambda groups, rollouts: groups,
                        current_weight_version=version,
                        on_drop=lambda name, groups, left=left: left.extend(numbers(groups)),
                    )
                except TimeoutError:
                    weights = version
                    continue
                assert all(version - group.weight_version <= window for group in groups), f"seed {seed}"
                left += numbers(groups)
                version += 1
            else:
                weights = version
        left += numbers(buffer.close())
        assert sorted(left) == list(range(buffer.next_number)), f"seed {seed}"
        assert PARTITION not in client.partitions()


def test_a_prompt_that_was_drawn_twice_has_two_groups(
    make_buffer: MakeBuffer, make_rollouts: MakeRollouts
) -> None:
    """One fewer than the step needs would be waited for for ever."""
    buffer = make_buffer()
    buffer.add(make_rollouts([7, 7, 7, 7]))
    assert take(buffer) == [0, 1]


@pytest.mark.parametrize(
    ("prompts", "message"), [([7, 8, 7, 8], r"prompts \[7, 8\]"), ([7, 7, 8], "no whole groups of 2")]
)
def test_rows_that_are_no_groups_are_refused(
    make_buffer: MakeBuffer, make_rollouts: MakeRollouts, prompts: list[int], message: str
) -> None:
    """Their rewards would be compared."""
    buffer = make_buffer()
    with pytest.raises(ValueError, match=message):
        buffer.add(make_rollouts(prompts))
    assert (len(buffer), buffer.next_number) == (0, 0)
