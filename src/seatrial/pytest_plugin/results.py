"""`unit_results.json` and its history: what a session measured, in the format of NeMo RL's testing guide.

The guide's keys (`exit_status`, `git_commit`, `start_time`, `metrics`, `gpu_types`, `coverage`) keep their meaning;
`tests`, `summary` and others are added.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from seatrial.files import write_whole
from seatrial.pytest_plugin.tracking import (
    BASELINE_PROPERTY,
    METRIC_PREFIX,
    RECORD_PROPERTY,
    is_finite,
    to_json,
)

SCHEMA = 1
MAX_HISTORY = 1000
"""Sessions in the history, unless the project sets another number."""
VERDICTS_PROPERTY = "seatrial.verdicts"
"""This property of a functional test contains the verdicts of its checks, as JSON text."""
_BAD = ("failed", "error", "crashed")


@dataclass
class TestResult:
    """The outcome of one test, and what it tracked."""

    __test__ = False

    nodeid: str
    outcome: str = "passed"
    """`passed`, `failed`, `skipped`, `blocked`, `xfailed`, `xpassed`, `error` (setup or teardown), `crashed`."""
    duration: float = 0.0
    worker: str = "main"
    reason: str = ""
    """Why it was skipped or blocked."""
    metrics: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] | None = None
    """The tracker's other data about the test; None for a test without tracker."""
    verdicts: list[dict[str, Any]] | None = None
    """Verdicts of a functional test's checks."""
    baseline: list[dict[str, Any]] = field(default_factory=list)
    """Verdicts on the metrics of a test with a baseline."""


def fold(reports: Iterable[pytest.TestReport]) -> list[TestResult]:
    """Combine the reports of a session (setup, call, teardown, reruns) into one result per test, in order."""
    results: dict[str, TestResult] = {}
    for report in reports:
        result = results.get(report.nodeid)
        if result is None or result.outcome == "rerun":
            result = results[report.nodeid] = TestResult(report.nodeid)
        _add(result, report)
    return list(results.values())


def _add(result: TestResult, report: pytest.TestReport) -> None:
    result.duration += report.duration
    result.worker = getattr(report, "worker_id", "main")
    outcome, reason = _outcome(report)
    if outcome != "passed" and result.outcome not in _BAD:
        result.outcome, result.reason = outcome, reason
    properties: list[tuple[str, Any]] = list(report.user_properties)
    metrics = {
        name.removeprefix(METRIC_PREFIX): value
        for name, value in properties
        if name.startswith(METRIC_PREFIX)
    }
    for name, value in properties:
        if name == RECORD_PROPERTY:
            result.metrics, result.record = metrics, json.loads(value)
        elif name == VERDICTS_PROPERTY:
            result.verdicts = json.loads(value)
        elif name == BASELINE_PROPERTY:
            result.baseline = json.loads(value)


def _outcome(report: pytest.TestReport) -> tuple[str, str]:
    xfail = getattr(report, "wasxfail", None)
    # Plugins add their own outcomes, such as `rerun`.
    outcome: str = report.outcome
    if outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if xfail is not None:
            return "xfailed", str(xfail)
        return ("blocked" if reason.startswith("Blocked: ") else "skipped"), reason
    if outcome == "failed":
        # xdist reports a test whose worker crashed under its own phase.
        kinds = {"call": "failed", "setup": "error", "teardown": "error"}
        return kinds.get(str(report.when), "crashed"), ""
    if outcome == "passed":
        return ("xpassed", str(xfail)) if xfail is not None else ("passed", "")
    return outcome, ""


def metric_keys(nodeids: Iterable[str]) -> dict[str, str]:
    """Return the guide's key `module::test` of each node id; tests with equal keys get their whole node id."""
    short = {nodeid: _short_key(nodeid) for nodeid in nodeids}
    count = Counter(short.values())
    return {nodeid: key if count[key] == 1 else nodeid for nodeid, key in short.items()}


def _short_key(nodeid: str) -> str:
    path, separator, rest = nodeid.partition("::")
    return f"{Path(path).stem}{separator}{rest}"


def build(
    results: list[TestResult],
    *,
    exit_status: int | None,
    start_time: datetime,
    root: Path,
    collected: int,
    deselected: Mapping[str, int],
    coverage: float | None,
    note: str,
) -> dict[str, Any]:
    """Return the content of `unit_results.json`.

    Args:
        results: every test that ran.
        exit_status: pytest's; None while the session runs.
        start_time: of the session, local time.
        root: pytest's root directory.
        collected: number of collected tests, after deselection.
        deselected: number of deselected tests, by reason.
        coverage: total percent, None without `--cov`.
        note: a remark for the reader: nothing ran, the session did not finish. May be empty.
    """
    from seatrial.pytest_plugin.gpus import visible_gpus

    tracked = {result.nodeid: result for result in results if result.record is not None}
    keys = metric_keys(tracked)
    commit, dirty = git_state(root)
    return {
        "exit_status": exit_status,
        "git_commit": commit,
        "start_time": start_time.strftime("%Y-%m-%d %H:%M:%S"),
        "metrics": {keys[nodeid]: to_json(result.metrics) for nodeid, result in tracked.items()},
        "gpu_types": sorted({gpu.name for gpu in visible_gpus()}),
        "coverage": coverage,
        "schema": SCHEMA,
        "note": note,
        "git_dirty": dirty,
        "host": platform.node(),
        "python": platform.python_version(),
        "summary": {
            "collected": collected,
            "outcomes": dict(sorted(Counter(result.outcome for result in results).items())),
            "deselected": dict(deselected),
        },
        "tests": {
            result.nodeid: _test(result, keys.get(result.nodeid))
            for result in results
            if result.record is not None
            or result.verdicts is not None
            or result.outcome in (*_BAD, "blocked")
        },
    }


def _test(result: TestResult, key: str | None) -> dict[str, Any]:
    return {
        "outcome": result.outcome,
        "duration": result.duration,
        "worker": result.worker,
        "reason": result.reason,
        "key": key,
        "not_finite": sorted(name for name, value in result.metrics.items() if not is_finite(value)),
        **({} if result.verdicts is None else {"verdicts": result.verdicts}),
        **({"baseline": result.baseline} if result.baseline else {}),
        **(result.record or {}),
    }


def not_finite(results: Iterable[TestResult]) -> list[str]:
    """Return `test: metric` for each tracked value that contains a NaN or an infinity."""
    return [
        f"{result.nodeid}: {name}"
        for result in results
        for name, value in result.metrics.items()
        if not is_finite(value)
    ]


def write(content: Mapping[str, Any], path: Path, history: str | None, kept: int = MAX_HISTORY) -> None:
    """Write the result file atomically, and a copy to `<stem>/<history>.json` in the same folder.

    Args:
        content: what to write.
        path: the result file.
        history: name of the copy; None: no copy.
        kept: number of copies to keep; the oldest are removed.
    """
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    targets = [path]
    if history is not None:
        targets.insert(0, path.parent / path.stem / f"{history}.json")
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text)
    if history is not None:
        copies = sorted((path.parent / path.stem).glob("*.json"))
        for old in copies[: max(0, len(copies) - kept)]:
            old.unlink(missing_ok=True)


def history_name(start_time: datetime) -> str:
    """Return a name that sorts by time and is unique among concurrent sessions."""
    return f"{start_time:%Y%m%d_%H%M%S}_{start_time.microsecond:06d}_{os.getpid()}"


def git_state(root: Path) -> tuple[str | None, bool | None]:
    """Return the current commit and whether tracked files differ from it; None outside of git."""
    commit = git_output(root, "rev-parse", "HEAD")
    if not commit:
        return None, None
    return commit, bool(git_output(root, "status", "--porcelain", "--untracked-files=no"))


def git_output(root: Path, *words: str) -> str | None:
    """Return git's output for the project; None if git fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
