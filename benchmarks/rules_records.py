"""Reads what `rules_faults.py` recorded of runs, and writes down how often rules alarmed on healthy ones."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.evidence.runlog import RunLog, Series
from seatrial.files import write_whole
from seatrial.rules.engine import Judged
from seatrial.rules.rule import Level

CLOCK = ("timing/", "performance/", "ray/")
Record = Mapping[str, Any]


def records_of(paths: Sequence[Path]) -> dict[str, Record]:
    """Return the records of runs by key."""
    found: dict[str, Record] = {}
    for path in paths:
        with gzip.open(path, "rt") as lines:
            try:
                for line in lines:
                    record = json.loads(line)
                    found[record["key"]] = record
            except EOFError:
                print(f"{path}: cut off; {len(found)} runs were read")
    return found


def log_of(record: Record) -> RunLog:
    """Return what a run logged."""
    series = {
        tag: Series(tag=tag, steps=np.array(steps, dtype=np.int64), values=np.array(values, dtype=float))
        for tag, (steps, values) in record["series"].items()
    }
    return RunLog(sources=[record["key"]], series=series)


def changed(record: Record, sound: Record) -> bool:
    """Say whether a logged series but those of the clock differs; of those its steps and its signs count."""

    def comparable(one: Record) -> dict[str, Any]:
        return {
            tag: [steps, [value < 0 for value in values]] if tag.startswith(CLOCK) else [steps, values]
            for tag, (steps, values) in one["series"].items()
        }

    return json.dumps(comparable(record), sort_keys=True) != json.dumps(comparable(sound), sort_keys=True)


def note(path: Path, kind: str, runs: Sequence[Sequence[Judged]]) -> None:
    """Write the findings of rules on healthy runs of one kind; other kinds in the file are kept."""
    recorded = json.loads(path.read_text()) if path.exists() else {}
    rows: dict[str, list[int]] = {}
    for run in runs:
        for item in run:
            row = rows.setdefault(item.rule.id, [0, 0])
            row[0] += item.finding.level is not Level.NOT_TRIGGERED
            row[1] += item.finding.level is Level.ALARM
    recorded[kind] = rows
    text = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(found, sort_keys=True)}" for name, found in recorded.items()
    )
    write_whole(path, "{\n" + text + "\n}\n")
