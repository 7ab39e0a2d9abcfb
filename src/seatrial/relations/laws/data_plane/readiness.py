"""R14, R27 for ready boards: a row is ready in its partition once written, for each consumer that has not taken it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation

FIELDS = ("ids", "logprobs", "rewards")


@dataclass(frozen=True, kw_only=True)
class Write:
    """A write of some fields of some rows to one of two partitions."""

    partition: int
    rows: tuple[int, ...]
    fields: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class WritesCase(Case):
    """Writes, in order."""

    writes: tuple[Write, ...]

    def smaller(self) -> Iterator[WritesCase]:
        """Yield the case with one write fewer."""
        for drop in range(len(self.writes)):
            if len(self.writes) > 1:
                yield replace(self, writes=self.writes[:drop] + self.writes[drop + 1 :])

    def describe(self) -> Mapping[str, Any]:
        """Return the writes as JSON values."""
        return {
            "writes": [
                {"partition": write.partition, "rows": list(write.rows), "fields": list(write.fields)}
                for write in self.writes
            ]
        }

    def ready(self, partition: int, fields: Sequence[str]) -> set[int]:
        """Return the rows of a partition for which all these fields were written."""
        written = {(row, name) for write in self.writes if write.partition == partition
                   for row in write.rows for name in write.fields}  # fmt: skip
        return {row for row, _ in written if all((row, name) in written for name in fields)}


def _make(partitions: int) -> Any:
    def make(stack: Any, seed: int, tidy: bool) -> WritesCase:
        """Return whole rows of one partition if tidy; otherwise partial rows, out of order."""
        if tidy:
            return WritesCase(writes=(Write(partition=0, rows=(0, 1, 2), fields=FIELDS),))
        rng = np.random.default_rng([seed, 14])
        # The first partition is written first, so that storage shared by partitions already holds its rows.
        writes = [Write(partition=0, rows=(0,), fields=FIELDS[:1])]
        for number in range(7):
            rows = rng.choice(6, size=int(rng.integers(1, 4)), replace=False)
            fields = rng.choice(FIELDS, size=int(rng.integers(1, 4)), replace=False)
            # Rows of the second partition start at 1: only the first partition has a row 0.
            first = number % partitions
            writes.append(
                Write(
                    partition=first,
                    rows=tuple(int(row) + first for row in rows),
                    fields=tuple(str(name) for name in fields),
                )
            )
        return WritesCase(writes=tuple(writes))

    return make


def _written(stack: Any, case: WritesCase) -> list[Any]:
    boards = [stack.open_board(name) for name in ("first", "second")]
    for write in case.writes:
        boards[write.partition].produce(write.rows, write.fields)
    return boards


READY_MEANS_WRITTEN = Relation(
    id="R14.ready",
    name="ready-means-written",
    component="readiness",
    statement="A row is ready exactly when all requested fields are written, once for every consumer.",
    catalogue="SB285",
    cost="CPU, milliseconds",
    cases=_make(1),
)
PARTITIONS_SHARE_NOTHING = Relation(
    id="R27.ready",
    name="partitions-share-nothing",
    component="readiness",
    statement="A row written to one partition is not ready in another.",
    catalogue="SB285",
    cost="CPU, milliseconds",
    cases=_make(2),
)


@READY_MEANS_WRITTEN.law(
    "ready means written", "any field taken for all fields, rows beyond the first allocation lost"
)
@PARTITIONS_SHARE_NOTHING.law(
    "two partitions",
    "a default object shared by all partitions, a name that is a prefix of another",
)
def ready_means_written(stack: Any, case: WritesCase) -> Measure:
    wrong = []
    for partition, board in enumerate(_written(stack, case)):
        for fields in (FIELDS[:1], FIELDS[1:], FIELDS):
            found, expected = sorted(board.ready(fields, "trainer")), sorted(case.ready(partition, fields))
            if found != expected:
                wrong.append(f"partition {partition}, {fields}: ready {found}, written {expected}")
    return Measure.count(wrong, "queries whose ready rows are not the written ones")


@READY_MEANS_WRITTEN.law("consumed once for each consumer", "one consumed mark for all consumers")
def consumed_once_for_each_consumer(stack: Any, case: WritesCase) -> Measure:
    """A row taken by one consumer is no longer ready for it, and still ready for another."""
    board = _written(stack, case)[0]
    ready = sorted(board.ready(FIELDS[:1], "trainer"))
    board.consume(ready[:1], "trainer")
    left, other = sorted(board.ready(FIELDS[:1], "trainer")), sorted(board.ready(FIELDS[:1], "critic"))
    wrong = int(left != ready[1:]) + int(other != ready)
    return Measure(
        error=float(wrong),
        bound=0,
        what=f"wrong sets of ready rows ({ready} ready, 1 consumed: {left} left, {other} for another consumer)",
    )
