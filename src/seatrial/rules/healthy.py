"""Earlier healthy runs of one configuration, with which rules compare a run.

Everything is learned from the healthy runs alone: series that all of them log at the same steps, series that are the
same in all of them, and the bands of those that differ (`seatrial.rules.bands`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.configuration import Options, differences
from seatrial.evidence.runlog import RunLog, Series
from seatrial.rules.bands import ROUNDING, ZERO, Array, Band, Steps, learn_bands
from seatrial.vocabulary import MACHINE_UNITS, Metric, Stack, canonical, forms_of, recognise

BASELINE = "baseline"
"""The missing input of this family's rules without healthy runs; it is listed with canonical metrics, but is none."""
BASELINE_MEANING = "logs of earlier healthy runs of the same configuration: --baseline LOG LOG LOG LOG"
MIN_RUNS = 4
FALSE_ALARMS = 0.002
_CLOCK = re.compile(
    r"(?:^|[/_.])(?:time|times|timing|timers?|perf|performance|ray|system|seconds|secs?|runtime|memory|mem|gpu|cpu|throughput"
    r"|mfu|wall|elapsed|duration)(?:[/_.]|$)|per_sec|per_second|tokens_per_s\b|_s$|_ms$",
    re.IGNORECASE,
)
"""Tags of series that describe the machine, where the vocabulary does not know them."""


class Fixed(NamedTuple):
    """A series that is the same in all healthy runs."""

    tag: str
    steps_S: Steps
    values_S: Array
    tolerance: float
    num_samples: int


class Expected(NamedTuple):
    """A series that all healthy runs log at the same steps."""

    tag: str
    steps_S: Steps


@dataclass(frozen=True, kw_only=True)
class HealthyRuns:
    """What earlier healthy runs logged, one log each."""

    logs: Sequence[RunLog]
    configurations: Sequence[Options | None] = ()
    """Of each run, where one is next to its log."""

    @cached_property
    def stack(self) -> Stack | None:
        """The stack that wrote the first log."""
        return recognise(self.logs[0].tags())

    @cached_property
    def why_not(self) -> str | None:
        """Why nothing can be learned from them; None where it can."""
        if len(self.logs) < MIN_RUNS:
            return f"{len(self.logs)} healthy runs are given, at least {MIN_RUNS} are needed"
        if not self.tags:
            return "the healthy runs have no series in common"
        known = [one for one in self.configurations if one is not None]
        for other in known[1:]:
            if keys := differences(known[0], other):
                return f"the healthy runs are of several configurations: {_listed(keys)} differ"
        return None

    def differs_from(self, configuration: Options | None) -> list[str]:
        """Return the keys in which a run's configuration differs from theirs."""
        known = [one for one in self.configurations if one is not None]
        return differences(known[0], configuration) if known and configuration is not None else []

    @cached_property
    def tags(self) -> list[str]:
        """Tags that every one of them logs, sorted."""
        return sorted(set.intersection(*(_logged(log) for log in self.logs)))

    @cached_property
    def all_tags(self) -> set[str]:
        """Tags that any of them logs."""
        return set.union(*(_logged(log) for log in self.logs))

    @cached_property
    def expected(self) -> list[Expected]:
        """Series that all log at the same steps; clocks are among them."""
        found = []
        for tag in self.tags:
            first, *others = (np.unique(log.series[tag].steps) for log in self.logs)
            if all(np.array_equal(first, other) for other in others):
                found.append(Expected(tag, first))
        return found

    @cached_property
    def fixed(self) -> list[Fixed]:
        """Series whose values agree at every step."""
        found = []
        for tag, (steps_S, values_NS) in self._values.items():
            tolerance = self._tolerance(tag, values_NS)
            if (np.abs(values_NS - values_NS[0]) <= tolerance).all():
                found.append(Fixed(tag, steps_S, values_NS[0], tolerance, values_NS.size))
        return found

    @cached_property
    def bands(self) -> list[Band]:
        """Bands of the series that differ."""
        fixed = {one.tag for one in self.fixed}
        with np.errstate(over="ignore", invalid="ignore"):
            return learn_bands(
                {tag: found for tag, found in self._values.items() if tag not in fixed}, FALSE_ALARMS
            )

    def metric(self, tag: str) -> Metric | None:
        """Return what a tag is, where the vocabulary knows it."""
        return canonical(tag, self.stack)

    def in_log(self, tag: str, log: RunLog) -> Series | None:
        """Return the series of a log that a tag of theirs is, also where its format writes `loss` for `train/loss`."""
        forms = (tag, *forms_of(tag), tag.removeprefix("train/"), tag.replace("eval/", "eval_", 1))
        return next((log.series[form] for form in forms if form in log.series), None)

    @cached_property
    def _values(self) -> dict[str, tuple[Steps, Array]]:
        """Common steps and finite values [N, S] of every series but the clocks."""
        return {tag: found for tag in self.tags if not self._is_clock(tag) and (found := self._common(tag))}

    def _common(self, tag: str) -> tuple[Steps, Array] | None:
        series = [log.series[tag] for log in self.logs]
        steps_S: npt.NDArray[np.int64] = np.unique(series[0].steps)
        for one in series[1:]:
            steps_S = np.intersect1d(steps_S, one.steps)
        if not len(steps_S):
            return None
        values_NS = np.stack(
            [one.values[np.searchsorted(one.steps, steps_S, side="right") - 1] for one in series]
        )
        return (steps_S, values_NS) if np.isfinite(values_NS).all() else None

    def _is_clock(self, tag: str) -> bool:
        metric = self.metric(tag)
        return metric.unit in MACHINE_UNITS if metric else _CLOCK.search(tag) is not None

    def _tolerance(self, tag: str, values_NS: Array) -> float:
        metric = self.metric(tag)
        largest = float(np.abs(values_NS).max())
        # A learning rate may itself be as small as what is rounding elsewhere.
        return ROUNDING * largest + (0.0 if metric and metric.name == "learning_rate" else ZERO)


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Healthy runs to compare one run with."""

    runs: HealthyRuns
    configuration: Options | None = None
    """The run's own."""

    @cached_property
    def why_not(self) -> str | None:
        """Why the run is not compared with them; None where it is."""
        keys = self.runs.differs_from(self.configuration)
        if self.runs.why_not is None and keys:
            return f"the healthy runs have another configuration: {_listed(keys)} differ{'s' if len(keys) == 1 else ''}"
        return self.runs.why_not


def in_order(series: Series) -> tuple[Steps, Array]:
    """Return steps and values of a series, of equal steps the last value."""
    if not len(series):
        return series.steps, series.values
    last = np.append(series.steps[1:] != series.steps[:-1], True)
    return series.steps[last], series.values[last]


def _logged(log: RunLog) -> set[str]:
    return {tag for tag, series in log.series.items() if len(series)}


def _listed(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return f"{', '.join(keys[:3])}{more}"


def departed(fixed: Fixed, steps: Steps, values: Array) -> Iterator[tuple[int, float, float]]:
    """Yield (step, value, healthy value) where a run differs from a series that is the same in all healthy runs."""
    common, mine, theirs = np.intersect1d(steps, fixed.steps_S, return_indices=True)
    for step, value, healthy in zip(common, values[mine], fixed.values_S[theirs], strict=True):
        if not abs(value - healthy) <= fixed.tolerance:
            yield int(step), float(value), float(healthy)
