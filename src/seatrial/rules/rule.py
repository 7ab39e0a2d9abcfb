"""What a rule is, the named series it looks at, and what it finds: quiet, a notice, an alarm, or not triggered.

A rule that has its inputs reports whether the run is in order; a rule without them reports which metric would trigger
it and is Skipped (docs/extend/verdicts.md).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.configuration import Options, find_configuration
from seatrial.evidence.runlog import RunLog, Series
from seatrial.rules.healthy import Baseline
from seatrial.rules.windows import Flags, Floats
from seatrial.verdict import Outcome, Verdict
from seatrial.vocabulary import (
    Stack,
    by_parts,
    canonical,
    evaluates,
    is_task_score,
    plain_names,
    recognise,
    tag_of,
    words_of,
)


@dataclass(frozen=True, kw_only=True)
class Streams:
    """A log as rules see it."""

    log: RunLog
    stack: Stack | None
    """The stack that wrote the log; None where it is unknown, and plain names of metrics are used."""
    by_name: Mapping[str, Sequence[Series]]
    """Every series by canonical name; the main one of several tags is the first."""
    baseline: Baseline | None = None
    """Earlier healthy runs of the same configuration, where they are given."""

    @cached_property
    def configuration(self) -> Options | None:
        """The run's configuration, where one is next to its log."""
        return find_configuration(Path(self.log.sources[0])) if self.log.sources else None

    @cached_property
    def unknown(self) -> list[str]:
        """Tags of series whose meaning is not known."""
        known = {one.tag for several in self.by_name.values() for one in several}
        return sorted(tag for tag, series in self.log.series.items() if tag not in known and len(series))

    def one(self, name: str) -> Series | None:
        """Return the series of a canonical metric, or None."""
        found = self.by_name.get(name)
        return found[0] if found else None


def streams_of(log: RunLog, stack: Stack | None = None, baseline: Baseline | None = None) -> Streams:
    """Name the series of a log; the stack is recognised where none is given."""
    tags = log.tags()
    stack = stack or recognise(tags)
    by_name: dict[str, list[Series]] = {}
    guessed: dict[str, list[Series]] = {}
    scores: list[Series] = []
    for tag, series in log.series.items():
        metric = canonical(tag, stack)
        name = metric.name if metric else plain_names().get(tag) if stack is None else None
        if len(series):
            if name is not None:
                by_name.setdefault(name, []).append(series)
            elif (name := by_parts(tag)) is not None:
                guessed.setdefault(name, []).append(series)
            elif is_task_score(tag):
                scores.append(series)
    # Words of a tag count where no table lists another tag of that metric, and one tag alone has them, or the
    # shortest path, or the fewest words.
    for name, several in guessed.items():
        several.sort(key=lambda one: (*_plainness(one.tag), one.tag))
        is_clear = len(several) == 1 or _plainness(several[0].tag) < _plainness(several[1].tag)
        if name not in by_name and (is_clear or name == "validation/score"):
            by_name[name] = several
    _place_scores(by_name, scores, tags)
    for name, several in by_name.items():
        first = tag_of(name, stack, [one.tag for one in several])
        several.sort(key=lambda one: (one.tag != first, one.tag.count("/"), one.tag))
    return Streams(log=log, stack=stack, by_name=by_name, baseline=baseline)


def _plainness(tag: str) -> tuple[int, int]:
    """Return the depth of a tag and its number of words: of two tags with one meaning the smaller is the main one."""
    return tag.count("/"), len(words_of(tag))


def _place_scores(by_name: dict[str, list[Series]], scores: list[Series], tags: Sequence[str]) -> None:
    """Name scores of the task: validation next to a reward with twice the points, the reward where there is none."""
    if not scores or any(name.startswith("preference/") for name in by_name):
        return
    reward = by_name.get("reward/mean")
    if reward is None:
        by_name["reward/mean"] = scores[:1]
    elif "validation/score" not in by_name:
        sparse = [one for one in scores if 2 * len(one) <= len(reward[0]) or evaluates(tags)]
        if sparse:
            by_name["validation/score"] = sparse


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """Several series on common steps."""

    steps: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[np.float64]]
    """Values by canonical name, each of the shape of `steps`; NaN where an optional series has no point."""


def align(needed: Mapping[str, Series], optional: Mapping[str, Series | None]) -> Aligned:
    """Align series to the steps at which all needed ones have a finite value."""
    first, *others = needed.values()
    steps = first.steps
    for other in others:
        if not _same(steps, other.steps):
            steps = np.intersect1d(steps, other.steps)
    columns = {name: _at(steps, series) for name, series in needed.items()}
    finite = np.logical_and.reduce([np.isfinite(values) for values in columns.values()])
    if not finite.all():
        steps = steps[finite]
        columns = {name: values[finite] for name, values in columns.items()}
    for name, series in optional.items():
        columns[name] = np.full(len(steps), np.nan) if series is None else _at(steps, series)
    return Aligned(steps=steps, columns=columns)


def _same(steps: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> bool:
    return steps is others or (len(steps) == len(others) and bool((steps == others).all()))


def _at(steps: npt.NDArray[np.int64], series: Series) -> npt.NDArray[np.float64]:
    """Return the values of a series at some steps, NaN where it has none; of equal steps the last one counts."""
    if _same(steps, series.steps):
        return series.values
    places = np.searchsorted(series.steps, steps, side="right") - 1
    found = (places >= 0) & (series.steps[np.maximum(places, 0)] == steps)
    return np.where(found, series.values[np.maximum(places, 0)], np.nan)


class Level(enum.IntEnum):
    """The level of a finding."""

    NOT_TRIGGERED = 0
    QUIET = 1
    NOTICE = 2
    """Worth a look; healthy runs show it too."""
    ALARM = 3
    """The run is broken: Fail."""

    @property
    def word(self) -> str:
        """How it is printed."""
        return self.name.lower().replace("_", " ")


class Parameter(NamedTuple):
    """A figure that a rule uses."""

    value: float
    source: str
    """Where the value came from."""


HAND_SET = "hand-set"
WILD = "hand-set on wild logs"


def figures(source: str, **values: float) -> dict[str, Parameter]:
    """Return parameters that share one source."""
    return {name: Parameter(value, source) for name, value in values.items()}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule found in a run."""

    level: Level
    reason: str
    tags: tuple[str, ...] = ()
    """The series it rests on, as the log names them."""
    step: int | None = None
    """Step at which it first fired."""
    value: float | None = None
    """The measured value there; where it is quiet, at the last point."""
    bound: str | None = None
    num_samples: int = 0
    steps: tuple[int, int] | None = None
    missing: tuple[str, ...] = ()
    """Canonical metrics that it needs and the log does not have."""


def not_triggered(why: str, missing: Sequence[str] = ()) -> Finding:
    """Return the finding of a rule that cannot judge: why, and the metrics that it needs."""
    return Finding(level=Level.NOT_TRIGGERED, reason=f"not triggered: {why}", missing=tuple(missing))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A black-box sensor on what a run logs: a `StepRule`, or a class with these attributes and its own `judge`."""

    id: str
    """Short name: words joined by dashes."""
    family: str
    """Name of its group."""
    statement: str
    """What is wrong where it alarms, as one sentence."""
    meaning: str
    """The usual cause."""
    remedy: str
    """What to do next."""
    needs: Sequence[str] = ()
    """Canonical metrics without which it is not triggered."""
    uses: Sequence[str] = ()
    """Canonical metrics that it also uses where they are logged."""
    catalogue: Sequence[str] = ()
    """Ids of known bugs that it can detect (SBnnn)."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Its figures by name."""

    def judge(self, streams: Streams) -> Finding:
        """Judge everything that was logged so far."""
        raise NotImplementedError


class Marks(NamedTuple):
    """What a rule found at each point, shape [N]."""

    measured: Floats
    alarm: Flags
    notice: Flags | None = None


Values = Mapping[str, Floats]
"""Aligned values by canonical name, each of shape [N], and their `step`; what is not logged is NaN."""
Limits = Mapping[str, float]
"""The parameters of a rule by name."""


@dataclass(frozen=True, kw_only=True)
class StepRule(Rule):
    """A rule made of a causal function of aligned series."""

    mark: Callable[[Values, Limits], Marks]
    """(values, limits) -> marks. Element i may depend on points 0..i alone. Divisions by zero are silent."""
    bound: str
    """The bound of the measured value, with parameters in braces."""
    min_points: int = 5
    not_for: Callable[[Options], str | None] | None = None
    """From the run's configuration to the reason why the rule does not apply to it; None where it applies."""

    def judge(self, streams: Streams) -> Finding:
        """Look at all that was logged so far."""
        needed = {name: series for name in self.needs if (series := streams.one(name)) is not None}
        missing = tuple(name for name in self.needs if name not in needed)
        if missing:
            return not_triggered(f"log {', '.join(missing)}", missing)
        optional = {name: streams.one(name) for name in self.uses}
        aligned = align(needed, optional)
        tags = tuple(series.tag for series in [*needed.values(), *optional.values()] if series is not None)
        number = len(aligned.steps)
        why_not = (
            None if number >= self.min_points else f"{number} of the {self.min_points} points that it needs"
        )
        if self.not_for is not None and streams.configuration is not None:
            why_not = self.not_for(streams.configuration) or why_not
        if why_not is not None:
            return replace(not_triggered(why_not), tags=tags, num_samples=number)
        limits = {name: parameter.value for name, parameter in self.parameters.items()}
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            marks = self.mark({**aligned.columns, "step": aligned.steps.astype(np.float64)}, limits)
        return self._finding(marks, aligned.steps, tags)

    def _finding(self, marks: Marks, steps: np.ndarray, tags: tuple[str, ...]) -> Finding:
        level, place = Level.QUIET, len(steps) - 1
        if marks.alarm.any():
            level, place = Level.ALARM, int(np.argmax(marks.alarm))
        elif marks.notice is not None and marks.notice.any():
            level, place = Level.NOTICE, int(np.argmax(marks.notice))
        shown = {name: f"{parameter.value:g}" for name, parameter in self.parameters.items()}
        value = float(marks.measured[place])
        return Finding(
            level=level,
            reason="in order" if level is Level.QUIET else f"{self.statement}; usually {self.meaning}",
            tags=tags,
            step=None if level is Level.QUIET else int(steps[place]),
            value=value if np.isfinite(value) else None,
            bound=self.bound.format(**shown),
            num_samples=len(steps),
            steps=(int(steps[0]), int(steps[-1])),
        )


def verdict_of(rule: Rule, finding: Finding) -> Verdict:
    """Return the verdict: an alarm is Fail, a rule without inputs is Skipped, everything else passes."""
    outcome = {
        Level.ALARM: Outcome.FAIL,
        Level.NOT_TRIGGERED: Outcome.SKIPPED,
    }.get(finding.level, Outcome.PASS)
    sources = dict.fromkeys(parameter.source for parameter in rule.parameters.values())
    reason = finding.reason
    if finding.step is not None:
        reason = f"from step {finding.step}: {reason}. Next: {rule.remedy}"
    # A notice of a NaN passes, and a Pass cannot have a value that is not finite; the reason says it.
    finite = finding.value is None or np.isfinite(finding.value)
    return Verdict(
        name=f"rule {rule.id}",
        outcome=outcome,
        reason=reason,
        value=finding.value if finite or outcome is not Outcome.PASS else None,
        bound=finding.bound,
        num_samples=finding.num_samples,
        steps=finding.steps,
        source="; ".join(sources) or None,
        details={
            "level": finding.level.word,
            "step": finding.step,
            "tags": list(finding.tags),
            "missing": list(finding.missing),
            "catalogue": list(rule.catalogue),
        },
    )
