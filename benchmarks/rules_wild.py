"""Puts the rules to logs of real runs that a person has read: false alarms, misses, and how late alarms are.

    python benchmarks/rules_wild.py FOLDER [--half developed|held-out] [--notices]

FOLDER holds a sub-folder for each log, named by its number in rules_wild.yaml, with the file in it. Fetch the logs by
repository and commit; nothing of them is kept here. W&B files need wandb. The halves are chosen by a hash of repository
and path: on `developed` the figures of the rules were set, `held-out` was looked at afterwards. An alarm on a broken
run is in time at the latest a tenth of the run after the step that the reading names. Exits 1 where one run is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rules_records import note

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.rules.engine import Judged, all_rules, judge_log
from seatrial.rules.rule import Level


class Row(NamedTuple):
    """One log: what a person said, what the rules said, whether that is right."""

    number: str
    reading: str
    said: str
    is_right: bool
    judged: Sequence[Judged] = ()


def half_of(entry: dict[str, Any]) -> str:
    """Return the half that a log is in."""
    digest = hashlib.sha256(f"{entry['repository']}/{entry['path']}".encode()).digest()
    return "held-out" if digest[0] % 2 else "developed"


def judge(entry: dict[str, Any], file: Path, *, notices: bool) -> Row:
    """Put every rule to one log."""
    try:
        log = read_logs(file)
    except BlockedError as error:
        return Row(
            entry["nr"], entry["reading"], f"not read: {str(error)[-60:]}", entry["reading"] == "unclear"
        )
    judged = judge_log(log, all_rules())
    alarms = sorted((item for item in judged if item.finding.level is Level.ALARM), key=_step)
    said = ", ".join(f"{item.rule.id}@{item.finding.step}" for item in alarms) or "-"
    if notices:
        quiet = [item for item in judged if item.finding.level is Level.NOTICE]
        said += f" ({', '.join(f'{item.rule.id}@{item.finding.step}' for item in quiet) or '-'})"
    if entry["reading"] != "broken":
        return Row(entry["nr"], entry["reading"], said, entry["reading"] == "unclear" or not alarms, judged)
    last = max(int(series.steps[-1]) for series in log.series.values() if len(series))
    # A reading that names no step is of the whole run.
    latest = entry["step"] + last / 10 if "step" in entry else last
    return Row(entry["nr"], "broken", said, bool(alarms) and _step(alarms[0]) <= latest)


def _step(item: Judged) -> int:
    return item.finding.step or 0


def main() -> int:
    """Print a line for each log and a summary; return 1 where a run is judged wrongly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=["developed", "held-out"])
    parser.add_argument("--notices", action="store_true")
    parser.add_argument("--healthy", type=Path, help="note there how often each rule judged a healthy run")
    arguments = parser.parse_args()
    entries = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    wrong, healthy = 0, []
    for half in [arguments.half] if arguments.half else ["developed", "held-out"]:
        rows = []
        for entry in entries:
            files = sorted((arguments.folder / entry["nr"]).glob("*"))
            if half_of(entry) == half and files:
                rows.append(judge(entry, files[0], notices=arguments.notices))
        for row in rows:
            print(f"{half:10} {row.number} {row.reading:8} {'' if row.is_right else 'WRONG':6} {row.said}")
        wrong += sum(not row.is_right for row in rows)
        healthy += [row.judged for row in rows if row.reading == "healthy" and row.judged]
        for reading in ("broken", "healthy"):
            of_it = [row for row in rows if row.reading == reading]
            print(
                f"{half}: {sum(row.is_right for row in of_it)} of {len(of_it)} {reading} runs judged rightly"
            )
    if arguments.healthy:
        note(arguments.healthy, "wild logs read as healthy", healthy)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
