"""`seatrial report A B`: one page of one run, or of two runs in the same charts; alarms come first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from seatrial.errors import UsageError
from seatrial.pages import render
from seatrial.report.html import page_parts
from seatrial.report.rows import format_value
from seatrial.report.watched import SHOWN, WatchedRun, charts, logs_of, watched
from seatrial.rules.healthy import HealthyRuns
from seatrial.rules.rule import Level
from seatrial.trials.rundir import RESULTS, read_results
from seatrial.verdict import Outcome, combine


class Section(NamedTuple):
    """A part of the page: the same trial of each run, or the runs themselves."""

    title: str
    runs: Sequence[WatchedRun]
    charts: Sequence[str]
    values: Sequence[tuple[str, Sequence[str]]]
    """Metrics, and their last value in each run."""


def sections_of(paths: Sequence[Path], healthy: HealthyRuns | None = None) -> list[Section]:
    """Read runs and run the rules on them.

    Args:
        paths: one or two logs, or run directories, whose trials are matched by name.
        healthy: earlier healthy runs of the same configuration.

    Raises:
        BlockedError: a log cannot be read.
        UsageError: run directories share no trial.
    """
    names = _names(paths)
    logs: list[Mapping[str, Path]] = [logs_of(path) for path in paths]
    if all(len(one) == 1 for one in logs):
        logs = [{"": next(iter(one.values()))} for one in logs]
    shared = [name for name in logs[0] if all(name in other for other in logs)]
    if not shared:
        raise UsageError(f"{paths[0]} and {paths[-1]} have no trial of one name: name the logs themselves")
    return [
        _section(name, [watched(run, log[name], healthy) for run, log in zip(names, logs, strict=True)])
        for name in shared
    ]


def _names(paths: Sequence[Path]) -> list[str]:
    """Return short names that differ."""
    ends = [path.name or str(path) for path in paths]
    return ends if len(set(ends)) == len(ends) else [str(path) for path in paths]


def _section(title: str, runs: Sequence[WatchedRun]) -> Section:
    values = []
    for name in SHOWN:
        found = [run.streams.one(name) for run in runs]
        if any(series is not None for series in found):
            last = [
                None if series is None or not len(series) else float(series.values[-1]) for series in found
            ]
            values.append((name, [format_value(value) for value in last]))
    return Section(title, runs, list(charts(runs)), values)


def recorded_outcomes(paths: Sequence[Path]) -> dict[str, Outcome]:
    """Return what the trials of each run directory among these paths concluded, by the run's name.

    Raises:
        BlockedError: the results of a run directory are damaged.
    """
    return {
        name: read_results(path).outcome
        for name, path in zip(_names(paths), paths, strict=True)
        if (path / RESULTS).is_file()
    }


def outcome_of(sections: Sequence[Section], recorded: Mapping[str, Outcome]) -> Outcome:
    """Return the outcome of every rule on every run, and of the trials of run directories."""
    judged = [item.verdict.outcome for section in sections for run in section.runs for item in run.judged]
    return combine([*judged, *recorded.values()])


def page_of(sections: Sequence[Section], recorded: Mapping[str, Outcome]) -> str:
    """Return the page."""
    return render(
        "seatrial.report",
        "runs.html",
        **page_parts(),
        sections=sections,
        names=[run.name for run in sections[0].runs],
        outcome=outcome_of(sections, recorded),
        recorded=recorded,
        alarm=Level.ALARM,
        notice=Level.NOTICE,
        levels=(Level.QUIET, Level.NOT_TRIGGERED),
        shown=format_value,
    )
