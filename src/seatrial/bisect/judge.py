"""Judges what a run left: Pass, Fail, Skip or Blocked, with the value and its evidence.

The verdict comes from the run itself: its exit status and its logs, never from a scheduler's report.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seatrial.bisect.causes import Cause, Obstacle, obstacle_in
from seatrial.bisect.fresh import Beginning, require_fresh
from seatrial.bisect.junit import judge_junit
from seatrial.bisect.outcomes import Judgement, RunOutcome
from seatrial.checks import Check
from seatrial.checks.judge import Questions, judge_logs
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome, combine


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
