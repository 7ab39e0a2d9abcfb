"""Recorded runs of `rules_faults.py` held to healthy runs of the same options and other seeds.

    python benchmarks/rules_baseline.py RUNS.jsonl.gz ... [--healthy FILE]

Clean runs of a configuration are held to five others of it, in turn: the first five seeds, the next five, and so on.
Runs made without a fault are held to those of the other seeds. Prints what alarms; exits 1 where one does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from rules_records import Record, changed, log_of, note, records_of

from seatrial.rules.engine import Judged, judge_log, select
from seatrial.rules.healthy import MIN_RUNS, Baseline, HealthyRuns
from seatrial.rules.rule import Level

NUM_HEALTHY = 5
RULES = select(["baseline"])


class OtherSeeds:
    """For each run the healthy runs of its options and of other seeds."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        """Take all records; the runs without a fault are the healthy ones."""
        self._records = records
        self._runs = cache(self._held_to)

    def alarms(self, record: Record, options: str, seed: str) -> set[str]:
        """Return the rules that alarm on a run beside the sound runs of its options and of the other seeds."""
        runs = self._runs(options, seed)
        return set() if runs is None else alarming(held(record, runs))

    def _held_to(self, options: str, seed: str) -> HealthyRuns | None:
        """Return the healthy runs; None where they are too few, or all one run, since the options name the seed."""
        others = [
            record
            for key, record in self._records.items()
            if key.startswith(f"sound/{options}/") and key.split("/")[2] != seed and record.get("series")
        ]
        if len(others) < MIN_RUNS or not any(changed(others[0], other) for other in others[1:]):
            return None
        return HealthyRuns(logs=[log_of(record) for record in others])


def held(record: Record, runs: HealthyRuns) -> list[Judged]:
    """Hold a recorded run to healthy ones."""
    return judge_log(log_of(record), RULES, baseline=Baseline(runs=runs))


def alarming(judged: Sequence[Judged]) -> set[str]:
    """Return the ids of the rules that alarm."""
    return {item.rule.id for item in judged if item.finding.level is Level.ALARM}


def clean_beside_clean(records: Mapping[str, Record]) -> Iterator[tuple[str, list[Judged]]]:
    """Yield (run, what the rules say) for each clean run beside five others of its configuration, in turn."""
    groups: dict[str, list[Record]] = {}
    for key, record in records.items():
        if key.startswith("clean/") and record.get("series"):
            groups.setdefault(key.split("/")[1], []).append(record)
    for group in groups.values():
        for start in range(0, len(group) - NUM_HEALTHY + 1, NUM_HEALTHY):
            taken = group[start : start + NUM_HEALTHY]
            runs = HealthyRuns(logs=[log_of(record) for record in taken])
            for record in group:
                if record not in taken:
                    yield f"{record['key']} beside {start}-{start + NUM_HEALTHY - 1}", held(record, runs)


def main() -> int:
    """Print the false alarms."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument(
        "--healthy", type=Path, help="write there how often each rule alarmed beside clean runs"
    )
    arguments = parser.parse_args()
    records = records_of(arguments.runs)
    clean = dict(clean_beside_clean(records))
    others = OtherSeeds(records)
    sound = {
        key: others.alarms(record, *key.split("/")[1:])
        for key, record in records.items()
        if key.startswith("sound/") and record.get("series")
    }
    wrong = {key: found for key, judged in clean.items() if (found := alarming(judged))}
    print(f"clean beside five others: {len(wrong)} of {len(clean)} alarm {wrong or ''}")
    loud = {key: found for key, found in sound.items() if found}
    print(f"without a fault beside the other seeds: {len(loud)} of {len(sound)} alarm {loud or ''}")
    if arguments.healthy:
        note(arguments.healthy, "clean runs of refrl beside five others", list(clean.values()))
    return 1 if wrong or loud else 0


if __name__ == "__main__":
    sys.exit(main())
