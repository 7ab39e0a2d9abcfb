"""`--tracker-baseline`: fails a test if a value that it tracks is outside the range of a commit's repeats.

The repeats are earlier sessions in the history of results. The new runs are this session and, for a clean tree, the
earlier sessions of its commit. A value within the noise passes only if the runs would have detected a shift.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seatrial.pytest_plugin.judging import DEFAULT_SHIFT, Judge, TrackedMetric, judged_apart
from seatrial.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from seatrial.pytest_plugin.tracking import Tracker

_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_FORM = ("git_commit", "metrics", "tests", "start_time")


@dataclass(frozen=True)
class Session:
    """The result file of one session."""

    path: Path
    content: Mapping[str, Any]

    @property
    def commit(self) -> str | None:
        """The commit that was checked out."""
        commit = self.content["git_commit"]
        return commit if isinstance(commit, str) else None

    def numbers(self, nodeid: str, device: str) -> dict[str, float]:
        """Return the numbers that a test tracked when it passed on a device; NaN replaces values that are not finite.

        A test that failed only by its baseline counts too: it ran to the end, and a rerun must not hide it.
        """
        test = self.content["tests"].get(nodeid)
        if not isinstance(test, dict) or test.get("device") != device:
            return {}
        if test.get("outcome") != "passed" and not (test.get("outcome") == "failed" and test.get("baseline")):
            return {}
        metrics = self.content["metrics"].get(str(test.get("key")))
        if not isinstance(metrics, dict):
            return {}
        numbers = {name: as_number(value) for name, value in metrics.items() if not name.startswith("_")}
        not_finite = {name: math.nan for name in test.get("not_finite", ()) if name in numbers}
        return {name: number for name, number in numbers.items() if number is not None} | not_finite


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Sessions of one commit."""

    commit: str
    sessions: Sequence[Session]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many files were not used, by reason."""

    def of(self, nodeid: str, name: str, device: str) -> list[float]:
        """Return the values of one metric, one per session that has it."""
        found = [session.numbers(nodeid, device) for session in self.sessions]
        return [numbers[name] for numbers in found if name in numbers]

    def names(self, nodeid: str, device: str) -> list[str]:
        """Return the metrics of a test in any session."""
        return sorted({name for session in self.sessions for name in session.numbers(nodeid, device)})

    def count(self) -> int:
        """Return the number of metrics of all tests."""
        keys = {
            (nodeid, name)
            for session in self.sessions
            for nodeid, test in session.content["tests"].items()
            for name in session.numbers(nodeid, str(test.get("device")))
        }
        return len(keys)


def as_number(value: Any) -> float | None:
    """Return a tracked number; None for text, booleans, lists and so on."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read_repeats(where: str, history: Path, invocation: Path) -> Repeats:
    """Read the sessions that a baseline is learned from.

    Args:
        where: a revision (a commit, branch, tag, `HEAD~3`) with sessions in this project's history; or a folder of
            result files.
        history: the folder of this project's history.
        invocation: base of a relative `where`.

    Raises:
        pytest.UsageError: nothing is found there, or sessions of several commits.
    """
    folder = invocation / where
    if folder.is_dir():
        return _of_folder(folder)
    commit = _commit_of(where, invocation)
    if commit is None:
        raise pytest.UsageError(
            f"--tracker-baseline {where}: neither a folder of session results nor a commit that git knows here; "
            "name a commit (7 to 40 hex digits), branch or tag"
        )
    found = of_commit(history, commit)
    if not found.sessions:
        known = sorted({session.commit or "none" for session in _sessions(history)[0]})
        raise pytest.UsageError(
            f"--tracker-baseline {where}: {history} holds no clean, finished session of that commit "
            f"(it holds {', '.join(commit[:12] for commit in known) or 'none at all'}); check it out and run the "
            "tests there several times"
        )
    return found


def _commit_of(where: str, folder: Path) -> str | None:
    """Return the commit that a revision names; digits that git does not know are returned unchanged."""
    from seatrial.pytest_plugin.results import git_output

    named = git_output(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{where}^{{commit}}")
    return named or (where if _COMMIT.fullmatch(where) else None)


def of_commit(history: Path, commit: str) -> Repeats:
    """Return the clean, finished sessions of one commit."""
    sessions, unreadable = _sessions(history)
    mine = [session for session in sessions if (session.commit or "").startswith(commit)]
    full = {session.commit for session in mine}
    if len(full) > 1:
        raise pytest.UsageError(
            f"--tracker-baseline {commit}: more than one commit begins with these digits; give more of them"
        )
    usable = [session for session in mine if _is_clean(session)]
    left_out = {"unreadable": unreadable, "unfinished or of a changed tree": len(mine) - len(usable)}
    return Repeats(
        commit=full.pop() or commit if full else commit, sessions=usable, left_out=_counted(left_out)
    )


def _of_folder(folder: Path) -> Repeats:
    sessions, unreadable = _sessions(folder)
    usable = [session for session in sessions if _is_clean(session)]
    commits = sorted({session.commit or "none" for session in usable})
    if len(commits) != 1:
        names = ", ".join(commit[:12] for commit in commits)
        raise pytest.UsageError(
            f"--tracker-baseline {folder}: repeats are clean, finished sessions of one commit; "
            + (f"it holds {names}: name one of these" if commits else "it holds none")
        )
    left_out = {"unreadable": unreadable, "unfinished or of a changed tree": len(sessions) - len(usable)}
    return Repeats(commit=commits[0], sessions=usable, left_out=_counted(left_out))


def _counted(left_out: Mapping[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in left_out.items() if count}


def _is_clean(session: Session) -> bool:
    return session.content.get("git_dirty") is False and session.content.get("exit_status") is not None


def _sessions(folder: Path) -> tuple[list[Session], int]:
    """Return the sessions of a folder in order, and the number of unreadable files."""
    sessions, unreadable = [], 0
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            unreadable += 1
            continue
        fits = isinstance(content, dict) and all(key in content for key in _FORM)
        if fits and isinstance(content["tests"], dict) and isinstance(content["metrics"], dict):
            sessions.append(Session(path, content))
        else:
            unreadable += 1
    return sessions, unreadable


PLUGIN_NAME = "seatrial-tracker-baseline"


class TrackerBaseline:
    """Compares the metrics of each tracked test with the repeats; exists in every process that runs tests."""

    def __init__(self, config: pytest.Config, where: str, history: Path) -> None:
        chosen: float | None = config.option.tracker_baseline_shift
        shift = DEFAULT_SHIFT if chosen is None else chosen
        if not 0 < shift < 1000:
            raise pytest.UsageError(
                f"--tracker-baseline-shift {shift:g}: give a positive number of standard deviations"
            )
        self._repeats = read_repeats(where, history, config.invocation_params.dir)
        num_metrics = max(1, self._repeats.count())
        self._judge = Judge(commit=self._repeats.commit, num_metrics=num_metrics, shift_in_sd=shift)
        self._earlier = _of_this_commit(self._repeats.commit, history, config.rootpath)

    def pytest_report_header(self) -> str:
        """Return what the tests are compared with."""
        left_out = "".join(f", {count} {reason} left out" for reason, count in self._repeats.left_out.items())
        return (
            f"tracker baseline: {len(self._repeats.sessions)} repeats of {self._judge.num_metrics} metrics at commit "
            f"{self._repeats.commit[:12]}{left_out}; they must detect a shift of {self._judge.shift_in_sd:g} sd"
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Fail a test that passed if a metric that it tracked deviates."""
        report = yield
        from seatrial.pytest_plugin.tracking import ACTIVE, BASELINE_PROPERTY

        tracker = item.stash.get(ACTIVE, None)
        if call.when != "call" or tracker is None or not report.passed or hasattr(report, "wasxfail"):
            return report
        verdicts = self._verdicts(item.nodeid, tracker)
        item.user_properties.append(
            (BASELINE_PROPERTY, json.dumps([verdict.to_json() for verdict in verdicts]))
        )
        report.user_properties = list(item.user_properties)
        failed = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAIL]
        if failed:
            report.outcome = "failed"
            report.longrepr = "\n".join(f"metric {verdict.name} {verdict.reason}" for verdict in failed)
        return report

    def _verdicts(self, nodeid: str, tracker: Tracker) -> list[Verdict]:
        device = tracker.device()
        tracked = tracker.tracked()
        metrics = []
        for name, metric in tracked.items():
            number = as_number(metric.value)
            if number is None:
                continue
            earlier = self._earlier.of(nodeid, name, device) if self._earlier is not None else []
            repeats = self._repeats.of(nodeid, name, device)
            new = [*earlier, number]
            metrics.append(TrackedMetric(name, metric.direction, repeats, new, metric.resolution))
        missing = [name for name in self._repeats.names(nodeid, device) if name not in tracked]
        return judged_apart(self._judge, metrics) + [
            self._judge.missing(name, len(self._repeats.of(nodeid, name, device))) for name in missing
        ]


def _of_this_commit(baseline: str, history: Path, root: Path) -> Repeats | None:
    """Return earlier sessions of the tested commit; None for a changed tree, or for the baseline's own commit."""
    from seatrial.pytest_plugin.results import git_state

    commit, dirty = git_state(root)
    if commit is None or dirty or commit == baseline:
        return None
    return of_commit(history, commit)
