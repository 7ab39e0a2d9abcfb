"""Values of many runs, one point each: from results.json of run directories and from the pytest plugin's files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError, UsageError
from seatrial.trials.results import Results
from seatrial.verdict import Outcome

_COMMIT = re.compile(r"commit ([0-9a-f]{7,40})")
_GIVE = "run directories, a folder of them, or the folder unit_results of the pytest plugin"
_NOT_FINITE = {"nan", "inf", "-inf", "infinity", "-infinity"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one run says: its values by name."""

    source: str
    date: datetime
    """Without a time zone: UTC for results.json, local time for the plugin's files, as they write it."""
    commit: str | None
    """First twelve digits, or None where the file names none."""
    values: dict[str, float]
    """`trial: verdict` or `test::metric`; NaN and infinities are kept."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class History:
    """Points in the order of their dates."""

    points: Sequence[Point]
    unreadable: Sequence[str]
    """Files that could not be read, with the reason."""

    def names(self) -> list[str]:
        """Return every name that has a value or an outcome, in the order of first appearance."""
        return list(dict.fromkeys(name for point in self.points for name in [*point.outcomes, *point.values]))


def read_history(paths: Iterable[Path]) -> History:
    """Read run directories, folders of them, results.json files and unit_results files.

    Raises:
        UsageError: a path does not exist, or a folder holds no results.
    """
    points, unreadable = [], []
    for file in dict.fromkeys(file for path in paths for file in _files(path)):
        try:
            points.append(read_point(file))
        except BlockedError as error:
            unreadable.append(str(error))
    return History(points=sorted(points, key=lambda point: (point.date, point.source)), unreadable=unreadable)


def read_point(file: Path) -> Point:
    """Read one file.

    Raises:
        BlockedError: it is damaged, or neither a results.json nor a unit_results file.
    """
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise BlockedError(f"{file} cannot be read ({error}); give {_GIVE}") from error
    if isinstance(content, dict) and "trials" in content:
        try:
            return _of_run(file, Results.from_text(text))
        except ValueError as error:
            raise BlockedError(f"{file}: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("metrics"), dict) and "start_time" in content:
        return _of_tests(file, content)
    raise BlockedError(
        f"{file}: neither a results.json of seatrial run nor a unit_results.json; give {_GIVE}"
    )


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path} does not exist; give {_GIVE}")
    if (path / "results.json").is_file():
        return [path / "results.json"]
    found = sorted(path.glob("*/results.json")) or sorted(path.glob("*.json"))
    if not found:
        raise UsageError(f"{path} holds neither run directories nor files of unit_results; give {_GIVE}")
    return found


def _of_run(file: Path, results: Results) -> Point:
    values, outcomes = {}, {}
    for trial in results.requested_trials():
        for verdict in trial.verdicts:
            name = f"{trial.name}: {verdict.name}"
            outcomes[name] = verdict.outcome
            number = _number(verdict.value)
            if number is not None:
                values[name] = number
    commits = [match[1] for words in results.repositories.values() if (match := _COMMIT.search(words))]
    return Point(
        source=str(file.parent),
        date=_date(results.started_at, file),
        commit=commits[0][:12] if commits else None,
        values=values,
        outcomes=outcomes,
    )


def _of_tests(file: Path, content: dict[str, Any]) -> Point:
    values = {
        f"{test}::{name}": number
        for test, metrics in content["metrics"].items()
        if isinstance(metrics, dict)
        for name, value in metrics.items()
        if (number := _number(value)) is not None
    }
    commit = content.get("git_commit")
    return Point(
        source=str(file),
        date=_date(content["start_time"], file),
        commit=commit[:12] if isinstance(commit, str) else None,
        values=values,
    )


def _number(value: object) -> float | None:
    """Return a number, also one whose name was written because it is not finite; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str) and value.strip().lower() in _NOT_FINITE:
        return float(value)
    return None


def _date(text: object, file: Path) -> datetime:
    try:
        return datetime.fromisoformat(str(text)).replace(tzinfo=None)
    except ValueError as error:
        raise BlockedError(f"{file}: {text!r} is no date") from error
