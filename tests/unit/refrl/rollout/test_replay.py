"""The buffer between those who sample and those who train."""

import json
import random
from typing import Any

import pytest

from refrl.algorithms.schedule import Schedule
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout.replay import Group, ReplayBuffer, split_groups
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example


def schedule(max_staleness: int) -> Schedule:
    """Return a schedule that syncs after every step."""
    return Schedule(
        accumulation_steps=1, sync_every=1, reference_sync_every=None, max_staleness=max_staleness
    )


def rollouts(*prompt_ids: int, failed: tuple[bool, ...] = ()) -> Rollouts:
    """Return a row for each prompt id."""
    num = len(prompt_ids)
    flags = failed or (False,) * num
    return Rollouts(
        examples=[Example(prompt_id, f"p{prompt_id}", "a", "made") for prompt_id in prompt_ids],
        completions=[
            Completion((1, prompt), (2, 3), (-0.5, -1.0), "stop", ((2, 4), (3,)), 5, ((0, 5), (1, 6)))
            for prompt in prompt_ids
        ],
        texts=[f"t{number}" for number in range(num)],
        scores=Scores([0.5] * num, sum(flags), "row 0: broken" if any(flags) else None, failed=list(flags)),
    )


def group(number: int, weight_step: int) -> Group:
    """Return a group of two rows."""
    return Group(number=number, weight_step=weight_step, rollouts=rollouts(number, number))


def numbers(groups: Any) -> list[int]:
    """Return the numbers of groups."""
    return [one.number for one in groups]


@pytest.mark.parametrize("age", [0, 1, 2, 3])
def test_the_window_is_inclusive(age: int) -> None:
    """A group that is as old as the bound says is trained on; one that is a step older is not."""
    buffer = ReplayBuffer(schedule(2), capacity=4)
    assert buffer.add(group(0, 10), trained_steps=10) == "added"
    stale = buffer.evict(trained_steps=10 + age)
    assert numbers(stale) == ([0] if age > 2 else [])
    taken = buffer.take(1, trained_steps=10 + age)
    assert (taken is None) == (age > 2)


def test_groups_are_taken_in_order_and_once() -> None:
    """Whatever the order in which they came."""
    buffer = ReplayBuffer(schedule(1), capacity=8)
    for number in (2, 0, 3, 1):
        assert buffer.add(group(number, 0), trained_steps=0) == "added"
    assert numbers(buffer.take(2, trained_steps=0)) == [0, 1]
    assert numbers(buffer.take(2, trained_steps=1)) == [2, 3]
    assert buffer.take(1, trained_steps=1) is None


def test_too_few_groups_are_left_where_they_are() -> None:
    """A step waits; it does not train on a part, nor on something else."""
    buffer = ReplayBuffer(schedule(1), capacity=8)
    buffer.add(group(0, 0), trained_steps=0)
    assert buffer.take(2, trained_steps=0) is None
    assert numbers(buffer.remaining()) == [0]


def test_a_group_comes_in_once() -> None:
    """Neither while it is held, nor after it was taken, nor after it was evicted."""
    buffer = ReplayBuffer(schedule(0), capacity=8)
    assert buffer.add(group(1, 0), trained_steps=0) == "added"
    assert buffer.add(group(1, 0), trained_steps=0) == "duplicate"
    buffer.take(1, trained_steps=0)
    assert buffer.add(group(1, 1), trained_steps=1) == "duplicate"
    assert buffer.add(group(0, 1), trained_steps=1) == "added"
    buffer.evict(trained_steps=2)
    assert buffer.add(group(0, 2), trained_steps=2) == "duplicate"
    assert buffer.watermark == 2


def test_a_full_buffer_says_so_and_changes_nothing() -> None:
    """After a step there is room again."""
    buffer = ReplayBuffer(schedule(1), capacity=2)
    for number in range(2):
        buffer.add(group(number, 0), trained_steps=0)
    assert buffer.add(group(2, 0), trained_steps=0) == "full"
    assert numbers(buffer.remaining()) == [0, 1]
    buffer.take(1, trained_steps=0)
    assert buffer.add(group(2, 0), trained_steps=0) == "added"


def test_a_group_of_weights_that_do_not_exist_is_refused() -> None:
    """A one-sided window would take it for fresh for ever."""
    buffer = ReplayBuffer(schedule(1), capacity=2)
    with pytest.raises(ValueError, match="sample of weight version 3, trainer at 2"):
        buffer.add(group(0, 3), trained_steps=2)
    assert len(buffer) == 0


def test_a_stale_group_does_not_come_in() -> None:
    """No step could train on it any more."""
    buffer = ReplayBuffer(schedule(1), capacity=2)
    assert buffer.add(group(0, 0), trained_steps=2) == "stale"


def test_a_step_is_not_taken_over_stale_groups() -> None:
    """They are evicted by name first, so that they are counted."""
    buffer = ReplayBuffer(schedule(1), capacity=2)
    buffer.add(group(0, 0), trained_steps=0)
    with pytest.raises(ValueError, match=r"groups \[0\] are too old after 2 steps"):
        buffer.take(1, trained_steps=2)


def test_a_restored_buffer_goes_on_where_the_saved_one_was() -> None:
    """Through JSON: same groups, same order, same watermark, whole completions."""
    buffer = ReplayBuffer(schedule(2), capacity=8)
    for number in range(5):
        buffer.add(group(number, number // 2), trained_steps=2)
    buffer.take(2, trained_steps=2)
    again = ReplayBuffer(schedule(2), capacity=8)
    assert again.restore(json.loads(json.dumps(buffer.state())), trained_steps=2) == []
    assert again.remaining() == buffer.remaining()
    assert again.watermark == 2
    assert again.add(group(1, 2), trained_steps=2) == "duplicate"


def test_what_is_too_old_at_a_restore_is_returned() -> None:
    """The trainer may be further than the buffer was."""
    buffer = ReplayBuffer(schedule(1), capacity=8)
    for number in range(4):
        buffer.add(group(number, number // 2), trained_steps=1)
    again = ReplayBuffer(schedule(1), capacity=2)
    with pytest.raises(ValueError, match="4 groups do not fit"):
        again.restore(buffer.state(), trained_steps=1)
    assert numbers(again.restore(buffer.state(), trained_steps=2)) == [0, 1]
    assert numbers(again.take(2, trained_steps=2)) == [2, 3]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: state.pop("watermark"), "lacks watermark"),
        (lambda state: state["groups"].append(state["groups"][0]), "each must be there once"),
        (lambda state: state.update(watermark=9), "must not have been trained on"),
        (lambda state: state["groups"][0]["texts"].pop(), "columns of lengths"),
        (lambda state: state["groups"][0].update(weight_step=7), "sample of weight version 7"),
    ],
)
def test_a_damaged_state_is_refused_whole(damage: Any, message: str) -> None:
    """Nothing of it comes in."""
    buffer = ReplayBuffer(schedule(1), capacity=8)
    for number in range(2):
        buffer.add(group(number, 0), trained_steps=0)
    state = json.loads(json.dumps(buffer.state()))
    damage(state)
    again = ReplayBuffer(schedule(1), capacity=8)
    with pytest.raises(ValueError, match=message):
        again.restore(state, trained_steps=0)
    assert len(again) == 0
    assert again.watermark == 0


def test_no_group_is_lost_or_used_twice_on_random_schedules() -> None:
    """Every group that came in is taken once, evicted once, or still held; none that was taken was too old."""
    for seed in range(200):
        draw = random.Random(seed)
        window = draw.randint(0, 3)
        buffer = ReplayBuffer(schedule(window), capacity=draw.randint(1, 9))
        came, left, weights, steps, number = [], [], 0, 0, 0
        for _ in range(60):
            action = draw.random()
            if action < 0.5:
                offered = draw.randint(max(0, number - 3), number)
                if buffer.add(group(offered, weights), trained_steps=steps) == "added":
                    came.append(offered)
                number += offered == number
            elif action < 0.8:
                left += numbers(buffer.evict(trained_steps=steps))
                taken = buffer.take(draw.randint(1, 3), trained_steps=steps)
                if taken is not None:
                    assert all(steps - one.weight_step <= window for one in taken), f"seed {seed}"
                    left += numbers(taken)
                    steps += 1
            else:
                weights = steps
        held = numbers(buffer.remaining())
        assert sorted(came) == sorted(left + held), f"seed {seed}"
        assert len(set(came)) == len(came), f"seed {seed}"


def test_rows_of_a_prompt_become_a_group_with_its_own_errors() -> None:
    """A verifier's error is counted where it happened, so that joined groups count it once."""
    first, second = split_groups(rollouts(7, 7, 8, 8, failed=(True, False, False, False)), 2)
    assert [example.prompt_id for example in first.examples] == [7, 7]
    assert (first.scores.num_errors, second.scores.num_errors) == (1, 0)
    assert (first.scores.first_error, second.scores.first_error) == ("row 0: broken", None)


def test_a_prompt_that_was_drawn_twice_has_two_groups() -> None:
    """One fewer than the step needs would be waited for for ever."""
    assert [len(one.examples) for one in split_groups(rollouts(7, 7, 7, 7), 2)] == [2, 2]


def test_rows_of_several_prompts_are_no_group() -> None:
    """Their rewards would be compared."""
    with pytest.raises(ValueError, match=r"prompts \[7, 8\]"):
        split_groups(rollouts(7, 8, 7, 8), 2)
