"""Worked examples of the state of a data plane: any calls, with a clock and restarts, against plain lists."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from refrl.data_plane import control
from refrl.data_plane.columns import Column, decode, encode, gather
from refrl.data_plane.control import ControlState, restored
from refrl.data_plane.errors import LeaseExpiredError
from refrl.data_plane.partition import Partition, PartitionSpec
from refrl.data_plane.records import NewBlock, Waste
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, for_all, refused

FIELDS, TASKS, REMEMBERED = ("x", "y"), ("t", "u"), 3
CALLS = (*["put"] * 2, *["claim"] * 3, "renew", *["take"] * 2, "give", "wait", "clear", "move")
BYTES = 8
"""Of one value."""
SPEC = PartitionSpec(fields=FIELDS, num_samples=99, consumer_tasks=TASKS)


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all(
        {
            "calls of a state": (_as_lists, 15),
            "rows of columns": (_as_rows, 10),
            "values that come back": (_come_back, 10),
        }
    )
    yield example("leases whose end is remembered", [False, True, True], _remembered)
    yield refused("no consumer 'v'; registered: t, u", "another consumer", Partition(SPEC).cursor, "v")
    alone = PartitionSpec(fields=("x",), num_samples=1, consumer_tasks=())
    yield refused(
        "no consumer 'v'; registered: none", "a consumer where none is", Partition(alone).cursor, "v"
    )
    empty = np.empty(0, dtype=object)
    yield example(
        "objects of no rows", (0, ()), lambda: (len(decode(encode(empty, "x"))), encode(empty, "x").lengths)
    )


def _remembered() -> list[bool]:
    """Return which of three leases may be acknowledged again where two are remembered."""
    state = ControlState()
    state.register("p", SPEC)
    state.publish("p", ["a", "b", "c"], [NewBlock("x", "x1", "int64", 3 * BYTES)], None)
    with patch.object(control, "NUM_REMEMBERED", 2):
        for one in ("a", "b", "c"):
            state.claim("p", "t", ["x"], f"l{one}", most=1, least=1, seconds=9.0)
            state.acknowledge(f"l{one}", [one])
        return [_done(state.acknowledge, f"l{one}", [one]) for one in ("a", "b", "c")]


@dataclass
class _Lists:
    """What the state must hold, as lists that are searched."""

    samples: list[str] = field(default_factory=list)
    places: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """Block and row by field and sample."""
    blocks: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """Field and samples."""
    waiting: dict[str, list[str]] = field(default_factory=lambda: {task: [] for task in TASKS})
    returned: dict[str, list[str]] = field(default_factory=lambda: {task: [] for task in TASKS})
    leases: dict[str, tuple[str, list[str], float]] = field(default_factory=dict)
    """Task, samples and seconds."""
    ends: dict[str, float] = field(default_factory=dict)
    taken: list[tuple[str, set[str]]] = field(default_factory=list)
    num_returned: int = 0

    def publish(self, samples: Sequence[str], blocks: Mapping[str, str]) -> tuple[set[str], list[Any]]:
        before = dict(self.places)
        for sample in samples:
            if sample not in self.samples:
                self.samples.append(sample)
                for waiting in self.waiting.values():
                    waiting.append(sample)
        for name, block in blocks.items():
            self.blocks[block] = (name, list(samples))
            self.places.update({(name, sample): (block, row) for row, sample in enumerate(samples)})
        return self.waste(before)

    def waste(self, before: Mapping[tuple[str, str], tuple[str, int]]) -> tuple[set[str], list[Any]]:
        """Return the blocks that hold nothing any more, and those that lost values and are less than half full."""
        touched = {place[0] for key, place in before.items() if self.places.get(key) != place}
        dropped = {block for block in touched if not self.rows(block)}
        for block in dropped:
            del self.blocks[block]
        few = [block for block in touched - dropped if len(self.rows(block)) < len(self.blocks[block][1]) / 2]
        return dropped, sorted((block, self.blocks[block][0], self.rows(block)) for block in few)

    def rows(self, block: str) -> list[int]:
        return sorted(row for other, row in self.places.values() if other == block)

    def expire(self, now: float) -> None:
        for lease in [name for name, end in self.ends.items() if end <= now]:
            self.give_back(lease, list(self.leases[lease][1]))

    def give_back(self, lease: str, samples: Sequence[str]) -> None:
        self.returned[self.leases[lease][0]] += samples
        self.num_returned += len(samples)
        self.end(lease, samples)

    def end(self, lease: str, samples: Sequence[str]) -> None:
        left = [sample for sample in self.leases[lease][1] if sample not in samples]
        self.leases[lease] = (self.leases[lease][0], left, self.leases[lease][2])
        if not left:
            del self.leases[lease], self.ends[lease]

    def claim(
        self, task: str, fields: Sequence[str], lease: str, most: int, least: int, end: float, seconds: float
    ) -> list[str]:
        if lease in self.leases:
            return list(self.leases[lease][1])
        ready = [
            sample
            for sample in self.returned[task] + self.waiting[task]
            if all((name, sample) in self.places for name in fields)
        ][:most]
        if not ready or len(ready) < least:
            return []
        for held in (self.returned, self.waiting):
            held[task] = [sample for sample in held[task] if sample not in ready]
        self.leases[lease], self.ends[lease] = (task, ready, seconds), end
        return list(ready)

    def holds(self, lease: str, samples: Sequence[str]) -> bool:
        return lease in self.leases and set(samples) <= set(self.leases[lease][1])

    def acknowledge(self, lease: str, samples: Sequence[str]) -> bool:
        """Return whether it is taken, or was before."""
        former = next((done for name, done in self.taken if name == lease), set())
        if former >= set(samples):
            return True
        if not self.holds(lease, samples):
            return False
        self.end(lease, samples)
        if any(name == lease for name, _ in self.taken):
            former.update(samples)
        else:
            self.taken = [*self.taken, (lease, set(samples))][-REMEMBERED:]
        return True

    def clear(self, samples: Sequence[str]) -> tuple[set[str], list[Any]]:
        before = dict(self.places)
        self.samples = [sample for sample in self.samples if sample not in samples]
        self.places = {key: place for key, place in self.places.items() if key[1] not in samples}
        for held in (self.waiting, self.returned):
            for task in TASKS:
                held[task] = [sample for sample in held[task] if sample not in samples]
        for lease in list(self.leases):
            self.end(lease, samples)
        return self.waste(before)

    def status(self) -> tuple[Any, ...]:
        held = sum(len(samples) for _, samples in self.blocks.values())
        leased = sum(len(samples) for _, samples, _ in self.leases.values())
        return len(self.samples), leased, self.num_returned, BYTES * len(self.places), BYTES * held

    def acknowledged(self, task: str) -> list[str]:
        leased = [one for of, samples, _ in self.leases.values() if of == task for one in samples]
        elsewhere = self.waiting[task] + self.returned[task] + leased
        return [sample for sample in self.samples if sample not in elsewhere]


def _waste(found: Waste) -> tuple[set[str], list[Any]]:
    return set(found.dropped), sorted((one.name, one.field, one.rows) for one in found.sparse)


def _as_lists(stream: random.Random) -> bool:
    """Return whether a state answers random calls as lists do, and holds the same in the end."""
    with tempfile.TemporaryDirectory() as folder, patch.object(control, "NUM_REMEMBERED", REMEMBERED):
        now, path = [0.0], Path(folder, "journal")
        state, lists = restored(path, lambda: now[0]), _Lists()
        state.register("p", SPEC)
        return all(_agree(stream, state, lists, now) for _ in range(30)) and (
            _agree_after_a_restart(path, state, lists, now)
        )


def _agree_after_a_restart(path: Path, state: ControlState, lists: _Lists, now: list[float]) -> bool:
    """Return whether what a journal records is what was: leases begin again, also those whose time was over."""
    lists.expire(now[0])
    again = restored(path, lambda: now[0])
    found, (*_, live, held) = again.status("p"), lists.status()
    leases = {name: (lease.task, [*lease.samples], lease.deadline) for name, lease in again.leases.items()}
    due = {name: (task, samples, now[0] + seconds) for name, (task, samples, seconds) in lists.leases.items()}
    return (
        {name: leases.get(name) for name in due} == due
        and (found.num_rows, found.bytes_live, found.bytes_held) == (len(lists.samples), live, held)
        and [again.acknowledged("p", task) for task in TASKS] == [*map(lists.acknowledged, TASKS)]
    )


def _agree(stream: random.Random, state: ControlState, lists: _Lists, now: list[float]) -> bool:
    """Make one random call of both, and return whether they agree on it and on what they count."""
    number = len(lists.blocks) + stream.randrange(10**9)
    lease = stream.choice([*lists.leases, *(name for name, _ in lists.taken), f"l{number}"])
    held = lists.leases.get(
        lease, ("t", [*next((done for name, done in lists.taken if name == lease), ())], 0.0)
    )[1]
    some = stream.sample(held, stream.randint(0, len(held)))
    match stream.choice(CALLS):
        case "put":
            known = stream.sample(lists.samples, stream.randint(0, min(3, len(lists.samples))))
            samples = known + [f"s{number}.{row}" for row in range(stream.randint(not known, 4))]
            stream.shuffle(samples)
            blocks = {name: f"{name}{number}" for name in stream.sample(FIELDS, stream.randint(1, 2))}
            new = [NewBlock(name, block, "int64", BYTES * len(samples)) for name, block in blocks.items()]
            if len(lists.samples) > 60:
                return True
            same = _waste(state.publish("p", samples, new, None)) == lists.publish(samples, blocks)
            if stream.random() < 0.3:  # the answer was lost, and the call is made again
                same &= _waste(state.publish("p", samples, new, None)) == (set(), [])
        case "claim":
            task, fields = stream.choice(TASKS), stream.sample(FIELDS, stream.randint(1, 2))
            most, seconds = stream.randint(1, 5), stream.choice([2.0, 5.0])
            least = stream.randint(1, most)
            lease = lease if lease in lists.leases else f"l{number}"
            lists.expire(now[0])
            due = lists.claim(task, fields, lease, most, least, now[0] + seconds, seconds)
            same = (
                state.claim("p", task, fields, lease, most=most, least=least, seconds=seconds).samples == due
            )
        case "renew":
            lists.expire(now[0])
            if holds := lists.holds(lease, some):
                lists.ends[lease] = now[0] + lists.leases[lease][2]
            same = _done(state.renew, lease, some) == holds
        case "take":
            if not next((done for name, done in lists.taken if name == lease), set()) >= set(some):
                lists.expire(now[0])
            same = _done(state.acknowledge, lease, some) == lists.acknowledge(lease, some)
        case "give":
            same = _done(state.release, lease, some)
            if lease in lists.leases:
                lists.give_back(lease, some)
        case "wait":
            now[0] += stream.choice([1.0, 2.0])
            same = True
        case "clear":
            chosen = [*stream.sample(lists.samples, min(len(lists.samples), stream.randint(1, 3))), "unknown"]
            same = _waste(state.clear("p", chosen)) == lists.clear(chosen)
        case _:
            same = _moved(stream, state, lists, f"m{number}")
    if stream.random() < 0.3:
        return same
    lists.expire(now[0])
    found = state.status("p")
    counts = (found.num_rows, found.num_leased, found.num_returned, found.bytes_live, found.bytes_held)
    drained = [state.drained("p", [task]) for task in TASKS]
    return (
        same
        and counts == lists.status()
        and drained == [not lists.waiting[task] and not lists.returned[task] for task in TASKS]
        and [state.acknowledged("p", task) for task in TASKS] == [*map(lists.acknowledged, TASKS)]
    )


def _moved(stream: random.Random, state: ControlState, lists: _Lists, new: str) -> bool:
    """Let some rows of a block lie in a new one, and return whether the same values lie where."""
    if not lists.blocks:
        return _waste(state.move("gone", new, BYTES, [0])) == ({new}, [])
    old = stream.choice([*lists.blocks])
    name, samples = lists.blocks[old]
    rows = stream.sample(range(len(samples)), stream.randint(1, len(samples)))
    living = {row for row in rows if lists.places.get((name, samples[row])) == (old, row)}
    found = _waste(state.move(old, new, BYTES * len(rows), rows))
    if not living:
        return found == ({new}, [])
    before = dict(lists.places)
    lists.blocks[new] = (name, [samples[row] for row in rows])
    for number, row in enumerate(rows):
        if row in living:
            lists.places[name, samples[row]] = (new, number)
    return found == lists.waste(before)


def _done(call: Any, *words: Any) -> bool:
    try:
        call(*words)
    except LeaseExpiredError:
        return False
    return True


def _as_rows(stream: random.Random) -> bool:
    """Return whether rows of one, two or three columns come in any order, without rows of no length being lost."""
    kind = stream.choice(["dense", "jagged", "object"])
    num = stream.randint(1, 6)
    lengths = [stream.randint(0, 3) for _ in range(num)]
    places = stream.sample(range(num), num)
    cuts = sorted(stream.sample(range(1, num), min(num - 1, stream.randint(0, 2))))
    parts, due = [], [None] * num
    for first, last in zip([0, *cuts], [*cuts, num], strict=True):
        of = range(first, last)
        column = _column(kind, of, lengths)
        rows = stream.sample(range(len(of)), len(of))
        parts.append((column, rows, [places[of[row]] for row in rows]))
    for number in range(num):
        due[places[number]] = _plain(decode(_column(kind, [number], lengths)))[0]
    return _plain(decode(gather(parts, num))) == due


def _column(kind: str, numbers: Sequence[int], lengths: Sequence[int]) -> Column:
    if kind == "dense":
        return encode(torch.tensor([[number, number + 100] for number in numbers]), "x")
    if kind == "jagged":
        return encode([torch.arange(lengths[number]) + 10 * number for number in numbers], "x")
    objects = np.empty(len(numbers), dtype=object)
    objects[:] = [{"é" * lengths[number]: [number, None, True, 1.0]} for number in numbers]
    return encode(objects, "x")


def _plain(found: Any) -> list[Any]:
    return [one.tolist() if isinstance(one, torch.Tensor) else one for one in found]


def _come_back(stream: random.Random) -> bool:
    """Return whether JSON values come back with their types."""

    def value(depth: int) -> Any:
        leaf = [None, True, 1, 1.0, -2, 2**60, "", "é\n", "𝄞", 0.1]
        if depth == 0 or stream.random() < 0.4:
            return stream.choice(leaf)
        inner = [value(depth - 1) for _ in range(stream.randint(0, 3))]
        return inner if stream.random() < 0.5 else {str(number): one for number, one in enumerate(inner)}

    given = np.empty(stream.randint(1, 4), dtype=object)
    given[:] = [[value(3)] for _ in given]
    return repr([*decode(encode(given, "x"))]) == repr([*given])
