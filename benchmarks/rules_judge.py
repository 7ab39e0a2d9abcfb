"""What rules, ledger laws and guards see of the runs that `rules_faults.py` made, by fault and sensor.

    python benchmarks/rules_judge.py RUNS.jsonl.gz ... [--page docs/evidence/detection.md] [--healthy FILE]

A fault counts as one that shows where a logged series other than the clock's differs from the run without it, of the
same seed and options; a sensor sees it where it speaks in most of these seeds, and not in the run without the fault.
The halves are drawn by a hash of the fault's id: rules were changed in the light of `tuned` alone. `--healthy` writes
how often each rule could judge a clean run, and how often it alarmed. Exits 1 where a clean run alarms.

A second table has the faults whose effect exceeds the spread of sound runs (`exceeds_spread`), where five seeds were
run; clean runs judged against other clean runs say how often that happens by chance.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import rules_baseline
from rules_records import CLOCK, Record, changed, log_of, note, records_of

from seatrial.faults.plant import all_plants
from seatrial.files import write_whole
from seatrial.rules.engine import all_rules, judge_log
from seatrial.rules.rule import Level

SENSORS = ("rules", "baseline", "ledger", "guards")
FEWEST_SEEDS = 5
"""To tell an effect from the spread between seeds."""


def alarms_of(record: Record) -> set[str]:
    """Return the rules that alarm."""
    judged = judge_log(log_of(record), all_rules())
    return {item.rule.id for item in judged if item.finding.level is Level.ALARM}


@dataclass
class Seen:
    """What was seen of a fault over its seeds."""

    num_shown: int = 0
    """Seeds in which a logged series differs."""
    by: dict[str, Counter[str]] = field(default_factory=lambda: {sensor: Counter() for sensor in SENSORS})
    """In how many of these each rule, law or guard speaks."""
    speaks: Counter[str] = field(default_factory=Counter)
    """In how many of them each kind of sensor speaks."""

    def is_seen(self, *sensors: str) -> bool:
        """Say whether one of some kinds of sensors speaks in most seeds."""
        return any(self.speaks[sensor] * 2 > self.num_shown for sensor in sensors)


def seen_by_fault(records: Mapping[str, Record]) -> dict[str, Seen]:
    """Return what each fault shows, for those that a run can be made with."""
    found: dict[str, Seen] = {}
    quiet: dict[str, set[str]] = {}
    others = rules_baseline.OtherSeeds(records)
    for key, record in records.items():
        kind, fault, seed = key.split("/")
        sound = records.get(f"sound/{record.get('sound')}/{seed}")
        if kind != "fault" or sound is None or not record.get("series") or not sound.get("series"):
            continue
        seen = found.setdefault(fault, Seen())
        if not changed(record, sound):
            continue
        seen.num_shown += 1
        if sound["key"] not in quiet:
            quiet[sound["key"]] = alarms_of(sound)
        said = {
            "rules": alarms_of(record) - quiet[sound["key"]],
            "baseline": others.alarms(record, record["sound"], seed)
            - others.alarms(sound, record["sound"], seed),
            "ledger": record.get("ledger", {}).keys() - sound.get("ledger", {}).keys(),
            "guards": record.get("guards", {}).keys() - sound.get("guards", {}).keys(),
        }
        for sensor, names in said.items():
            seen.by[sensor].update(name.removeprefix("ledger: ").removeprefix("guard ") for name in names)
            seen.speaks[sensor] += bool(names)
    return found


def exceeds_spread(faulty: Sequence[Record], sound: Sequence[Record]) -> list[str]:
    """Return the series in which the effect of a fault is larger than what differs between seeds.

    The mean of a series over the run, in every run with the fault, lies farther from the mean of the sound runs than
    these lie from one another; or the series is logged in all runs of one kind and in none of the other.
    """
    found = []
    here, there = [_means(record) for record in faulty], [_means(record) for record in sound]
    for tag in sorted({tag for means in (*here, *there) for tag in means}):
        with_F = [means[tag] for means in here if tag in means]
        without_S = [means[tag] for means in there if tag in means]
        if not with_F or not without_S:
            logged = len(with_F) + len(without_S)
            found += [tag] if logged == len(here if with_F else there) else []
        elif (len(with_F), len(without_S)) == (len(here), len(there)):
            level, spread = np.mean(without_S), np.ptp(without_S)
            least = min(abs(value - level) for value in with_F)
            found += [tag] if least > spread + 1e-9 * abs(level) else []
    return found


def _means(record: Record) -> dict[str, float]:
    """Return the mean of each series but those of the clock; one that is not finite somewhere is left out."""
    return {
        tag: float(np.mean(values))
        for tag, (_, values) in record["series"].items()
        if not tag.startswith(CLOCK) and values and np.isfinite(values).all()
    }


def with_an_effect(records: Mapping[str, Record], found: Mapping[str, Seen]) -> tuple[dict[str, Seen], int]:
    """Return the faults whose effect exceeds the spread of sound runs, and how many have enough seeds to tell."""
    large, num_told = {}, 0
    for fault, seen in found.items():
        faulty = [
            record
            for key, record in records.items()
            if key.startswith(f"fault/{fault}/") and record.get("series")
        ]
        sound = [
            records.get(f"sound/{record['sound']}/{record['key'].split('/')[2]}", {}) for record in faulty
        ]
        if not seen.num_shown or len(faulty) < FEWEST_SEEDS or not all(one.get("series") for one in sound):
            continue
        num_told += 1
        if exceeds_spread(faulty, sound):
            large[fault] = seen
    return large, num_told


def by_chance(records: Mapping[str, Record]) -> tuple[int, int]:
    """Return how often five clean runs differ so from five others of their configuration, and of how many pairs."""
    groups: dict[str, list[list[Record]]] = {}
    for key, record in records.items():
        kind, name, _ = key.split("/")
        if kind == "clean" and record.get("series"):
            of_name = groups.setdefault(name, [[]])
            of_name[-1].append(record)
            if len(of_name[-1]) == FEWEST_SEEDS:
                of_name.append([])
    pairs = [
        (one, other)
        for of_name in groups.values()
        for one in of_name
        for other in of_name
        if one is not other and len(one) == len(other) == FEWEST_SEEDS
    ]
    return sum(bool(exceeds_spread(*pair)) for pair in pairs), len(pairs)


def half_of(fault: str) -> str:
    """Return the half that a fault is in."""
    return "tuned" if hashlib.sha256(f"half {fault}".encode()).digest()[0] % 2 else "held-out"


def rates(found: Mapping[str, Seen]) -> list[str]:
    """Return a line of a Markdown table for each half, and for both."""
    lines = [
        "| faults | that show | rules | with a baseline | ledger laws | guards | laws or guards | any |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for half in ("tuned", "held-out", "all"):
        shown = [seen for fault, seen in found.items() if seen.num_shown and half in (half_of(fault), "all")]
        kinds = (("rules",), ("rules", "baseline"), ("ledger",), ("guards",), ("ledger", "guards"), SENSORS)
        counts = [sum(seen.is_seen(*kind) for seen in shown) for kind in kinds]
        shares = " | ".join(f"{count} ({100 * count / max(1, len(shown)):.0f} %)" for count in counts)
        lines.append(f"| {half} | {len(shown)} | {shares} |")
    return lines


def page(found: Mapping[str, Seen]) -> str:
    """Return the table by fault and sensor, as Markdown."""
    what = {plant.id: plant.what for plant in all_plants()}
    lines = [
        "| fault | what is wrong | rules | with a baseline | ledger laws | guards |",
        "|---|---|---|---|---|---|",
    ]
    for fault, seen in sorted(found.items()):
        if seen.num_shown:
            cells = [
                ", ".join(f"{name} {count}" for name, count in seen.by[kind].most_common(3))
                for kind in SENSORS
            ]
            lines.append(f"| {fault} | {what.get(fault, '')} | {' | '.join(cell or '-' for cell in cells)} |")
    return "\n".join(lines) + "\n"


def judge_clean(records: Mapping[str, Record], healthy: Path | None) -> int:
    """Print what alarms in clean runs, note how often each rule could judge one, and return how many alarm."""
    clean = {key: record for key, record in records.items() if key.startswith("clean/")}
    judged = {key: judge_log(log_of(record), all_rules()) for key, record in clean.items()}
    false_alarms = 0
    for key, record in clean.items():
        alarms = [item.rule.id for item in judged[key] if item.finding.level is Level.ALARM]
        other = [*record.get("ledger", {}), *record.get("guards", {})]
        false_alarms += bool(alarms or other)
        if alarms or other:
            print(f"{key}: {alarms} {other}")
    print(f"clean: {false_alarms} of {len(clean)} alarm")
    if healthy is not None:
        note(healthy, "clean runs of refrl", list(judged.values()))
    return false_alarms


def main() -> int:
    """Print the rates; write the table; return 1 where a clean run alarms."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--page", type=Path, help="write the table by fault there, as Markdown")
    parser.add_argument(
        "--healthy", type=Path, help="write there how often each rule judged a clean run, and alarmed"
    )
    arguments = parser.parse_args()
    records = records_of(arguments.runs)
    false_alarms = judge_clean(records, arguments.healthy)
    found = seen_by_fault(records)
    print("\n".join(rates(found)))
    print(f"{sum(not seen.num_shown for seen in found.values())} more change no logged series")
    large, num_told = with_an_effect(records, found)
    if num_told:
        print(
            f"\n{len(large)} of {num_told} have an effect that exceeds the spread of {FEWEST_SEEDS} sound seeds:"
        )
        print("\n".join(rates(large)))
        print("by chance, {} of {} pairs of clean runs".format(*by_chance(records)))
    if arguments.page:
        write_whole(arguments.page, page(found))
    return 1 if false_alarms else 0


if __name__ == "__main__":
    sys.exit(main())
