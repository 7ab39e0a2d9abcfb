"""What the rules see of faults of known form in healthy public logs, and of the logs themselves.

    python benchmarks/rules_forms.py FOLDER [--seeds 1] [--only WORDS] [--json FILE]

FOLDER holds ID/NAME for each log of `rules_corpus.yaml` (`rules_corpus.py --fetch`). A form changes the series of a
healthy log from one point on: the reward falls to its floor, the loss leaves its scale, and so on. Onset, shape and
noise are drawn from a hash. Each result is thinned to a number of points, and judged with all columns and with a few.
The same thinning of the unchanged log counts false alarms.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import rules_corpus

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import Series
from seatrial.rules.engine import all_rules, judge_log
from seatrial.rules.monitor import _whole_columns
from seatrial.rules.rule import Level, Streams, streams_of

REWARD, LOSS, LENGTH, CUT = "reward/mean", "loss", "length/completion_mean", "truncation_fraction"
POINTS = (15, 25, 50, 100, 10**6)
"""Numbers of points to which a log is thinned."""
VISIBLE = 4.0
"""Noise widths by which a reward must fall."""
FEW = (REWARD, LOSS)
"""Columns of the poorest logs."""
Columns = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Form:
    """A fault by the shape of its curves."""

    name: str
    label: str
    """What a reader of the curves calls it."""
    needs: tuple[str, ...]
    change: Callable[[Columns, Splice], None]


@dataclass(frozen=True, kw_only=True)
class Splice:
    """Where and how a form begins."""

    random: np.random.Generator
    onset: float
    """Share of the run."""
    ramp: float
    """Share of the run over which it grows."""
    noise: float
    """Of the run's own noise, what is left afterwards."""

    def weight(self, number: int) -> np.ndarray:
        """Return 0 before the onset and 1 after the ramp, for each point."""
        return np.clip((np.linspace(0, 1, number) - self.onset) / max(self.ramp, 1e-9), 0, 1)

    def towards(self, values: np.ndarray, target: float, noise: float | None = None) -> np.ndarray:
        """Return a series that goes to another level and stays there, with the noise of its own points."""
        weight, spread = self.weight(len(values)), own_noise(values)
        later = target + (self.noise if noise is None else noise) * spread * self.random.standard_normal(
            len(values)
        )
        return np.asarray((1 - weight) * values + weight * later)

    def grow(self, values: np.ndarray, factor: float) -> np.ndarray:
        """Return a series that becomes so many times as large."""
        return np.asarray(values * factor ** self.weight(len(values)))


def own_noise(values: np.ndarray) -> float:
    """Return the spread of a series about its own course."""
    return float(np.median(np.abs(np.diff(values)))) / 0.954 if len(values) > 1 else 0.0


def floor(values: np.ndarray) -> float:
    """Return the lowest that a reward can be, as far as the run shows it."""
    return 0.0 if values.min() >= 0 else float(values.min())


def begin(values: np.ndarray) -> float:
    """Return the level at which a series begins."""
    return float(np.median(values[: max(3, len(values) // 10)]))


def late(values: np.ndarray) -> float:
    """Return the level at which a series ends."""
    return float(np.median(values[-max(3, len(values) // 5) :]))


def _to_floor(columns: Columns, splice: Splice) -> None:
    reward = columns[REWARD]
    low = floor(reward)
    columns[REWARD] = np.maximum(splice.towards(reward, low), low)


def _to_start(columns: Columns, splice: Splice) -> None:
    columns[REWARD] = splice.towards(columns[REWARD], begin(columns[REWARD]), 1.0)


def _half_lost(columns: Columns, splice: Splice) -> None:
    reward = columns[REWARD]
    columns[REWARD] = splice.towards(reward, (begin(reward) + late(reward)) / 2, 1.0)


def _below_start(columns: Columns, splice: Splice) -> None:
    reward = columns[REWARD]
    span = max(6 * own_noise(reward), float(np.std(reward)))
    columns[REWARD] = splice.towards(reward, begin(reward) - span, 1.0)


def _declines(columns: Columns, splice: Splice) -> None:
    reward = columns[REWARD]
    columns[REWARD] = np.asarray(2 * begin(reward) - reward if late(reward) > begin(reward) else reward)


def _length_to_nothing(columns: Columns, splice: Splice) -> None:
    columns[LENGTH] = np.maximum(splice.towards(columns[LENGTH], 0.02 * begin(columns[LENGTH]), 0.0), 1)
    if REWARD in columns:
        _to_floor(columns, splice)


def _freezes(columns: Columns, splice: Splice) -> None:
    """Make the policy deterministic: no entropy, no spread, no gradient, a reward between floor and best."""
    for name, target in (("entropy", 1e-4), ("grad_norm", 1e-6), ("reward/std", 0.0), (LOSS, 0.0)):
        if name in columns:
            columns[name] = splice.towards(columns[name], target, 0.0)
    reward = columns[REWARD]
    columns[REWARD] = splice.towards(reward, (floor(reward) + begin(reward)) / 2, 0.3)


def _times(name: str, factor: float, at_least: float) -> Callable[[Columns, Splice], None]:
    def change(columns: Columns, splice: Splice) -> None:
        grown = splice.grow(np.abs(columns[name]) + 1e-9, factor)
        weight = splice.weight(len(grown))
        columns[name] = np.where(weight > 0, np.maximum(grown, at_least * weight), columns[name])
        if REWARD in columns:
            _to_floor(columns, splice)

    return change


def _entropy_up(columns: Columns, splice: Splice) -> None:
    columns["entropy"] = splice.towards(columns["entropy"], 8.0, 0.3)
    _to_floor(columns, splice)


def _nan(columns: Columns, splice: Splice) -> None:
    columns[LOSS] = np.where(splice.weight(len(columns[LOSS])) > 0, np.nan, columns[LOSS])


def _supervised_up(target: float) -> Callable[[Columns, Splice], None]:
    def change(columns: Columns, splice: Splice) -> None:
        columns[LOSS] = splice.towards(columns[LOSS], target * begin(columns[LOSS]), 1.0)

    return change


def _shuffled(columns: Columns, splice: Splice) -> None:
    """Take every trend out of the reward."""
    columns[REWARD] = splice.random.permutation(columns[REWARD])


def _constant(columns: Columns, splice: Splice) -> None:
    columns[REWARD] = np.full_like(columns[REWARD], floor(columns[REWARD]))


def _supervised_flat(columns: Columns, splice: Splice) -> None:
    columns[LOSS] = splice.random.permutation(columns[LOSS])


def _cut(columns: Columns, splice: Splice) -> None:
    early = replace(splice, onset=min(splice.onset, 0.25))
    columns[CUT] = np.clip(early.towards(columns[CUT], 0.95, 0.1), 0, 1)
    _shuffled(columns, splice)


def _full(columns: Columns, splice: Splice) -> None:
    early = replace(splice, onset=min(splice.onset, 0.25))
    top = 1.5 * float(np.max(columns[LENGTH]))
    columns[LENGTH] = np.minimum(early.towards(columns[LENGTH], 0.99 * top, 0.02), top)
    columns["length/completion_max"] = np.maximum(columns[LENGTH], np.full_like(columns[LENGTH], top))
    columns.pop(CUT, None)
    _shuffled(columns, splice)


def _longer(columns: Columns, splice: Splice) -> None:
    early = replace(splice, ramp=0.4, onset=min(splice.onset, 0.5))
    target = max(8 * begin(columns[LENGTH]), 400.0)
    columns[LENGTH] = early.towards(columns[LENGTH], target, 1.0)
    _shuffled(columns, splice)


FORMS = (
    Form(name="reward to its floor", label="collapsed", needs=(REWARD,), change=_to_floor),
    Form(name="reward back to its start", label="collapsed", needs=(REWARD, "gain 3"), change=_to_start),
    Form(
        name="reward loses half of its gain", label="collapsed", needs=(REWARD, "gain 6"), change=_half_lost
    ),
    Form(name="reward below its start", label="collapsed", needs=(REWARD,), change=_below_start),
    Form(name="reward falls over the run", label="collapsed", needs=(REWARD, "gain 3"), change=_declines),
    Form(name="length to nothing", label="collapsed", needs=(LENGTH, REWARD), change=_length_to_nothing),
    Form(name="policy freezes", label="collapsed", needs=("entropy", REWARD), change=_freezes),
    Form(name="loss times 1e6", label="exploded", needs=(LOSS,), change=_times(LOSS, 1e6, 1e5)),
    Form(name="loss times 30", label="exploded", needs=(LOSS,), change=_times(LOSS, 30, 10)),
    Form(
        name="gradient norm times 1000",
        label="exploded",
        needs=("grad_norm",),
        change=_times("grad_norm", 1e3, 100),
    ),
    Form(name="KL to 50", label="exploded", needs=("kl/reference",), change=_times("kl/reference", 1e3, 50)),
    Form(name="entropy to 8 nats", label="exploded", needs=("entropy", REWARD), change=_entropy_up),
    Form(name="loss NaN", label="exploded", needs=(LOSS,), change=_nan),
    Form(
        name="supervised loss times 5", label="exploded", needs=(LOSS, "supervised"), change=_supervised_up(5)
    ),
    Form(
        name="supervised loss times 2", label="exploded", needs=(LOSS, "supervised"), change=_supervised_up(2)
    ),
    Form(name="cut off at the limit, no gain", label="at the limit", needs=(CUT, REWARD), change=_cut),
    Form(name="length at its longest, no gain", label="at the limit", needs=(LENGTH, REWARD), change=_full),
    Form(
        name="eight times as long, no gain", label="length runs away", needs=(LENGTH, REWARD), change=_longer
    ),
    Form(name="reward without a trend", label="stuck", needs=(REWARD,), change=_shuffled),
    Form(name="reward constant at its floor", label="stuck", needs=(REWARD,), change=_constant),
    Form(
        name="supervised loss without a trend",
        label="stuck",
        needs=(LOSS, "supervised"),
        change=_supervised_flat,
    ),
)


def columns_of(streams: Streams) -> tuple[np.ndarray, Columns]:
    """Return the steps of the longest of the main series, and the metrics that have a value at each of them."""
    main = streams.one(REWARD) or streams.one(LOSS)
    if main is None:
        return np.array([]), {}
    steps = np.unique(main.steps)
    columns = {}
    for name, several in streams.by_name.items():
        series = several[0]
        places = np.searchsorted(series.steps, steps, side="right") - 1
        places = np.maximum(places, 0)
        if (series.steps[places] == steps).mean() > 0.95 and np.isfinite(series.values[places]).all():
            columns[name] = series.values[places].astype(float)
    return steps, columns


def fits(form: Form, columns: Columns) -> bool:
    """Say whether a form can be spliced into a log."""
    for need in form.needs:
        if need == "supervised":
            if REWARD in columns or "advantages/mean" in columns:
                return False
        elif need.startswith("gain"):
            reward = columns[REWARD]
            if late(reward) - begin(reward) < float(need.split()[1]) * own_noise(reward):
                return False
        elif need not in columns:
            return False
    return True


def is_visible(form: Form, before: Columns, after: Columns) -> bool:
    """Say whether a fall of the reward is larger than the run's own noise, so that a reader would see it."""
    if form.label != "collapsed" or (form.needs != (REWARD,) and not form.needs[-1].startswith("gain")):
        return True
    fall = max(late(before[REWARD]), begin(before[REWARD])) - late(after[REWARD])
    return fall >= VISIBLE * own_noise(before[REWARD])


def thinned(number: int, points: int) -> np.ndarray:
    """Return which points of a log are kept."""
    return np.unique(np.linspace(0, number - 1, min(number, points)).round().astype(int))


def said(streams: Streams, steps: np.ndarray, columns: Columns) -> tuple[set[str], set[str]]:
    """Return the rules that alarm on some columns, and those that give a notice."""
    tags = {name: streams.by_name[name][0].tag if name in streams.by_name else name for name in columns}
    series = {
        tags[name]: Series(tag=tags[name], steps=steps, values=values) for name, values in columns.items()
    }
    log = replace(streams.log, series=series, parts={}, runs=[], sources=())
    levels: dict[Level, set[str]] = defaultdict(set)
    for item in judge_log(log, all_rules(), streams.stack):
        levels[item.finding.level].add(item.rule.id)
    return levels[Level.ALARM], levels[Level.NOTICE]


def healthy(folder: Path) -> Iterator[tuple[str, Streams]]:
    """Yield the logs that were labelled healthy."""
    for log in rules_corpus.load():
        if log["label"].startswith("healthy"):
            (path,) = (folder / log["id"]).iterdir()
            try:
                yield log["id"], streams_of(_whole_columns(read_logs(path)))
            except BlockedError as error:
                print(f"{log['id']} left out: {error}")


def splice_of(key: str) -> Splice:
    """Return onset, ramp and noise by a hash."""
    random = np.random.default_rng(int(hashlib.sha256(key.encode()).hexdigest()[:12], 16))
    return Splice(
        random=random,
        onset=float(random.uniform(0.25, 0.8)),
        ramp=float(random.choice([0.0, 0.1, 0.3])),
        noise=float(random.choice([0.0, 0.3, 1.0])),
    )


def main() -> int:
    """Judge every splice and print recall by form and by number of points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for log, streams in healthy(arguments.folder):
        steps, columns = columns_of(streams)
        if len(steps) < 15:
            continue
        for which in ("all", "few"):
            for points in POINTS:
                if points < 10**6 and points >= len(steps):
                    continue
                keep = thinned(len(steps), points)
                kept = {
                    name: values[keep] for name, values in columns.items() if which == "all" or name in FEW
                }
                if which == "few" and len(kept) == len(columns):
                    continue
                variants = [("unchanged", "healthy", 0, kept)]
                for form in FORMS:
                    if not fits(form, kept) or (arguments.only and arguments.only not in form.name):
                        continue
                    for seed in range(arguments.seeds):
                        changed = dict(kept)
                        form.change(changed, splice_of(f"{log} {form.name} {points} {seed}"))
                        if not is_visible(form, kept, changed):
                            continue
                        variants.append((form.name, form.label, seed, changed))
                for name, label, seed, changed in variants:
                    alarms, notices = said(streams, steps[keep], changed)
                    rows.append(
                        {
                            "log": log,
                            "form": name,
                            "label": label,
                            "columns": which,
                            "points": points,
                            "number": len(keep),
                            "seed": seed,
                            "alarms": sorted(alarms),
                            "notices": sorted(notices),
                        }
                    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows))
    print(table(rows))
    return 0


def table(rows: list[dict[str, object]]) -> str:
    """Draw the share of alarms, and of notices, by form and number of points."""
    names = list(dict.fromkeys(row["form"] for row in rows))
    head = [str(points) if points < 10**6 else "all" for points in POINTS]
    lines = [f"| form | label | {' | '.join(head)} |", f"|---|---|{'---|' * len(head)}"]
    for name in names:
        cells, label = [], ""
        for points in POINTS:
            own = [row for row in rows if row["form"] == name and row["points"] == points]
            if not own:
                cells.append("")
                continue
            label = str(own[0]["label"])
            alarmed = sum(bool(row["alarms"]) for row in own)
            noticed = sum(bool(row["alarms"] or row["notices"]) for row in own)
            cells.append(f"{100 * alarmed / len(own):.0f} % ({100 * noticed / len(own):.0f} %) of {len(own)}")
        lines.append(f"| {name} | {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
