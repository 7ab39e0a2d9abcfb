"""Rows of a trial's runs for its report: those that a failed check names, the worst, and random ones."""

from __future__ import annotations

import heapq
import math
import random
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.read import read_ledger
from seatrial.evidence.ledger.schema import LedgerRow

NUM_SHOWN = 4
"""Rows of each kind."""
MAX_FILES, MAX_BYTES = 40, 64 << 20
"""Files of rows that are read, spread evenly over the run, and the largest of them."""
_PATTERNS = ("*.jsonl", "*.parquet", "*.table.json")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One row, and why it is shown."""

    why: str
    run: str
    row: LedgerRow


@dataclass(kw_only=True)
class Samples:
    """Rows to show, and notes on what was not read."""

    shown: list[Sample] = field(default_factory=list)
    num_rows: int = 0
    notes: list[str] = field(default_factory=list)


def trial_samples(folder: Path, named: Collection[tuple[int, int]], seed: int) -> Samples:
    """Choose rows of every run below a folder; the rows of one file at a time are in memory.

    Args:
        folder: the trial's.
        named: (step, index) of rows that a failed check names.
        seed: of the random choice.
    """
    found = Samples()
    generator = random.Random(seed)
    chosen: dict[str, list[tuple[float, int, Sample]]] = {
        "named by a failed check": [],
        "worst": [],
        "random": [],
    }
    for run, row in _rows(folder, found):
        number, found.num_rows = found.num_rows, found.num_rows + 1
        ranks = {
            "named by a failed check": 0.0 if (row.step, row.index) in named else None,
            "worst": _badness(row.reward),
            "random": generator.random(),
        }
        for why, rank in ranks.items():
            if rank is not None:
                heapq.heappush(chosen[why], (rank, -number, Sample(why=why, run=run, row=row)))
                if len(chosen[why]) > NUM_SHOWN:
                    heapq.heappop(chosen[why])
    shown: set[tuple[str, int, int]] = set()
    for of_kind in chosen.values():
        for _, _, sample in sorted(of_kind, key=lambda item: (-item[0], -item[1])):
            key = (sample.run, sample.row.step, sample.row.index)
            if key not in shown:
                shown.add(key)
                found.shown.append(sample)
    return found


def _rows(folder: Path, found: Samples) -> Iterator[tuple[str, LedgerRow]]:
    files = sorted({file for pattern in _PATTERNS for file in folder.rglob(pattern)}, key=_natural)
    if len(files) > MAX_FILES:
        found.notes.append(f"rows are drawn from {MAX_FILES} of {len(files)} files")
        files = [files[place * len(files) // MAX_FILES] for place in range(MAX_FILES)]
    for file in files:
        try:
            if file.stat().st_size > MAX_BYTES:
                found.notes.append(f"{file.name} is not read: it has more than {MAX_BYTES >> 20} MiB")
                continue
            rows = read_ledger(file).rows
        except (BlockedError, OSError) as error:
            found.notes.append(f"rows not shown: {error}")
            continue
        run = str(file.parent.relative_to(folder))
        yield from ((run, row) for row in rows)


def _natural(file: Path) -> list[tuple[int, str]]:
    """Return a key that sorts step2 before step10."""
    parts = re.split(r"(\d+)", str(file))
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)]


def _badness(reward: float | None) -> float | None:
    """Return a number that is larger for a worse reward; one that is not a number is the worst."""
    return reward if reward is None else math.inf if math.isnan(reward) else -reward
