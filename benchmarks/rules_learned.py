"""What bounds that are learned from healthy runs would add to the rules, by leaving repositories out.

    python benchmarks/rules_learned.py FOLDER [--least 8]

FOLDER holds ID/NAME for each log of the tuning half (`rules_corpus.py --fetch`). Of each canonical metric of a run four
figures are taken: its median over the last third, its largest and smallest value, and the last third over the first.
The bounds of a figure are its extremes over the healthy runs of other repositories with the same kind of algorithm,
each widened by their distance (in logarithms where all are positive); fewer than `--least` runs give none.
A run is outside where one of its figures is. Printed are, for each label, the runs that are outside and those among
them that no rule alarms or notices, and the figures that say so.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import rules_corpus

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.rules.engine import all_rules, judge_streams
from seatrial.rules.rule import Level, streams_of

METRICS = (
    "loss",
    "grad_norm",
    "entropy",
    "kl/reference",
    "clip_fraction",
    "length/completion_mean",
    "truncation_fraction",
    "reward/std",
    "reward/zero_variance_fraction",
    "mismatch/importance_ratio",
    "mismatch/logprob_abs_diff",
    "ratio/mean",
    "learning_rate",
    "preference/margin",
)


class Run(NamedTuple):
    """One log: who wrote it, what it is labelled, its figures, and whether a rule says something."""

    repository: str
    kind: str
    label: str
    figures: dict[str, float]
    is_noticed: bool


def kind_of(algorithm: str) -> str:
    """Return the kind of an algorithm whose runs are compared."""
    words = algorithm.lower()
    return next((kind for kind in ("sft", "dpo") if kind in words), "reinforcement")


def figures_of(streams: Any) -> dict[str, float]:
    """Return the figures of a run by metric and name."""
    found = {}
    for name in METRICS:
        series = streams.one(name)
        if series is None:
            continue
        values = series.values[np.isfinite(series.values)]
        third = len(values) // 3
        if third < 3:
            continue
        early, late = np.median(values[:third]), np.median(values[-third:])
        found |= {
            f"{name} late": float(late),
            f"{name} max": float(values.max()),
            f"{name} min": float(values.min()),
        }
        if early > 0 and late > 0:
            found[f"{name} growth"] = float(late / early)
    return found


def outside(run: Run, others: list[Run], least: int) -> list[str]:
    """Return the figures of a run that lie outside of the bounds of others."""
    found = []
    for name, value in run.figures.items():
        known = np.array([one.figures[name] for one in others if name in one.figures])
        if len(known) < least:
            continue
        if known.min() > 0 and value > 0:
            known, value = np.log(known), float(np.log(value))
        width = known.max() - known.min()
        if not known.min() - width <= value <= known.max() + width:
            found.append(name)
    return found


def load(folder: Path) -> list[Run]:
    """Return the runs of the tuning half that can be read."""
    runs = []
    for log in rules_corpus.load():
        if log["half"] != "tuning" or log["label"] == "cannot say":
            continue
        (path,) = (folder / log["id"]).iterdir()
        try:
            streams = streams_of(read_logs(path))
        except BlockedError:
            continue
        noticed = any(item.finding.level >= Level.NOTICE for item in judge_streams(streams, all_rules()))
        kind = kind_of(log["algorithm"])
        runs.append(Run(log["repository"], kind, log["label"], figures_of(streams), noticed))
    return runs


def main() -> None:
    """Print what the bounds say of each label."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--least", type=int, default=8, help="least number of healthy runs of a bound")
    arguments = parser.parse_args()
    runs = load(arguments.folder)
    healthy = [run for run in runs if run.label.startswith("healthy")]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        others = [one for one in healthy if one.repository != run.repository and one.kind == run.kind]
        found = outside(run, others, arguments.least)
        counts[run.label].update(["runs", *(["outside"] if found else []), *found])
        if found and not run.is_noticed:
            counts[run.label].update(["outside alone"])
    print(f"{'label':18}{'runs':>6}{'outside':>9}{'and no rule':>13}  figures")
    for label, count in counts.items():
        figures = ", ".join(
            f"{name} {number}"
            for name, number in count.most_common()
            if " " in name and "outside" not in name
        )
        print(f"{label:18}{count['runs']:6}{count['outside']:9}{count['outside alone']:13}  {figures}")


if __name__ == "__main__":
    main()
