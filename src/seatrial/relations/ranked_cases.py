"""Generated batches distributed over ranks: examples, or the rows of a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases import Rollout
from seatrial.relations.cases.case import Case
from seatrial.relations.cases.examples import Example, ExampleCase
from seatrial.relations.contracts.ranks import Layout


def lay(num_rows: int, num_ranks: int, num_micro_batches: int = 1) -> Layout:
    """Return the rows of each rank and micro-batch: in order, in shares as equal as possible."""

    def shares(rows: range, parts: int) -> list[range]:
        return [rows[len(rows) * part // parts : len(rows) * (part + 1) // parts] for part in range(parts)]

    return [
        [list(part) for part in shares(rows, num_micro_batches)]
        for rows in shares(range(num_rows), num_ranks)
    ]


@dataclass(frozen=True, kw_only=True)
class RankedExamples(Case):
    """Examples of one optimizer batch, distributed over ranks in order."""

    batch: ExampleCase
    num_ranks: int = 2
    num_micro_batches: int = 1

    @property
    def examples(self) -> tuple[Example, ...]:
        """The examples."""
        return self.batch.examples

    @property
    def layout(self) -> Layout:
        """The examples of each rank and micro-batch."""
        return lay(len(self.examples), self.num_ranks, self.num_micro_batches)

    def smaller(self) -> Iterator[RankedExamples]:
        """Yield batches of shorter examples; their number stays, so that no rank is empty."""
        for batch in self.batch.smaller():
            if len(batch.examples) == len(self.examples):
                yield replace(self, batch=batch)

    def describe(self) -> Mapping[str, Any]:
        """Return layout and examples as JSON values."""
        return {"layout": self.layout, **self.batch.describe()}


@dataclass(frozen=True, kw_only=True)
class RankedRollout(Case):
    """Rows of one optimizer batch, distributed over ranks in order."""

    rollout: Rollout
    num_ranks: int = 2
    num_micro_batches: int = 1

    @property
    def layout(self) -> Layout:
        """The rows of each rank and micro-batch."""
        return lay(len(self.rollout.rows), self.num_ranks, self.num_micro_batches)

    def smaller(self) -> Iterator[RankedRollout]:
        """Yield batches of fewer or shorter rows, down to one a micro-batch."""
        for rollout in self.rollout.smaller():
            if len(rollout.rows) >= self.num_ranks * self.num_micro_batches:
                yield replace(self, rollout=rollout)

    def describe(self) -> Mapping[str, Any]:
        """Return layout and rows as JSON values."""
        return {"layout": self.layout, **self.rollout.describe()}
