"""A state that is played back from its journal is the state that was lost."""

import random
from pathlib import Path
from typing import Any

import pytest

from refrl.data_plane import DataPlaneError
from refrl.data_plane.control import ControlState, restored
from refrl.data_plane.partition import PartitionSpec
from refrl.data_plane.records import NewBlock


def seen(state: ControlState) -> Any:
    """Return all that a state knows, but for when leases end."""
    partitions = {
        name: (
            one.spec,
            one.tags,
            one.places,
            one.dtypes,
            {task: vars(own) for task, own in one.cursors.items()},
        )
        for name, one in state.partitions.items()
    }
    leases = {name: (lease.task, lease.samples, lease.seconds) for name, lease in state.leases.items()}
    return partitions, leases, state.blocks


def work(state: ControlState, seed: int) -> None:
    """Change a state in a hundred random ways."""
    stream = random.Random(seed)
    spec = PartitionSpec(fields=("x", "y"), num_samples=999, consumer_tasks=("t", "u"), enums={"e": (1, "a")})
    state.register("p", spec)
    held: dict[str, list[str]] = {}
    for number in range(100):
        samples = [f"s{stream.randrange(20)}_{row}" for row in range(3)]
        match stream.choice(["put", "claim", "acknowledge", "release", "clear"]):
            case "put":
                block = NewBlock(stream.choice("xy"), f"b{number}", "int64", 24)
                state.publish("p", samples, [block], [{"v": number}] * 3)
            case "claim":
                got = state.claim("p", stream.choice("tu"), ["x"], f"l{number}", most=4, least=1, seconds=60)
                if got.samples:
                    held[f"l{number}"] = got.samples
            case "acknowledge" | "release" as end if held:
                lease, kept = held.popitem()
                left = [
                    sample
                    for sample in kept
                    if sample in state.partitions["p"].tags and lease in state.leases
                ]
                left = [sample for sample in left if sample in state.leases[lease].samples]
                if left:
                    getattr(state, end)(lease, left)
            case "clear":
                for sparse in state.clear("p", samples).sparse:
                    state.move(sparse.name, f"{sparse.name}m{number}", 8 * len(sparse.rows), sparse.rows)


@pytest.mark.parametrize("seed", range(10))
def test_a_restored_state_is_the_state_that_was_lost(tmp_path: Path, seed: int) -> None:
    lost = restored(tmp_path / "journal.jsonl")
    work(lost, seed)
    again = restored(tmp_path / "journal.jsonl")
    assert seen(again) == seen(lost)
    assert seen(again)[2], "the schedule left nothing to compare"
    work(again, seed + 100)
    assert seen(restored(tmp_path / "journal.jsonl")) == seen(again)


def test_no_lease_ends_while_a_journal_is_played(tmp_path: Path) -> None:
    """A long journal takes longer than a lease holds; what was acknowledged in time stays acknowledged."""
    path = tmp_path / "journal.jsonl"
    lost = restored(path, clock=lambda: 0.0)
    lost.register("p", PartitionSpec(fields=("x",), num_samples=9, consumer_tasks=("t",)))
    for number in range(4):
        lost.publish("p", [f"s{number}"], [NewBlock("x", f"b{number}", "int64", 8)], [{}])
        lost.claim("p", "t", ["x"], f"l{number}", most=1, least=1, seconds=5)
    for number in range(3):
        lost.acknowledge(f"l{number}", [f"s{number}"])
    clock = iter(range(0, 1000, 3))
    again = restored(path, clock=lambda: float(next(clock)))
    assert again.acknowledged("p", "t") == ["s0", "s1", "s2"]
    again.acknowledge("l3", ["s3"])


def test_a_line_that_a_death_cut_short_is_a_change_that_never_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    work(restored(path), 0)
    whole = seen(restored(path))
    with path.open("a") as file:
        file.write('["clear", {"partition_id": "p", "sam')
    assert seen(restored(path)) == whole
    assert seen(restored(path)) == whole


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('["drop everything", {}]\n')
    with pytest.raises(DataPlaneError, match=r"other.jsonl, line 1"):
        restored(path)
