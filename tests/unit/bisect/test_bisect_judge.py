"""From what a run left to a judgement: each way in which a run can look good or bad and be neither."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from seatrial.bisect.judge import Beginning, Criteria, Evidence, earlier_values, fingerprint_of, judge
from seatrial.bisect.outcomes import Cause, RunOutcome, obstacle_of
from seatrial.bisect.task import metric_check
from seatrial.checks import parse_check
from seatrial.errors import UsageError
from seatrial.evidence.runlog import RunLog, Series


def _evidence(path: Path, status: int, console: str = "", **more: object) -> Evidence:
    (path / "run.log").write_text(console)
    (path / "logs").mkdir(exist_ok=True)
    return Evidence(
        exit_status=status, timed_out=bool(more.get("timed_out")), console=path / "run.log", logs=path / "logs",
        junit=path / "junit.xml",
        beginning=Beginning(run_dir=path, device=path.stat().st_dev, of_file_system=0.0, of_machine=0.0),
    )  # fmt: skip


def _log(path: Path, values: list[float]) -> None:
    (path / "logs").mkdir(exist_ok=True)
    series = {str(step): value for step, value in enumerate(values, start=1)}
    (path / "logs" / "metrics.json").write_text(json.dumps({"train/reward": series}))


@pytest.mark.parametrize("status", [1, 2, 77, 124, 126, 127])
def test_exit_statuses_of_gits_contract_are_bad(tmp_path: Path, status: int) -> None:
    assert judge(_evidence(tmp_path, status), Criteria()).outcome is RunOutcome.FAIL


def test_0_is_good_and_125_is_skip(tmp_path: Path) -> None:
    assert judge(_evidence(tmp_path, 0), Criteria()).outcome is RunOutcome.PASS
    assert judge(_evidence(tmp_path, 125), Criteria()).outcome is RunOutcome.SKIP


@pytest.mark.parametrize("status", [-9, -15, 128, 137, 139, 143])
def test_a_run_killed_by_a_signal_is_no_verdict_unless_declared(tmp_path: Path, status: int) -> None:
    evidence = _evidence(tmp_path, status)
    judgement = judge(evidence, Criteria())
    assert (judgement.outcome, judgement.cause) == (RunOutcome.BLOCKED, Cause.SIGNAL)
    assert judge(evidence, Criteria(signals_are_failures=True)).outcome is RunOutcome.FAIL


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", Cause.MACHINE),
        ("fatal: unable to access 'https://x/': Could not resolve host: x", Cause.NETWORK),
        ("HTTP Error 429: Too Many Requests for url", Cause.QUOTA),
        ("Disk quota exceeded", Cause.QUOTA),
        ("RuntimeError: No CUDA-capable device is detected", Cause.MACHINE),
        ("requests: 503 Service Unavailable", Cause.NETWORK),
    ],
)
def test_an_environment_fault_is_blocked_not_bad(tmp_path: Path, line: str, cause: Cause) -> None:
    judgement = judge(_evidence(tmp_path, 1, f"Traceback\n{line}\n"), Criteria())
    assert (judgement.outcome, judgement.cause) == (RunOutcome.BLOCKED, cause)
    assert judge(_evidence(tmp_path, 0, line), Criteria()).outcome is RunOutcome.PASS


@pytest.mark.parametrize(
    "line",
    ["assert loss < 1", "torch.OutOfMemoryError: CUDA out of memory", "connection refused by 127.0.0.1"],
)
def test_a_fault_that_the_stack_can_cause_itself_stays_bad(line: str) -> None:
    assert obstacle_of(line) is None


def test_a_run_that_crashed_after_its_good_metrics_is_bad(tmp_path: Path) -> None:
    _log(tmp_path, [1.0, 2.0, 3.0])
    criteria = Criteria(checks=(parse_check('mean(data["train/reward"]) > 1'),))
    assert judge(_evidence(tmp_path, 0), criteria).outcome is RunOutcome.PASS
    assert judge(_evidence(tmp_path, 1), criteria).outcome is RunOutcome.FAIL


def test_the_word_fail_in_the_output_is_not_a_verdict(tmp_path: Path) -> None:
    _log(tmp_path, [1.0, 2.0, 3.0])
    criteria = Criteria(checks=(parse_check('mean(data["train/reward"]) > 1'),))
    assert (
        judge(_evidence(tmp_path, 0, "FAIL_FAST=1\nMetric Checks FAIL"), criteria).outcome is RunOutcome.PASS
    )


def test_a_run_without_evidence_is_blocked_never_good(tmp_path: Path) -> None:
    criteria = Criteria(checks=(parse_check('mean(data["train/reward"]) > 1'),))
    judgement = judge(_evidence(tmp_path, 0), criteria)
    assert (judgement.outcome, judgement.cause) == (RunOutcome.BLOCKED, Cause.EVIDENCE)


def test_a_missing_metric_is_bad_and_a_nan_is_bad(tmp_path: Path) -> None:
    criteria = Criteria(checks=(parse_check('mean(data["train/loss"]) < 1'),))
    _log(tmp_path, [1.0])
    assert judge(_evidence(tmp_path, 0), criteria).outcome is RunOutcome.FAIL
    _log(tmp_path, [1.0, math.nan])
    reward = Criteria(checks=(parse_check('mean(data["train/reward"]) < 9'),))
    assert judge(_evidence(tmp_path, 0), reward).outcome is RunOutcome.FAIL


def test_a_metric_is_the_value_of_its_expression(tmp_path: Path) -> None:
    _log(tmp_path, [1.0, 2.0, 6.0])
    judgement = judge(_evidence(tmp_path, 0), Criteria(metric=metric_check('mean(data["train/reward"])')))
    assert (judgement.outcome, judgement.value) == (RunOutcome.PASS, 3.0)


def test_the_values_of_earlier_runs_are_those_of_their_logs(tmp_path: Path) -> None:
    metric, logs = metric_check('max(data["train/reward"])'), []
    for number, values in enumerate([[0.1, 0.3], [0.2, 0.25], [0.5]]):
        logs.append(tmp_path / str(number))
        logs[-1].mkdir()
        _log(logs[-1], values)
    assert earlier_values(logs, metric) == (0.3, 0.25, 0.5)
    with pytest.raises(UsageError, match="1 logs has 1 different"):
        earlier_values(logs[:1], metric)
    with pytest.raises(UsageError, match="2 logs has 1 different"):
        earlier_values(logs[:1] * 2, metric)
    _log(logs[1], [math.nan])
    with pytest.raises(UsageError, match=f"--baseline {logs[1]}: no value"):
        earlier_values(logs, metric)


@pytest.mark.parametrize("values", [[1.0, math.nan], [math.inf]])
def test_a_metric_that_is_not_finite_is_a_run_without_value(tmp_path: Path, values: list[float]) -> None:
    _log(tmp_path, values)
    judgement = judge(_evidence(tmp_path, 0), Criteria(metric=metric_check('mean(data["train/reward"])')))
    assert (judgement.outcome, judgement.value) == (RunOutcome.FAIL, None)


def test_a_run_beyond_its_limit_is_skipped_unless_declared(tmp_path: Path) -> None:
    evidence = _evidence(tmp_path, -1, timed_out=True)
    assert judge(evidence, Criteria()).outcome is RunOutcome.SKIP
    assert judge(evidence, Criteria(timeouts_are_failures=True)).outcome is RunOutcome.FAIL


JUNIT = '<testsuites><testsuite tests="{}" failures="{}" errors="{}" skipped="{}"/></testsuites>'


@pytest.mark.parametrize(
    ("status", "counts", "outcome"),
    [
        (0, (1, 0, 0, 0), RunOutcome.PASS),
        (0, (2, 0, 0, 1), RunOutcome.PASS),
        (0, (1, 0, 0, 1), RunOutcome.SKIP),
        (0, (0, 0, 0, 0), RunOutcome.SKIP),
        (1, (1, 1, 0, 0), RunOutcome.FAIL),
        (0, (1, 1, 0, 0), RunOutcome.FAIL),
        (2, (1, 0, 1, 0), RunOutcome.FAIL),
        (4, None, RunOutcome.SKIP),
        (5, (0, 0, 0, 0), RunOutcome.SKIP),
        (0, None, RunOutcome.BLOCKED),
        (1, None, RunOutcome.FAIL),
    ],
)
def test_a_pytest_run_is_judged_by_its_own_report(
    tmp_path: Path, status: int, counts: tuple[int, ...] | None, outcome: RunOutcome
) -> None:
    if counts is not None:
        (tmp_path / "junit.xml").write_text(JUNIT.format(*counts))
    assert judge(_evidence(tmp_path, status), Criteria(junit=True)).outcome is outcome


def _runlog(**values: list[float]) -> RunLog:
    series = {
        tag: Series(tag=tag, steps=np.arange(len(v)), values=np.array(v, dtype=np.float64))
        for tag, v in values.items()
    }
    return RunLog(sources=["x"], series=series)


LOSSES = [0.1 * n + 0.01234 for n in range(10)]


def test_a_fingerprint_ignores_time_and_sees_the_last_bit() -> None:
    one = fingerprint_of(_runlog(loss=LOSSES, step_time=[1.0] * 10), (1.0,))
    other = fingerprint_of(_runlog(loss=LOSSES, step_time=[2.0] * 10), (1.0,))
    changed = fingerprint_of(
        _runlog(loss=[*LOSSES[:-1], np.nextafter(LOSSES[-1], 9)], step_time=[1.0] * 10), (1.0,)
    )
    assert one == other is not None
    assert changed != one


def test_logs_of_few_round_numbers_cannot_show_determinism() -> None:
    assert fingerprint_of(_runlog(reward=[0.25, 0.5, 0.75, 1.0] * 4), (0.5,)) is None
