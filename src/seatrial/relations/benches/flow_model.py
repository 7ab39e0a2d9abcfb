"""A plain model of a store's control: dictionaries of rows, leases and cursors, rebuilt from its own journal.

It does what `seatrial.relations.contracts.rollout_flow` says of a store with a simulated clock, without bytes and
without regard for speed; `seatrial.relations.laws.data_plane.flow_model` compares a store with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

TASKS = ("train", "score")
FIELDS = {"train": ("ids",), "score": ("ids", "values")}
"""What a row needs before a task may claim it."""


class RefusedError(Exception):
    """Raised by the model where a store must refuse a call."""


@dataclass
class ModelRow:
    """A live row."""

    tags: dict[str, Any] = field(default_factory=dict)
    scales: dict[str, int] = field(default_factory=dict)
    """By field, which of several values was put last."""


@dataclass
class ModelLease:
    """A claim that holds rows."""

    partition: str
    task: str
    samples: list[str]
    seconds: float
    deadline: float


@dataclass
class ModelPartition:
    """Rows, and for each task those never claimed, those given back and those held, by lease."""

    capacity: int
    group_size: int | None
    rows: dict[str, ModelRow] = field(default_factory=dict)
    pending: dict[str, list[str]] = field(default_factory=lambda: {task: [] for task in TASKS})
    returned: dict[str, list[str]] = field(default_factory=lambda: {task: [] for task in TASKS})
    held: dict[str, dict[str, int]] = field(default_factory=lambda: {task: {} for task in TASKS})

    def waiting(self, task: str) -> list[str]:
        """Return the rows that a task may claim, in order."""
        found = [*self.returned[task], *self.pending[task]]
        return [sample for sample in found if set(FIELDS[task]) <= self.rows[sample].scales.keys()]

    def chosen(self, task: str, most: int) -> list[str]:
        """Return at most so many of the rows that a task may claim, in whole groups where there are groups."""
        waiting, size = self.waiting(task), self.group_size
        if size is None:
            return waiting[:most]
        found: list[str] = []
        groups: dict[str, list[str]] = {}
        for sample in waiting:
            group = groups.setdefault(sample.partition("_")[0], [])
            group.append(sample)
            if len(group) == size:
                found += group
        return found[: most - most % size]


class FlowModel:
    """The model."""

    def __init__(self, now: float = 0.0) -> None:
        """Start empty."""
        self.now = now
        self.partitions: dict[str, ModelPartition] = {}
        self.leases: dict[int, ModelLease] = {}
        self.taken: dict[int, set[str]] = {}
        self.journal: list[tuple[str, tuple[Any, ...]]] = []
        self.num_claims = 0

    def restarted(self) -> FlowModel:
        """Return the model of a store that is restored from its journal: leases begin again, expiries are not in it."""
        other = FlowModel(self.now)
        other.num_claims = self.num_claims
        for name, words in self.journal:
            getattr(other, name)(*words)
        return other

    def register(self, name: str, capacity: int, group_size: int | None) -> None:
        """Make a partition; the same words again change nothing."""
        if name not in self.partitions:
            self.journal.append(("register", (name, capacity, group_size)))
            self.partitions[name] = ModelPartition(capacity, group_size)

    def put(self, name: str, samples: Sequence[str], scales: dict[str, int], tags: dict[str, Any]) -> None:
        """Add rows, or give existing ones other values and further tags; refuse what does not fit."""
        partition = self.partitions[name]
        new = [sample for sample in samples if sample not in partition.rows]
        if len(partition.rows) + len(new) > partition.capacity:
            raise RefusedError
        self.journal.append(("put", (name, list(samples), dict(scales), dict(tags))))
        for sample in samples:
            row = partition.rows.setdefault(sample, ModelRow())
            row.scales.update(scales)
            row.tags.update(tags)
        for task in TASKS:
            partition.pending[task] += new

    def claim(self, name: str, task: str, most: int, least: int, seconds: float) -> tuple[int, list[str]]:
        """Return (number of the claim, its rows); no rows where there are fewer than `least`."""
        self.expire()
        number, self.num_claims = self.num_claims, self.num_claims + 1
        samples = self.partitions[name].chosen(task, most)
        if len(samples) < least:
            return number, []
        self.lease(number, name, task, samples, seconds)
        return number, samples

    def lease(self, number: int, name: str, task: str, samples: list[str], seconds: float) -> None:
        """Give rows to a claim, regardless of who had them."""
        self.journal.append(("lease", (number, name, task, list(samples), seconds)))
        partition = self.partitions[name]
        for sample in samples:
            self._take(partition, task, sample)
            partition.held[task][sample] = number
        self.leases[number] = ModelLease(name, task, list(samples), seconds, self.now + seconds)

    def renew(self, number: int, samples: Sequence[str]) -> None:
        """Let a claim begin again, from now."""
        lease = self._held(number, samples)
        lease.deadline = self.now + lease.seconds

    def acknowledge(self, number: int, samples: Sequence[str]) -> None:
        """Take rows of a claim for good."""
        if set(samples) <= self.taken.get(number, set()):
            return
        lease = self._held(number, samples)
        self.journal.append(("acknowledge", (number, list(samples))))
        for sample in samples:
            self._take(self.partitions[lease.partition], lease.task, sample)
        self.taken.setdefault(number, set()).update(samples)

    def release(self, number: int, samples: Sequence[str]) -> None:
        """Give back those of the rows that a claim still has."""
        lease = self.leases.get(number)
        if lease is None:
            return
        own = [sample for sample in samples if sample in lease.samples]
        self.journal.append(("release", (number, own)))
        self._give_back(lease, own)

    def expire(self) -> None:
        """Give back the rows of claims whose time is over."""
        for lease in [one for one in self.leases.values() if one.deadline <= self.now]:
            self._give_back(lease, list(lease.samples))

    def clear(self, name: str, samples: Sequence[str] | None) -> None:
        """Remove rows, unknown ones too; None removes the partition."""
        partition = self.partitions.get(name)
        if partition is None:
            return
        self.journal.append(("clear", (name, None if samples is None else list(samples))))
        for sample in list(partition.rows) if samples is None else samples:
            if sample in partition.rows:
                del partition.rows[sample]
                for task in TASKS:
                    self._take(partition, task, sample)
        if samples is None:
            del self.partitions[name]

    def acknowledged(self, name: str, task: str) -> list[str]:
        """Return the live rows that a task took for good."""
        partition = self.partitions[name]
        elsewhere = {*partition.pending[task], *partition.returned[task], *partition.held[task]}
        return [sample for sample in partition.rows if sample not in elsewhere]

    def _take(self, partition: ModelPartition, task: str, sample: str) -> None:
        """Remove a row from wherever a task has it."""
        for waiting in (partition.pending[task], partition.returned[task]):
            if sample in waiting:
                waiting.remove(sample)
        number = partition.held[task].pop(sample, None)
        if number is not None:
            lease = self.leases[number]
            lease.samples.remove(sample)
            if not lease.samples:
                del self.leases[number]

    def _give_back(self, lease: ModelLease, samples: Sequence[str]) -> None:
        partition = self.partitions[lease.partition]
        for sample in samples:
            self._take(partition, lease.task, sample)
            partition.returned[lease.task].append(sample)

    def _held(self, number: int, samples: Sequence[str]) -> ModelLease:
        self.expire()
        lease = self.leases.get(number)
        if lease is None or not set(samples) <= set(lease.samples):
            raise RefusedError
        return lease
