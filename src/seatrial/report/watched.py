"""Runs of any stack as a report shows them: their log, what the rules find, and the curves that matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seatrial.errors import UsageError
from seatrial.evidence.configuration import find_configuration
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import Series
from seatrial.report.svg import Line, Mark, line_chart
from seatrial.rules.engine import Judged, all_rules, judge_streams
from seatrial.rules.healthy import BASELINE, Baseline, HealthyRuns
from seatrial.rules.rule import Level, Streams, streams_of
from seatrial.trials.rundir import RESULTS
from seatrial.vocabulary import metrics

MAX_POINTS = 600
"""Points of a drawn line; a longer one is drawn by the least and the greatest value of each stretch."""
SERIES_OF_COMPARISON = 3
"""Series that are drawn for a finding that compares with healthy runs."""
SHOWN = (
    "reward/mean",
    "validation/score",
    "loss",
    "grad_norm",
    "entropy",
    "kl/reference",
    "mismatch/mult_prob_error",
    "mismatch/kl",
    "length/completion_mean",
    "truncation_fraction",
    "preference/margin",
    "learning_rate",
)
"""Canonical metrics that a page and a terminal show of a run, where it logs them."""


_MEANINGS = {Level.QUIET: "found nothing", Level.NOT_TRIGGERED: "lack an input: `seatrial watch --missing`"}


def rule_counts(judged: Sequence[Judged]) -> str:
    """Return how many rules there are, and how many of each level."""
    words = []
    for level in sorted(Level, reverse=True):
        number = sum(item.finding.level is level for item in judged)
        meaning = f" ({_MEANINGS[level]})" if level in _MEANINGS else ""
        words.append(f"{number} {level.word}{meaning}")
    return f"{len(judged)} rules: {', '.join(words)}"


@dataclass(frozen=True, kw_only=True)
class WatchedRun:
    """A run and what the rules find in it."""

    name: str
    streams: Streams
    judged: Sequence[Judged]

    @property
    def last_step(self) -> int:
        """The last step that any series has."""
        return max((int(s.steps[-1]) for s in self.streams.log.series.values() if len(s)), default=0)

    def at(self, level: Level) -> list[Judged]:
        """Return the findings of a level, by their step."""
        found = [item for item in self.judged if item.finding.level is level]
        return sorted(found, key=lambda item: item.finding.step or 0)


def watched(name: str, path: Path, healthy: HealthyRuns | None = None) -> WatchedRun:
    """Read a log and run every rule on it, with healthy runs to compare with where they are given.

    Raises:
        BlockedError: it cannot be read.
    """
    baseline = Baseline(runs=healthy, configuration=find_configuration(path)) if healthy is not None else None
    streams = streams_of(read_logs(path), baseline=baseline)
    return WatchedRun(name=name, streams=streams, judged=judge_streams(streams, all_rules()))


def logs_of(path: Path) -> dict[str, Path]:
    """Return the logs of a place by name: those of the trials of a run directory, or the place itself.

    Raises:
        UsageError: a run directory has none.
    """
    if not (path / RESULTS).is_file():
        return {"": path}
    trials = path / "trials"
    found = {str(log.parent.relative_to(trials)): log for log in sorted(trials.rglob("metrics.json"))}
    if not found:
        raise UsageError(
            f"{path} holds no trial that logged a metrics.json: name a run that got so far, or a log"
        )
    return found


def charts(runs: Sequence[WatchedRun]) -> Iterator[str]:
    """Yield a chart of each metric that any run logs: those of alarms and notices first."""
    loud = [item for level in (Level.ALARM, Level.NOTICE) for run in runs for item in run.at(level)]
    names: dict[str, None] = {}
    for item in loud:
        names |= dict.fromkeys(_shown_of(item))
    for name in dict.fromkeys((*names, *SHOWN)):
        chart = _chart(name, runs)
        if chart is not None:
            yield chart


def _shown_of(item: Judged) -> Sequence[str]:
    """Return the metrics that show a finding: those that the rule needs, or the first that differ from healthy runs."""
    return item.finding.tags[:SERIES_OF_COMPARISON] if BASELINE in item.rule.needs else item.rule.needs


def _chart(name: str, runs: Sequence[WatchedRun]) -> str | None:
    lines, marks = [], []
    for run in runs:
        series = run.streams.one(name) or run.streams.log.series.get(name)
        if series is None or not len(series):
            continue
        steps, values = thinned(series)
        lines.append(Line(name=f"{run.name}: {series.tag}", xs=steps.tolist(), ys=values.tolist()))
        marks += [
            Mark(
                x=float(item.finding.step),
                text=item.rule.id,
                line=len(lines) - 1,
                dashed=level is Level.NOTICE,
            )
            for level in (Level.ALARM, Level.NOTICE)
            for item in run.at(level)
            if name in _shown_of(item) and item.finding.step is not None
        ]
    if not lines:
        return None
    metric = metrics().get(name)
    unit = "" if metric is None or metric.unit == "none" else metric.unit
    return line_chart(lines, title=name, x_label="step", y_label=unit, marks=marks, with_data=True)


def thinned(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values of at most `MAX_POINTS` points that keep every visible extreme."""
    if len(series) <= MAX_POINTS:
        return series.steps, series.values
    places: list[int] = []
    for part in np.array_split(np.arange(len(series)), MAX_POINTS // 2):
        finite = part[np.isfinite(series.values[part])]
        if len(finite):
            values = series.values[finite]
            places += sorted({int(finite[values.argmin()]), int(finite[values.argmax()])})
        else:
            places.append(int(part[0]))
    return series.steps[places], series.values[places]
