"""A run against earlier healthy runs of the same configuration: what is equal in all of them, and how the rest varies.

Without healthy runs (`seatrial watch --baseline`) the family is not triggered; nor where their configuration is another
one, or they are too few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seatrial.evidence.runlog import RunLog
from seatrial.rules.bands import CLIP, MIN_POINTS, Departure
from seatrial.rules.healthy import (
    BASELINE,
    FALSE_ALARMS,
    MIN_RUNS,
    Baseline,
    Fixed,
    HealthyRuns,
    departed,
    in_order,
)
from seatrial.rules.rule import Finding, Level, Parameter, Rule, Streams, not_triggered

_CLEAN = "no clean run of refrl of a half of them departs so"
_RUNS = Parameter(MIN_RUNS, "fewest that it was measured with")
_SETTINGS = ("learning_rate", "rows/batch", "rows/counted")
"""Canonical metrics that the configuration sets: any change that lasts is reported."""


class Said(NamedTuple):
    """What is wrong with one series."""

    level: Level
    step: int
    tag: str
    words: str
    value: float | None = None
    bound: str | None = None


@dataclass(frozen=True, kw_only=True)
class _BaselineRule(Rule):
    """What the rules of this family have in common."""

    family: str = "baseline"
    needs: Sequence[str] = (BASELINE,)

    def judge(self, streams: Streams) -> Finding:
        """Compare the log with the healthy runs."""
        baseline = streams.baseline
        if baseline is None:
            return not_triggered("give earlier healthy runs of this configuration (--baseline)", self.needs)
        why_not = baseline.why_not or _too_little_in_common(baseline, streams.log)
        if why_not is not None:
            return not_triggered(why_not)
        judged, found = self.look(baseline.runs, streams.log)
        if not judged:
            return not_triggered("no series of the healthy runs that it judges")
        return self._finding(judged, list(found), streams.log)

    def look(self, runs: HealthyRuns, log: RunLog) -> tuple[Sequence[str], Iterable[Said]]:
        """Return the tags that are judged, and what is wrong."""
        raise NotImplementedError

    def _finding(self, judged: Sequence[str], found: Sequence[Said], log: RunLog) -> Finding:
        series = [one for tag in judged if (one := log.series.get(tag)) is not None and len(one)]
        steps = (
            (min(int(one.steps[0]) for one in series), max(int(one.steps[-1]) for one in series))
            if series
            else None
        )
        number = sum(len(one) for one in series)
        if not found:
            return Finding(
                level=Level.QUIET,
                reason="in order",
                tags=tuple(judged[:2]),
                bound=f"as in the healthy runs, {len(judged)} series",
                num_samples=number,
                steps=steps,
            )
        level = max(one.level for one in found)
        # Findings at one step are already sorted, the clearest first.
        first, *others = sorted((one for one in found if one.level is level), key=lambda one: one.step)
        more = f", and {len(others)} more series" if others else ""
        return Finding(
            level=level,
            reason=f'{self.statement}: "{first.tag}" {first.words}{more}; usually {self.meaning}',
            tags=tuple(dict.fromkeys([first.tag, *(one.tag for one in others)])),
            step=first.step,
            value=first.value if first.value is not None and np.isfinite(first.value) else None,
            bound=first.bound,
            num_samples=number,
            steps=steps,
        )


class SameSeries(_BaselineRule):
    """Series that are the same in all healthy runs."""

    def look(self, runs: HealthyRuns, log: RunLog) -> tuple[Sequence[str], Iterable[Said]]:
        """Look at each of them that rests on enough samples."""
        found, judged = [], []
        for fixed in runs.fixed:
            series = runs.in_log(fixed.tag, log)
            metric = runs.metric(fixed.tag)
            is_setting = metric is not None and metric.name in _SETTINGS
            if series is None or not self._rests_on_enough(fixed, is_setting):
                continue
            judged.append(series.tag)
            away = list(departed(fixed, *in_order(series)))
            step = self._lasting(fixed, [step for step, _, _ in away], is_setting)
            if step is not None:
                _, value, healthy = next(one for one in away if one[0] == step)
                words = f"is {value:.7g} at step {step}, {healthy:.7g} in all {len(runs.logs)} healthy runs"
                found.append(Said(Level.ALARM, step, series.tag, words, value, f"== {healthy:.7g}"))
        return judged, found

    def _rests_on_enough(self, fixed: Fixed, is_setting: bool) -> bool:
        least = self.parameters["samples"].value
        return is_setting or (fixed.num_samples >= least and len(fixed.steps_S) >= MIN_POINTS)

    def _lasting(self, fixed: Fixed, steps: Sequence[int], is_setting: bool) -> int | None:
        """Return the first step at which so many of the last ones departed, or None."""
        of_last = min(int(self.parameters["of_last"].value), len(fixed.steps_S))
        share = self.parameters["share"].value
        least = min(2, of_last) if is_setting else int(np.ceil(share * of_last))
        places = np.searchsorted(fixed.steps_S, steps)
        for number in range(least - 1, len(places)):
            if places[number] - places[number - least + 1] < of_last:
                return steps[number]
        return None


class LevelOfSeries(_BaselineRule):
    """Series that differ between healthy runs."""

    def look(self, runs: HealthyRuns, log: RunLog) -> tuple[Sequence[str], Iterable[Said]]:
        """Look at each window of each series."""
        found, judged = [], []
        for band in runs.bands:
            series = runs.in_log(band.tag, log)
            if series is None:
                continue
            judged.append(series.tag)
            departures = list(band.departures(*in_order(series)))
            if departures:
                found.append(self._said(series.tag, departures, len(runs.logs)))
        return judged, found

    def _said(self, tag: str, departures: Sequence[Departure], num_runs: int) -> Said:
        """Alarm at the second window on one side; a notice at the first."""
        least = int(self.parameters["windows"].value)
        sides = [[one for one in departures if one.is_above is side] for side in (True, False)]
        full = [side[least - 1] for side in sides if len(side) >= least]
        level, at = (
            (Level.ALARM, min(full, key=lambda one: one.steps[1])) if full else (Level.NOTICE, departures[0])
        )
        words = (
            f"is {at.value:.6g} on the mean of steps {at.steps[0]}-{at.steps[1]}, where {num_runs} healthy runs "
            f"vary from {at.low:.6g} to {at.high:.6g}"
        )
        return Said(level, at.steps[1], tag, words, at.value, f"{at.low:.6g} to {at.high:.6g}")


class StepsOfSeries(_BaselineRule):
    """Which series are logged, and at which steps."""

    def look(self, runs: HealthyRuns, log: RunLog) -> tuple[Sequence[str], Iterable[Said]]:
        """Compare up to the third last step of the log: rows of the last steps may still be written."""
        all_steps = np.unique(np.concatenate([one.steps for one in log.series.values() if len(one)]))
        passed = int(all_steps[-3]) if len(all_steps) > 2 else None
        if passed is None:
            return [], []
        found, judged = [], []
        for expected in runs.expected:
            due = expected.steps_S[expected.steps_S <= passed]
            series = runs.in_log(expected.tag, log)
            if series is None:
                if len(due) >= 2:
                    words = f"is not logged, all {len(runs.logs)} healthy runs have it from step {due[0]} on"
                    found.append(Said(Level.ALARM, int(due[1]), expected.tag, words))
                continue
            judged.append(series.tag)
            last = min(passed, int(expected.steps_S[-1]))
            wrong = np.setxor1d(due, series.steps[series.steps <= last])
            if len(wrong):
                share = len(wrong) / max(1, len(due))
                lasting = len(wrong) >= 2 or share >= self.parameters["share"].value
                words = f"is logged at other steps than in the healthy runs, the first {wrong[0]}"
                found.append(Said(Level.ALARM if lasting else Level.NOTICE, int(wrong[0]), series.tag, words))
        known = {form for tag in runs.all_tags if (one := runs.in_log(tag, log)) for form in (tag, one.tag)}
        for tag in sorted(set(log.series) - known):
            if len(log.series[tag]):
                step = int(log.series[tag].steps[0])
                found.append(Said(Level.NOTICE, step, tag, "is logged, and in no healthy run"))
        return judged, found


def _too_little_in_common(baseline: Baseline, log: RunLog) -> str | None:
    shared = sum(baseline.runs.in_log(tag, log) is not None for tag in baseline.runs.tags)
    if 2 * shared < len(baseline.runs.tags):
        return (
            f"the log has {shared} of the {len(baseline.runs.tags)} series of the healthy runs: another stack, or "
            "a log of another form"
        )
    return None


RULES: tuple[Rule, ...] = (
    SameSeries(
        id="baseline-same",
        statement="a series that is the same in all healthy runs differs, and stays so",
        meaning="an option or default that changed, rows that are lost, or an agreement that a change of code broke",
        remedy="compare commit, packages and options with those of the healthy runs; `seatrial bisect` between them",
        catalogue=("SB217", "SB218", "SB225", "SB304"),
        parameters={
            "runs": _RUNS,
            "samples": Parameter(20, f"over all healthy runs, so that it is no accident; {_CLEAN}"),
            "share": Parameter(
                0.8, f"of the last points; {_CLEAN}. Two points of a learning rate or a number of rows"
            ),
            "of_last": Parameter(10, "hand-set: a spike that recovers is no alarm"),
        },
    ),
    LevelOfSeries(
        id="baseline-level",
        statement="a series leaves the band of the healthy runs and stays outside",
        meaning="a change of what is sampled, rewarded or learned that no identity forbids",
        remedy="look at both on one page (`seatrial report LOG HEALTHY`); `seatrial bisect` between their commits",
        catalogue=("SB003", "SB008", "SB018", "SB028", "SB036", "SB360"),
        parameters={
            "runs": _RUNS,
            "false_alarms": Parameter(
                FALSE_ALARMS,
                "of all windows of all series together, for independent normal noise; set on half of the faults",
            ),
            "windows": Parameter(2, f"on one side, of one series: one alone is a notice; {_CLEAN}"),
            "clip": Parameter(
                CLIP, "spreads that one step counts for at most, so that a spike cannot carry a window"
            ),
        },
    ),
    StepsOfSeries(
        id="baseline-steps",
        statement="what is logged, or when, is not as in the healthy runs",
        meaning="a phase, a validation or a metric that is skipped, added or made at other steps",
        remedy="compare the schedule of validation, checkpoints and logging with that of the healthy runs",
        catalogue=("SB398",),
        parameters={
            "runs": _RUNS,
            "share": Parameter(0.2, "hand-set: of the steps, where only one is wrong; otherwise a notice"),
        },
    ),
)
