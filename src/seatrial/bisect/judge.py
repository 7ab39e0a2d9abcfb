"""Judges what a run left: Pass, Fail, Skip or Blocked, with the value and its evidence.

The verdict comes from the run itself: its exit status, its JUnit report and its logs, never from a scheduler's report.
A log from an earlier run is no evidence for a later one. Three checks detect it: the modification time of each file
against the start of the run (by the clock of its file system), the event times in the log against the same start, and
the inode and first bytes against files that earlier runs left outside their own folders (a log that was appended to).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from seatrial.bisect.outcomes import Cause, Judgement, Obstacle, RunOutcome, obstacle_in
from seatrial.checks import Check
from seatrial.checks.judge import Questions, judge_logs
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.files import write_whole
from seatrial.verdict import Outcome, combine

_NAME = "log_files.json"
_SAME_CLOCK_SECONDS = 0.05
"""File systems stamp with the kernel's tick."""
_OTHER_CLOCK_SECONDS = 5.0
"""How far the clocks of a cluster's machines may differ."""
_EPOCH_SECONDS = 1e9
"""Smaller event times count from the start of a run."""
_REMEDY = "let the command write to {logs}, or to a folder of the checkout that is not a link"


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """When and where a run started."""

    run_dir: Path
    device: int
    """Device of the run's directory."""
    of_file_system: float
    """Seconds since the epoch, by the clock of the file system."""
    of_machine: float
    """The same, by the clock of this machine."""

    @classmethod
    def now(cls, run_dir: Path) -> Beginning:
        """Record the start time, before the command starts."""
        stamp = run_dir / "begun"
        stamp.touch()
        found = stamp.stat()
        return cls(
            run_dir=run_dir, device=found.st_dev, of_file_system=found.st_mtime, of_machine=time.time()
        )


def require_fresh(logs: Path, log: RunLog, beginning: Beginning) -> None:
    """Check that this run wrote every file below `logs` and every event read from it.

    Raises:
        BlockedError: a file or event is older, or a file continues one from an earlier run.
    """
    outside = []
    for path in _files(logs):
        found = path.stat()
        same_clock = found.st_dev == beginning.device
        begun = beginning.of_file_system if same_clock else beginning.of_machine
        age = begun - found.st_mtime
        if age > (_SAME_CLOCK_SECONDS if same_clock else _OTHER_CLOCK_SECONDS):
            raise BlockedError(f"{path} was last written {age:.1f} s before this run began; {_REMEDY}")
        if not path.resolve().is_relative_to(logs.resolve()) or logs.resolve() != logs.absolute():
            outside.append(path)
    for tag, series in log.series.items():
        times = series.wall_times
        if times is None or not len(times) or not np.isfinite(times).all() or times.min() < _EPOCH_SECONDS:
            continue
        age = beginning.of_machine - float(times.min())
        if age > _OTHER_CLOCK_SECONDS:
            raise BlockedError(
                f"{tag!r} in {logs} has events from {age:.1f} s before this run began; {_REMEDY}"
            )
    _require_not_appended(outside, beginning.run_dir)


def _files(logs: Path) -> Iterator[Path]:
    """Yield the files below a path; follow links, visit each folder once."""
    if logs.is_file():
        yield logs
    seen: set[tuple[int, int]] = set()
    for folder, names, files in os.walk(logs, followlinks=True):
        found = Path(folder).stat()
        if (found.st_dev, found.st_ino) in seen:
            names.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        yield from (path for path in (Path(folder, name) for name in sorted(files)) if path.is_file())


def _require_not_appended(outside: list[Path], run_dir: Path) -> None:
    """Compare files behind links with those of earlier runs, and record them for later runs.

    Raises:
        BlockedError: a file starts with everything that an earlier run wrote into it.
    """
    if not outside:
        return
    for record in run_dir.parent.glob(f"*/{_NAME}"):
        for device, inode, size, digest in json.loads(record.read_text(encoding="utf-8")):
            for path in outside:
                found = path.stat()
                grown = (found.st_dev, found.st_ino) == (device, inode) and found.st_size > size > 0
                if grown and _digest(path, size) == digest:
                    raise BlockedError(f"{path} begins with what run {record.parent.name} logged; {_REMEDY}")
    marks = [(found.st_dev, found.st_ino, found.st_size, _digest(path, found.st_size))
             for path in outside for found in [path.stat()]]  # fmt: skip
    write_whole(run_dir / _NAME, json.dumps(marks))


def _digest(path: Path, size: int) -> str:
    """Return a digest of the first `size` bytes of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while size > 0 and (block := stream.read(min(size, 2**20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


_NOT_FOUND = {4: "pytest does not find the test at this commit", 5: "pytest collected no test at this commit"}


def judge_junit(status: int, path: Path) -> Judgement:
    """Judge by exit status and report: only a test that ran and passed is a Pass.

    A test that does not exist at the commit, or that skips itself, is a Skip, never a Fail.
    """
    if status in _NOT_FOUND:
        return Judgement.skip(f"{_NOT_FOUND[status]} (exit status {status})")
    try:
        suites = ElementTree.parse(path).getroot().iter("testsuite")
    except (OSError, ElementTree.ParseError) as error:
        if status == 0:
            return Judgement.blocked(
                Obstacle(Cause.EVIDENCE, f"exit status 0 and no readable {path.name}: {error}")
            )
        return Judgement.fail(f"exit status {status} and no readable {path.name}")
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in suites:
        for name in counts:
            counts[name] += int(suite.get(name, "0"))
    summary = ", ".join(f"{number} {name}" for name, number in counts.items())
    passed = counts["tests"] - counts["failures"] - counts["errors"] - counts["skipped"]
    if status != 0 or counts["failures"] or counts["errors"]:
        return Judgement.fail(f"exit status {status}; {summary}")
    if passed <= 0:
        return Judgement.skip(f"no test finished: {summary}")
    return Judgement(outcome=RunOutcome.PASS, reason=summary)


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """What a run is checked against."""

    checks: tuple[Check, ...] = ()
    metric: Check | None = None
    """A check of which only the value is used."""
    junit: bool = False
    """The run leaves a JUnit file (pytest)."""
    signals_are_failures: bool = False
    timeouts_are_failures: bool = False
    read_obstacles: bool = True
    """Look for signs of environment faults in the console output of a run that failed."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What one run left."""

    exit_status: int
    timed_out: bool
    console: Path
    logs: Path
    junit: Path
    beginning: Beginning
    """Logs from before this moment are not this run's."""


def judge(evidence: Evidence, criteria: Criteria) -> Judgement:
    """Judge one run that started and finished."""
    status = evidence.exit_status
    if evidence.timed_out:
        reason = "did not finish within its time limit"
        if criteria.timeouts_are_failures:
            return Judgement.fail(reason)
        return Judgement.skip(
            f"{reason}: shorten it (SED_CLAUSES, EXTRA_SCRIPT_ARGS) or use --on-timeout fail"
        )
    if status == 125:
        return Judgement.skip("exit status 125: the command cannot judge this commit")
    if (status < 0 or status >= 128) and not criteria.signals_are_failures:
        number = -status if status < 0 else status - 128
        return Judgement.blocked(
            Obstacle(
                Cause.SIGNAL,
                f"killed by signal {number}: not a verdict; if this is the fault, use --on-signal fail",
            )
        )
    if status != 0 and criteria.read_obstacles and (obstacle := obstacle_in(evidence.console)) is not None:
        return Judgement.blocked(obstacle)
    if criteria.junit:
        return judge_junit(status, evidence.junit)
    if criteria.metric is not None:
        return _by_metric(evidence, criteria.metric)
    if status != 0:
        return Judgement.fail(f"exit status {status}")
    if criteria.checks:
        return _by_checks(evidence, criteria.checks)
    return Judgement(outcome=RunOutcome.PASS, reason="exit status 0")


def _by_metric(evidence: Evidence, metric: Check) -> Judgement:
    if evidence.exit_status != 0:
        return Judgement.fail(f"exit status {evidence.exit_status}: no value is taken")
    try:
        log = _log_of(evidence)
    except BlockedError as error:
        return Judgement.blocked(Obstacle(Cause.EVIDENCE, str(error)))
    return _value_of(evidence.logs, log, metric)


def _value_of(logs: Path, log: RunLog, metric: Check) -> Judgement:
    [verdict] = judge_logs(logs, Questions(checks=[metric]))
    if verdict.outcome is Outcome.BLOCKED:
        return Judgement.blocked(Obstacle(Cause.EVIDENCE, verdict.reason))
    # Skipped means that the bound, which is not the user's, cannot fail: the value is valid.
    answered = verdict.outcome in (Outcome.PASS, Outcome.SKIPPED)
    if not answered or not isinstance(verdict.value, (int, float)):
        return Judgement.fail(f"no value: {verdict.reason}")
    value = float(verdict.value)
    if not math.isfinite(value):
        return Judgement.fail(f"no value: the metric is {value}")
    return Judgement(
        outcome=RunOutcome.PASS,
        reason=f"value {value:.6g} from {verdict.num_samples} samples",
        value=value,
        fingerprint=fingerprint_of(log, (value,)),
    )


def earlier_values(logs: Sequence[Path], metric: Check) -> tuple[float, ...]:
    """Return the metric of earlier runs, one value per log.

    Raises:
        UsageError: fewer than two logs, a log without a finite value, or values without noise.
        BlockedError: a log cannot be read.
    """
    judged = [(path, _value_of(path, read_logs(path), metric)) for path in logs]
    for path, judgement in judged:
        if judgement.value is None:
            raise UsageError(f"--baseline {path}: {judgement.reason}; leave it out, or give another log")
    values = tuple(judgement.value for _, judgement in judged if judgement.value is not None)
    if len(values) < _FEWEST_EARLIER or len(set(values)) == 1:
        raise UsageError(
            f"--baseline: the metric of {len(values)} logs has {len(set(values))} different values, "
            "and shows no noise; give logs of repeated runs, or leave it out"
        )
    return values


def _log_of(evidence: Evidence) -> RunLog:
    """Read what a run logged.

    Raises:
        BlockedError: nothing can be read, or some of it is not this run's.
    """
    if not evidence.logs.exists() or (evidence.logs.is_dir() and not any(evidence.logs.iterdir())):
        raise BlockedError(
            f"the run left nothing in {evidence.logs}: write {{logs}} into the command where it takes its log folder, "
            "or say with --logs where in its tree it logs"
        )
    log = read_logs(evidence.logs)
    require_fresh(evidence.logs, log, evidence.beginning)
    return log


def _by_checks(evidence: Evidence, checks: Sequence[Check]) -> Judgement:
    try:
        log = _log_of(evidence)
    except BlockedError as error:
        return Judgement.blocked(Obstacle(Cause.EVIDENCE, str(error)))
    verdicts = judge_logs(evidence.logs, Questions(checks=checks))
    overall = combine(verdicts)
    shown = next((verdict for verdict in verdicts if verdict.outcome is overall), verdicts[0])
    if overall is Outcome.BLOCKED:
        return Judgement.blocked(Obstacle(Cause.EVIDENCE, shown.reason))
    reason = f"{shown.name}: {shown.reason}"
    if overall is Outcome.SKIPPED:
        return Judgement.skip(reason)
    return Judgement(
        outcome=RunOutcome.PASS if overall is Outcome.PASS else RunOutcome.FAIL,
        reason=reason,
        value=float(v) if isinstance(v := shown.value, (int, float)) and math.isfinite(v) else None,
        fingerprint=fingerprint_of(log, tuple(verdict.value for verdict in verdicts)),
    )


_OF_THE_MACHINE = re.compile(
    r"tim(?:e|ing)|second|_sec|latency|throughput|per_s|tok/s|memory|mem_|gpu|cpu|flops|util|pid|port",
    re.IGNORECASE,
)
_FEWEST_VALUES, _FEWEST_EARLIER = 8, 2


def fingerprint_of(log: RunLog, judged: Sequence[Any]) -> str | None:
    """Return a digest of everything that noise would change: all series except those of time and machine, bit by bit.

    Returns:
        None if there are too few distinct fractional values for equal digests to show that there is no noise.
    """
    digest = hashlib.sha256(repr(judged).encode())
    fractional: set[float] = set()
    for tag in sorted(log.series):
        if not _OF_THE_MACHINE.search(tag):
            series = log.series[tag]
            digest.update(tag.encode() + series.steps.tobytes() + series.values.tobytes())
            fractional.update(
                float(v) for v in series.values if math.isfinite(v) and not float(v * 16).is_integer()
            )
    return digest.hexdigest()[:32] if len(fractional) >= _FEWEST_VALUES else None
