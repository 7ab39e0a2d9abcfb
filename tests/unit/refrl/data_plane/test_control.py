"""Leases, groups and the journal of the shared state, under a clock that is set by hand."""

from typing import Any

import pytest

from refrl.data_plane import LeaseExpiredError
from refrl.data_plane.control import ControlState
from refrl.data_plane.partition import PartitionSpec
from refrl.data_plane.records import NewBlock


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock) -> ControlState:
    state = ControlState(clock)
    state.register("p", spec())
    return state


def spec(**words: Any) -> PartitionSpec:
    return PartitionSpec(**{"fields": ("x", "y"), "num_samples": 99, "consumer_tasks": ("t", "u"), **words})


def publish(state: ControlState, *samples: str, field: str = "x", block: str | None = None) -> None:
    name = block or f"{field}:{','.join(samples)}"
    state.publish("p", list(samples), [NewBlock(field, name, "int64", 8 * len(samples))], None)


def claim(
    state: ControlState, lease: str = "l", task: str = "t", most: int = 99, seconds: float = 10
) -> list[str]:
    return state.claim("p", task, ["x"], lease, most=most, least=1, seconds=seconds).samples


def test_a_claimer_that_dies_gives_its_samples_back_when_its_time_is_over(
    state: ControlState, clock: Clock
) -> None:
    publish(state, "a", "b")
    assert claim(state, "dead", most=1) == ["a"]
    clock.now = 9.9
    assert claim(state, "early") == ["b"]
    assert state.drained("p", ["t"])
    clock.now = 10.0
    assert not state.drained("p", ["t"])
    assert claim(state, "next") == ["a"]
    assert state.status("p").num_returned == 1


def test_who_comes_too_late_with_an_acknowledgement_is_told(state: ControlState, clock: Clock) -> None:
    publish(state, "a")
    claim(state, "slow")
    clock.now = 10.0
    claim(state, "next")
    with pytest.raises(LeaseExpiredError, match="a are not this claim's"):
        state.acknowledge("slow", ["a"])
    state.acknowledge("next", ["a"])
    clock.now = 99.0
    assert claim(state, "third") == []
    assert state.acknowledged("p", "t") == ["a"]


def test_a_renewed_lease_begins_again(state: ControlState, clock: Clock) -> None:
    publish(state, "a")
    claim(state, "l")
    clock.now = 9.0
    state.renew("l", ["a"])
    clock.now = 18.0
    assert claim(state, "other") == []
    clock.now = 19.0
    assert claim(state, "other") == ["a"]


def test_an_acknowledgement_of_some_leaves_the_lease_of_the_others(state: ControlState, clock: Clock) -> None:
    publish(state, "a", "b", "c")
    claim(state, "l")
    state.acknowledge("l", ["b"])
    state.release("l", ["c"])
    clock.now = 10.0
    assert claim(state, "next") == ["c", "a"]


def test_a_claim_that_is_repeated_gets_the_same_answer(state: ControlState) -> None:
    publish(state, "a", "b")
    assert claim(state, "l", most=1) == ["a"]
    assert claim(state, "l", most=1) == ["a"]


def test_a_put_that_is_repeated_changes_nothing(state: ControlState) -> None:
    publish(state, "a", block="one")
    publish(state, "a", block="one")
    assert state.status("p").num_rows == 1
    assert state.status("p").bytes_held == 8


def test_groups_are_claimed_whole(clock: Clock) -> None:
    state = ControlState(clock)
    state.register("p", spec(grpo_group_size=2))
    publish(state, "a_g0", "b_g0", "b_g1", "c_g0")
    assert claim(state, "l") == ["b_g0", "b_g1"]
    assert claim(state, "m") == []
    publish(state, "c_g1", "a_g1")
    assert claim(state, "n", most=3) == ["c_g0", "c_g1"]
    assert claim(state, "o", most=1) == []
    assert claim(state, "q") == ["a_g0", "a_g1"]


def test_overwritten_and_cleared_values_free_their_blocks(state: ControlState) -> None:
    publish(state, "a", "b", block="first")
    waste = state.publish("p", ["a", "b"], [NewBlock("x", "second", "int64", 16)], None)
    assert (waste.dropped, waste.sparse) == (["first"], [])
    assert state.clear("p", ["a", "b", "never"]).dropped == ["second"]
    assert state.clear("p", ["a"]).dropped == []
    assert state.status("p").bytes_held == 0


def test_a_block_of_which_little_is_needed_is_copied_out_of(state: ControlState) -> None:
    publish(state, "a", "b", "c", "d", block="old")
    (sparse,) = state.clear("p", ["a", "b", "d"]).sparse
    assert (sparse.name, sparse.rows) == ("old", [2])
    assert state.move("old", "new", 8, [2]).dropped == ["old"]
    assert state.locate("p", ["c"], ["x"]) == {"x": {"new": ([0], [0])}}
    assert state.status("p").bytes_held == 8


def test_a_move_that_comes_after_the_clear_is_dropped_itself(state: ControlState) -> None:
    publish(state, "a", "b", "c", block="old")
    state.clear("p", ["a", "b"])
    state.clear("p", ["c"])
    assert state.move("old", "new", 8, [2]).dropped == ["new"]
    assert state.status("p").bytes_held == 0
