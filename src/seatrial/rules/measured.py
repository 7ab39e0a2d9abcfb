"""How often each rule could judge a healthy run, and alarmed falsely: `healthy.json`, written by the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from seatrial.files import write_whole
from seatrial.rules.engine import Judged
from seatrial.rules.rule import Level

DATA = "healthy.json"


class FalseAlarms(NamedTuple):
    """False alarms of a rule."""

    alarms: int
    judged: int
    """Healthy runs in which it had its inputs."""

    def __str__(self) -> str:
        """Return it in words."""
        return (
            f"{self.alarms} of {self.judged} healthy runs" if self.judged else "no healthy run had its inputs"
        )


def false_alarms(rule_id: str) -> FalseAlarms:
    """Return the recorded false alarms of a rule over all kinds of runs; zeros for a rule that was never measured."""
    rows = [rules[rule_id] for rules in _recorded().values() if rule_id in rules]
    return FalseAlarms(sum(alarms for _, alarms in rows), sum(judged for judged, _ in rows))


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


@cache
def _recorded() -> Mapping[str, Mapping[str, Sequence[int]]]:
    text = resources.files("seatrial.rules").joinpath(DATA).read_text(encoding="utf-8")
    found: dict[str, dict[str, list[int]]] = json.loads(text)
    return found
