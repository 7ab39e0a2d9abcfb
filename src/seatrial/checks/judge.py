"""The one way from a log and expressions to verdicts, for commands, functional tests, bisect and trials.

Which tags are read, the ranges that are known of them, notes, damage and checks that cannot fail are settled here,
so that one expression on one log has one verdict in every command.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seatrial.checks.evaluate import HAND_SET, evaluate_check
from seatrial.checks.known_ranges import KNOWN_RANGES, ranges_of_stack
from seatrial.checks.language.doubts import NO_TERMS, Terms
from seatrial.checks.language.nodes import Check
from seatrial.checks.language.truth import Interval, range_of
from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.readers.attempts import is_time_stepped
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome, Verdict
from seatrial.vocabulary import recognise, tags_read_as

if TYPE_CHECKING:
    from seatrial.checks.suites import Suite

STEPS = "steps"
"""Name of the verdict on how far the run came."""


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The checks to run on a log, and how to run them."""

    checks: Sequence[Check] = ()
    suites: Sequence[Suite] = ()
    allow_nonfinite: Collection[str] = ()
    """Tags whose NaN, infinite and null points are legitimate in every check."""
    ranges: Mapping[str, Interval] = field(default_factory=dict)
    """By tag or pattern: values a tag can take by construction, before those that are known anyway."""
    source: str = HAND_SET
    """Where the bounds of `checks` came from; those of a suite say it themselves."""
    terms: Terms = NO_TERMS
    """Requirements on the log as a whole, and what the user knows about it; a suite may add to them."""
    each_run: bool = False
    """Where the files look like several runs, judge each of them."""

    def all_checks(self) -> list[Check]:
        """Return the checks and those of the suites, in the order of their verdicts."""
        return [*self.checks, *(item.read() for suite in self.suites for item in suite.checks)]

    def names(self) -> list[str]:
        """Return the names of the verdicts, in their order."""
        names = [] if self.terms.steps is None else [STEPS]
        names += [check.text for check in self.checks]
        for suite in self.suites:
            names += [*([] if suite.steps is None else [STEPS]), *(item.expression for item in suite.checks)]
        return names

    def tags(self, run: str | None = None) -> frozenset[str]:
        """Return the tags that are read of the log (None), or of another run."""
        asked = {tag for check in self.all_checks() for tag in check.tags(run)}
        return frozenset(
            asked | ({suite.steps_of for suite in self.suites if suite.steps_of} if run is None else set())
        )

    def runs(self) -> frozenset[str]:
        """Return the names of the other runs that are read."""
        return frozenset(run for check in self.all_checks() for run in check.runs)

    def counts_any_step(self) -> bool:
        """Whether the steps of every series are requested, so that all series must be read."""
        suites = [suite for suite in self.suites if suite.steps is not None]
        return self.terms.steps is not None or any(suite.steps_of is None for suite in suites)


def judge_logs(path: Path, questions: Questions, runs: Mapping[str, Path] | None = None) -> list[Verdict]:
    """Read the tags that the checks need, and judge them.

    Args:
        path: a log that any reader reads.
        questions: the checks.
        runs: where the logs of other runs are, by the name that `run("NAME")` uses.

    Returns:
        A verdict for each check, in the order of `Questions.all_checks`; each Blocked where a log cannot be read.

    Raises:
        UsageError: a check reads a run that is not given.
    """
    given = runs or {}
    try:
        log = _read(path, questions.tags())
        others = {name: _read(given[name], questions.tags(name)) for name in questions.runs() & given.keys()}
        if questions.each_run and len(log.runs) > 1:
            return _judge_each(path, log.runs, questions, others)
        steps_seen = _last_step(read_logs(path)) if questions.counts_any_step() else None
    except BlockedError as error:
        return [Verdict(name=name, outcome=Outcome.BLOCKED, reason=str(error)) for name in questions.names()]
    return judge_log(log, questions, others, steps_seen)


def _judge_each(
    path: Path, runs: Sequence[Sequence[str]], questions: Questions, others: Mapping[str, RunLog]
) -> list[Verdict]:
    """Judge each of several runs in a folder by its own files.

    Raises:
        BlockedError: the files of one cannot be read alone.
    """
    if len({source for run in runs for source in run}) < sum(len(run) for run in runs):
        raise BlockedError(
            f"{path}: one file holds several runs; say --several-runs newest, or split the file"
        )
    verdicts = []
    for sources in runs:
        log = _read(path, questions.tags(), sources)
        seen = _last_step(read_logs(path, None, sources)) if questions.counts_any_step() else None
        for verdict in judge_log(replace(log, runs=()), questions, others, seen):
            verdicts.append(replace(verdict, name=f"{verdict.name} in {sources[0]}"))
    return verdicts


def _read(path: Path, tags: Collection[str], sources: Collection[str] | None = None) -> RunLog:
    """Read some tags, those that the log holds under another name of the same metric included."""
    log = read_logs(path, tags, sources)
    read_as = tags_read_as(tags, log.tags())
    return read_logs(path, {*tags, *read_as.values()}, sources) if read_as else log


class Reached(NamedTuple):
    """How far the series of a log go."""

    last_step: int | None
    """None where no series has a point."""
    num_series: int
    damage: str | None


def _last_step(log: RunLog, tag: str | None = None) -> Reached:
    """Return the last step of a tag, or of any series whose step is no clock."""
    lasts = [
        int(one.steps.max())
        for name, one in log.series.items()
        if len(one) and (not is_time_stepped(name) if tag is None else name == tag)
    ]
    return Reached(max(lasts, default=None), len(lasts), log.damage[0].what if log.damage else None)


def judge_log(
    log: RunLog,
    questions: Questions,
    runs: Mapping[str, RunLog] | None = None,
    steps_seen: Reached | None = None,
) -> list[Verdict]:
    """Judge a log that was read; see `judge_logs`.

    Args:
        log: what was read.
        questions: the checks.
        runs: the logs of other runs.
        steps_seen: how far the whole log goes, where `log` holds only some of its tags.
    """
    log = _with_other_names(log, questions.tags())
    runs = {name: _with_other_names(one, questions.tags(name)) for name, one in (runs or {}).items()}
    ranges = known_ranges_of(log, questions.ranges)
    seen = steps_seen or _last_step(log)
    terms = questions.terms
    verdicts = [] if terms.steps is None else [_judge_steps(seen, terms.steps)]
    for check in questions.checks:
        verdicts.append(
            evaluate_check(
                check,
                log,
                runs=runs,
                allow_nonfinite=questions.allow_nonfinite,
                source=questions.source,
                ranges=ranges,
                terms=terms,
            )
        )
    if questions.suites:
        from seatrial.checks.suites import evaluate_suite  # Its schema library is slow to import.

        for suite in questions.suites:
            if suite.steps is not None:
                reached = seen if suite.steps_of is None else _last_step(log, suite.steps_of)
                verdict = _judge_steps(reached, suite.steps, suite.steps_of)
                verdicts.append(replace(verdict, details={"suite": suite.name}))
            verdicts += evaluate_suite(
                suite, log, runs=runs, allow_nonfinite=questions.allow_nonfinite, ranges=ranges, terms=terms
            )
    return [_with_notes(verdict, log) for verdict in verdicts]


def _with_other_names(log: RunLog, tags: Collection[str]) -> RunLog:
    """Return a log that also holds its series under the names by which other stacks, or the vocabulary, call them."""
    read_as = {
        tag: held
        for tag, held in tags_read_as(tags, log.tags()).items()
        if held in {*log.series, *log.scalars}
    }
    if not read_as:
        return log
    series = {tag: replace(log.series[held], tag=tag) for tag, held in read_as.items() if held in log.series}
    scalars = {tag: log.scalars[held] for tag, held in read_as.items() if held in log.scalars}
    dropped = {tag: log.dropped[held] for tag, held in read_as.items() if held in log.dropped}
    return replace(
        log,
        series={**log.series, **series},
        scalars={**log.scalars, **scalars},
        dropped={**log.dropped, **dropped},
        read_as=read_as,
    )


def _judge_steps(seen: Reached, wanted: int, tag: str | None = None) -> Verdict:
    """Judge whether a run reached the requested step; checks of a shorter run say nothing about the rest.

    A damaged log that does not show the step is Blocked.
    """
    reached = seen.last_step
    outcome = Outcome.PASS if reached is not None and reached >= wanted else Outcome.FAIL
    what = "" if tag is None else f" of {tag}"
    reason = f"the run logged no step{what}" if reached is None else f"the run logged step {reached}{what}"
    if outcome is Outcome.FAIL and seen.damage:
        outcome, reason = Outcome.BLOCKED, f"{reason} before the damage: {seen.damage}"
    return Verdict(
        name=STEPS,
        outcome=outcome,
        reason=reason,
        value=None if reached is None else float(reached),
        bound=f">= {wanted}",
        num_samples=seen.num_series,
    )


def known_ranges_of(log: RunLog, given: Mapping[str, Interval]) -> dict[str, Interval]:
    """Return what is known of the values of tags: as given, as known of all stacks, of the stack that wrote the log."""
    stack = recognise(log.tags())
    ranges = {**({} if stack is None else ranges_of_stack(stack)), **KNOWN_RANGES, **given}
    for tag, held in log.read_as.items():
        ranges.setdefault(tag, range_of(held, ranges))
    return ranges


def _with_notes(verdict: Verdict, log: RunLog) -> Verdict:
    """Add the reader's notes on the log to the verdict."""
    return replace(verdict, details={**verdict.details, "notes": list(log.notes)}) if log.notes else verdict
