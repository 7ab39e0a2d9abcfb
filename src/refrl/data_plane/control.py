"""The state that all clients of a data plane share: partitions, leases, and which blocks of bytes are still needed.

It holds no bytes, calls no one and never waits: one thread at a time calls it. A change is checked, written to the
journal, and then made, so that replaying the journal gives the state that was lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refrl.data_plane.errors import DataPlaneError, LeaseExpiredError, UnknownPartitionError
from refrl.data_plane.metadata import Tags
from refrl.data_plane.partition import Partition, PartitionSpec, shown
from refrl.data_plane.records import Block, Claim, Lease, NewBlock, PartitionStatus, Sparse, Waste

Log = Callable[[str, Mapping[str, Any]], None]
"""Writes (operation, its arguments) to the journal."""
NUM_REMEMBERED = 1024
"""Leases whose acknowledgement is remembered."""


def _no_log(operation: str, words: Mapping[str, Any]) -> None:
    return None


@dataclass
class ControlState:
    """The state that all clients of a data plane share."""

    clock: Callable[[], float] = time.monotonic
    log: Log = _no_log
    partitions: dict[str, Partition] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)
    num_returned: dict[str, int] = field(default_factory=dict)
    taken: dict[str, set[str]] = field(default_factory=dict)
    """Samples that the latest leases acknowledged, for calls that are repeated because their answer was lost."""

    def register(self, partition_id: str, spec: PartitionSpec) -> None:
        """Make a partition; the same words again change nothing.

        Raises:
            ValueError: it is there with other words.
        """
        held = self.partitions.get(partition_id)
        if held is None:
            self.log("register", {"partition_id": partition_id, "spec": spec.to_json()})
            self.partitions[partition_id] = Partition(spec)
        elif held.spec != spec:
            raise ValueError(
                f"partition {partition_id!r} is registered as {held.spec}, not as {spec}: clear it whole first, or use "
                "another name"
            )

    def publish(
        self, partition_id: str, samples: list[str], blocks: Sequence[NewBlock], tags: list[Tags] | None
    ) -> Waste:
        """Make a put visible, all of it at once; what was published before under these blocks' names is no news.

        Raises:
            UnknownPartitionError, ValueError, PartitionFullError: nothing was changed; the caller drops the blocks.
        """
        partition = self._partition(partition_id)
        if blocks and all(block.name in self.blocks for block in blocks):
            return Waste([], [])
        partition.check(samples, {block.field: block.dtype for block in blocks}, tags)
        self.log(
            "publish",
            {
                "partition_id": partition_id,
                "samples": samples,
                "blocks": [vars(block) for block in blocks],
                "tags": tags,
            },
        )
        lost = partition.publish(samples, [(block.field, block.name, block.dtype) for block in blocks], tags)
        for block in blocks:
            self.blocks[block.name] = Block(partition_id, block.field, samples, block.num_bytes, len(samples))
        return self._waste(lost)

    def claim(
        self,
        partition_id: str,
        task: str,
        fields: Sequence[str],
        lease_id: str,
        *,
        most: int,
        least: int,
        seconds: float,
    ) -> Claim:
        """Lease at least `least` and at most `most` samples that have all the fields; nothing where there are fewer.

        Raises:
            UnknownPartitionError, UnknownTaskError, FieldNotProducedError, ValueError: see `Partition.ready`.
        """
        partition = self._partition(partition_id)
        self.expire()
        held = self.leases.get(lease_id)
        if held is not None:  # the answer was lost on its way, and the call repeated
            return Claim(list(held.samples), [dict(partition.tags[sample]) for sample in held.samples])
        samples = partition.ready(task, fields, most)
        if not samples or len(samples) < least:
            return Claim([], [])
        words = {
            "partition_id": partition_id,
            "task": task,
            "samples": samples,
            "lease_id": lease_id,
            "seconds": seconds,
        }
        self.log("lease", words)
        self.lease(**words)  # type: ignore[arg-type]
        return Claim(samples, [dict(partition.tags[sample]) for sample in samples])

    def lease(self, partition_id: str, task: str, samples: list[str], lease_id: str, seconds: float) -> None:
        """Give samples to a lease, regardless of who had them."""
        cursor = self._partition(partition_id).cursor(task)
        for sample in samples:
            cursor.pending.pop(sample, None)
            cursor.returned.pop(sample, None)
            former = self.leases.get(cursor.leased.get(sample, ""))
            if former is not None:
                former.samples.pop(sample, None)
            cursor.leased[sample] = lease_id
        self.leases[lease_id] = Lease(
            partition_id, task, dict.fromkeys(samples), seconds, self.clock() + seconds
        )

    def renew(self, lease_id: str, samples: Sequence[str]) -> None:
        """Let a lease begin again.

        Raises:
            LeaseExpiredError: one of the samples is not the lease's any more.
        """
        lease = self._held(lease_id, samples)
        lease.deadline = self.clock() + lease.seconds

    def acknowledge(self, lease_id: str, samples: list[str]) -> None:
        """Acknowledge a lease: its samples are not served to this task again.

        Raises:
            LeaseExpiredError: see `renew`; nothing was changed.
        """
        if self.taken.get(lease_id, set()).issuperset(samples):
            return
        lease = self._held(lease_id, samples)
        self.log("acknowledge", {"lease_id": lease_id, "samples": samples})
        self._end(lease_id, lease, samples)
        self.taken.setdefault(lease_id, set()).update(samples)
        if len(self.taken) > NUM_REMEMBERED:
            del self.taken[next(iter(self.taken))]

    def release(self, lease_id: str, samples: list[str]) -> None:
        """Give samples back; those that are not the lease's any more are left out."""
        lease = self.leases.get(lease_id)
        if lease is not None:
            held = [sample for sample in samples if sample in lease.samples]
            self.log("release", {"lease_id": lease_id, "samples": held})
            self._give_back(lease_id, lease, held)

    def expire(self) -> None:
        """Give back what leases hold whose time is over."""
        now = self.clock()
        for lease_id, lease in [
            (name, lease) for name, lease in self.leases.items() if lease.deadline <= now
        ]:
            self._give_back(lease_id, lease, list(lease.samples))

    def acknowledged(self, partition_id: str, task: str) -> list[str]:
        """Return the live samples that a consumer took for good."""
        return self._partition(partition_id).acknowledged(task)

    def names(self) -> list[str]:
        """Return the partitions."""
        return list(self.partitions)

    def drained(self, partition_id: str, tasks: Sequence[str]) -> bool:
        """Return whether every one of these consumers has claimed every live sample, and given none back."""
        partition = self._partition(partition_id)
        self.expire()
        cursors = [partition.cursor(task) for task in tasks]
        return not any(cursor.pending or cursor.returned for cursor in cursors)

    def locate(
        self, partition_id: str, samples: Sequence[str], fields: Sequence[str]
    ) -> dict[str, dict[str, tuple[list[int], list[int]]]]:
        """Return for each field where its values lie, as `Partition.locate`.

        Raises:
            UnknownPartitionError, UnknownSampleError, FieldNotProducedError: see there.
        """
        partition = self._partition(partition_id)
        return {name: partition.locate(samples, name) for name in fields}

    def clear(self, partition_id: str, samples: list[str] | None) -> Waste:
        """Remove samples, unknown ones too; None removes all of them and the partition."""
        partition = self.partitions.get(partition_id)
        if partition is None:
            return Waste([], [])
        self.log("clear", {"partition_id": partition_id, "samples": samples})
        gone = list(partition.tags) if samples is None else samples
        lost = partition.clear(gone)
        if samples is None:
            del self.partitions[partition_id]
            self.num_returned.pop(partition_id, None)
        cleared = set(gone)
        for lease_id, lease in [
            (name, held) for name, held in self.leases.items() if held.partition == partition_id
        ]:
            for sample in lease.samples.keys() & cleared:
                del lease.samples[sample]
            if not lease.samples:
                del self.leases[lease_id]
        return self._waste(lost)

    def move(self, old: str, new: str, num_bytes: int, rows: list[int]) -> Waste:
        """Let the living among these rows of a block lie in a new one, in this order."""
        block = self.blocks.get(old)
        if block is None:
            return Waste([new], [])
        places = self.partitions[block.partition].places[block.field]
        samples = [block.samples[row] for row in rows]
        living = [number for number, row in enumerate(rows) if places.get(samples[number]) == (old, row)]
        if not living:
            return Waste([new], [])
        self.log("move", {"old": old, "new": new, "num_bytes": num_bytes, "rows": rows})
        for number in living:
            places[samples[number]] = (new, number)
        self.blocks[new] = Block(block.partition, block.field, samples, num_bytes, len(living))
        return self._waste([old] * len(living))

    def status(self, partition_id: str) -> PartitionStatus:
        """Return a partition at a glance.

        Raises:
            UnknownPartitionError: see there.
        """
        partition = self._partition(partition_id)
        self.expire()
        blocks = [block for block in self.blocks.values() if block.partition == partition_id]
        return PartitionStatus(
            num_rows=len(partition.tags),
            num_leased=sum(len(cursor.leased) for cursor in partition.cursors.values()),
            num_returned=self.num_returned.get(partition_id, 0),
            bytes_live=sum(block.num_bytes * block.num_live / len(block.samples) for block in blocks),
            bytes_held=sum(block.num_bytes for block in blocks),
        )

    def _partition(self, partition_id: str) -> Partition:
        if partition_id not in self.partitions:
            known = ", ".join(sorted(self.partitions)) or "none"
            raise UnknownPartitionError(f"no partition {partition_id!r} is registered; known: {known}")
        return self.partitions[partition_id]

    def _held(self, lease_id: str, samples: Sequence[str]) -> Lease:
        self.expire()
        lease = self.leases.get(lease_id)
        lost = [sample for sample in samples if lease is None or sample not in lease.samples]
        if lost or lease is None:
            raise LeaseExpiredError(
                f"samples {shown(lost)} are not this claim's any more: its time was over, or they were cleared; claim "
                "again, with a longer lease_s if the work takes longer"
            )
        return lease

    def _give_back(self, lease_id: str, lease: Lease, samples: Sequence[str]) -> None:
        self._end(lease_id, lease, samples)
        self._partition(lease.partition).cursor(lease.task).returned.update(dict.fromkeys(samples))
        self.num_returned[lease.partition] = self.num_returned.get(lease.partition, 0) + len(samples)

    def _end(self, lease_id: str, lease: Lease, samples: Sequence[str]) -> None:
        cursor = self._partition(lease.partition).cursor(lease.task)
        for sample in samples:
            lease.samples.pop(sample, None)
            cursor.leased.pop(sample, None)
        if not lease.samples:
            self.leases.pop(lease_id, None)

    def _waste(self, lost: Iterable[str]) -> Waste:
        touched: dict[str, Block] = {}
        for name in lost:
            touched[name] = self.blocks[name]
            touched[name].num_live -= 1
        dropped = [name for name, block in touched.items() if block.num_live == 0]
        for name in dropped:
            del self.blocks[name]
        sparse = [name for name, block in touched.items() if 0 < 2 * block.num_live < len(block.samples)]
        return Waste(dropped, [self._sparse(name, touched[name]) for name in sparse])

    def _sparse(self, name: str, block: Block) -> Sparse:
        places = self.partitions[block.partition].places[block.field]
        rows = [row for row, sample in enumerate(block.samples) if places.get(sample) == (name, row)]
        return Sparse(name, block.partition, block.field, rows)


class Journal:
    """A file that is added to. A line that the death of its writer cut short is left out, as its change never was."""

    def __init__(self, path: Path) -> None:
        """Open it, and begin it where there is none."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = _whole_lines(path)
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._file.truncate(whole)
        self._file.seek(whole)

    def log(self, operation: str, words: Mapping[str, Any]) -> None:
        """Write a change, so that it outlives this process."""
        self._file.write(json.dumps([operation, words]).encode() + b"\n")
        self._file.flush()

    def play(self, state: ControlState) -> int:
        """Make every change again, and return how many there were.

        Raises:
            DataPlaneError: the file is not a journal.
        """
        number = 0
        with self.path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    operation, words = json.loads(line)
                    _AGAIN[operation](state, words)
                except (ValueError, KeyError, TypeError) as error:
                    raise DataPlaneError(
                        f"{self.path}, line {number}, is no change of a data plane: {error}"
                    ) from error
        return number


def restored(path: Path, clock: Callable[[], float] = time.monotonic) -> ControlState:
    """Return the state that a journal records, with further changes appended to it; leases begin again."""
    journal = Journal(path)
    now = clock()
    # No lease ends while the changes are made again, however long that takes.
    state = ControlState(lambda: now)
    journal.play(state)
    state.clock, now = clock, clock()
    for lease in state.leases.values():
        lease.deadline = now + lease.seconds
    state.log = journal.log
    return state


def _whole_lines(path: Path) -> int:
    """Return the bytes up to the end of the last whole line."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0


def _register(state: ControlState, words: dict[str, Any]) -> None:
    state.register(words["partition_id"], PartitionSpec.from_json(words["spec"]))


def _publish(state: ControlState, words: dict[str, Any]) -> None:
    state.publish(**{**words, "blocks": [NewBlock(**block) for block in words["blocks"]]})


_AGAIN: Mapping[str, Callable[[ControlState, dict[str, Any]], None]] = {
    "register": _register,
    "publish": _publish,
    "lease": lambda state, words: state.lease(**words),
    "acknowledge": lambda state, words: state.acknowledge(**words),
    "release": lambda state, words: state.release(**words),
    "clear": lambda state, words: _nothing(state.clear(**words)),
    "move": lambda state, words: _nothing(state.move(**words)),
}


def _nothing(waste: object) -> None:
    """The blocks that a change left behind were dropped when it was made."""
