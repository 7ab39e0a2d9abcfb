"""Verdicts on a training run that several trials need, and their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from seatrial.checks import Check, clip_ranges, parse_check
from seatrial.checks.evaluate import HAND_SET
from seatrial.checks.judge import Questions, judge_logs
from seatrial.errors import BlockedError
from seatrial.targets.base import TrainingJob
from seatrial.trials.run_evidence import NOT_GIVEN, NotGivenError, RunEvidence
from seatrial.verdict import Outcome, Verdict

STEP_TAG = "train/loss"
"""The series whose steps are the optimizer steps."""
STEPS_SHOWN = 2
"""Values of its type by which a tensor must be able to move, or that it did not move says nothing."""
_SHOWN = 4
STILL = "the run is configured with policy.optimizer.lr=0: nothing can move"


class Sensor(NamedTuple):
    """A question to the evidence of a run."""

    name: str
    judge: Callable[[RunEvidence], Verdict]


def ask(sensors: Sequence[Sensor], evidence: RunEvidence, record: Callable[[Verdict], None]) -> None:
    """Put every question and record each verdict; evidence that cannot be read blocks the question."""
    for sensor in sensors:
        try:
            verdict = replace(sensor.judge(evidence), name=sensor.name)
        except NotGivenError as error:
            verdict = not_given(sensor.name, str(error))
        except BlockedError as error:
            verdict = Verdict(name=sensor.name, outcome=Outcome.BLOCKED, reason=str(error))
        record(verdict)


def not_given(name: str, reason: str) -> Verdict:
    """Return NotRequested for a verdict whose evidence the target does not give; claims on it are not made."""
    return Verdict(name=name, outcome=Outcome.NOT_REQUESTED, reason=reason, details={NOT_GIVEN: reason})


def not_judged(sensors: Sequence[Sensor], cause: Verdict, record: Callable[[Verdict], None]) -> None:
    """Record that the evidence is not worth judging, with the verdict that says why."""
    for sensor in sensors:
        record(
            Verdict(
                name=sensor.name,
                outcome=Outcome.BLOCKED,
                reason=f"not judged: {cause.name}: {cause.value or cause.reason}",
            )
        )


def check_sensor(text: str, meaning: str, *, source: str = HAND_SET) -> Sensor:
    """Return a check of the expression language as a sensor; its verdict is the one that `seatrial check` gives.

    Args:
        text: the expression.
        meaning: what it means that it holds; it goes with the verdict.
        source: where its bound came from.
    """
    check = parse_check(text)

    def judge(evidence: RunEvidence) -> Verdict:
        need_logged(sorted(check.tags()), evidence)
        verdict = _judged(check, evidence, source)
        return replace(verdict, details={**verdict.details, "why": meaning})

    return Sensor(text, judge)


def need_logged(tags: Sequence[str], evidence: RunEvidence) -> None:
    """Check that the stack writes these series.

    Raises:
        NotGivenError: the job says that it never writes one of them, and the log does not hold it.
    """
    unlogged = evidence.job.unlogged
    for tag in tags:
        if tag in unlogged and evidence.series(tag) is None:
            raise NotGivenError(f"the stack does not log {tag}: {unlogged[tag]}")


def _judged(check: Check, evidence: RunEvidence, source: str = HAND_SET) -> Verdict:
    """Judge the log of a run, whose clip is that of its job."""
    low, high = evidence.job.ratio_clip
    questions = Questions(checks=[check], ranges=clip_ranges(1 - low, high - 1), source=source)
    [verdict] = judge_logs(evidence.job.log_dir, questions)
    return verdict


def as_expected(verdict: Verdict, job: TrainingJob) -> Verdict:
    """Return a verdict in the light of what the stack is known to fail; see `TrainingJob.expected_failures`."""
    reason = job.expected_failures.get(verdict.name)
    if reason is None or verdict.outcome not in (Outcome.PASS, Outcome.FAIL):
        return verdict
    if verdict.outcome is Outcome.FAIL:
        return replace(
            verdict,
            outcome=Outcome.SKIPPED,
            reason=f"fails as expected ({reason}): {verdict.reason}",
            details={**verdict.details, "expected_failure": reason},
        )
    return replace(
        verdict,
        outcome=Outcome.FAIL,
        reason=f"it is in expected_failures and holds: remove it there ({reason})",
    )


def log_undamaged(evidence: RunEvidence) -> Verdict:
    """Nothing of the log is lost."""
    log = evidence.log
    num_points = sum(len(series) for series in log.series.values())
    if log.damage:
        first = log.damage[0]
        more = f" (and {len(log.damage) - 1} more)" if len(log.damage) > 1 else ""
        return Verdict(
            name=LOG_UNDAMAGED.name,
            outcome=Outcome.BLOCKED,
            reason=f"{first.path}: {first.what}{more}",
            num_samples=num_points,
        )
    return Verdict(
        name=LOG_UNDAMAGED.name,
        outcome=Outcome.PASS if num_points else Outcome.FAIL,
        reason=f"{len(log.series)} series in {len(log.sources)} files"
        if num_points
        else "the log holds no scalar",
        value=float(num_points),
        bound="> 0 points, none lost",
        num_samples=num_points,
    )


def steps_reached(evidence: RunEvidence) -> Verdict:
    """The run took and logged every optimizer step that was asked for."""
    first, wanted = evidence.job.first_step, evidence.job.num_steps
    series = evidence.series(STEP_TAG)
    steps = sorted({int(step) for step in series.steps}) if series is not None else []
    bound = f"== {wanted} of {wanted}"
    missing = sorted(set(range(first, wanted + 1)) - set(steps))
    beyond = [step for step in steps if not first <= step <= wanted]
    evidence.need_whole_log()
    if series is None:
        held = _few(sorted(evidence.log.series))
        reason = (
            f"{STEP_TAG!r}, by which steps are counted, is not in the log; it holds {held or 'no series'}"
        )
    elif missing or beyond:
        last = steps[-1] if steps else 0
        reason = (
            f"reached step {last} of {wanted}; missing: {_few(missing)}"
            if missing
            else f"extra: {_few(beyond)}"
        )
    else:
        reason = f"every step from {first} to {wanted} is logged"
    return Verdict(
        name=STEPS_REACHED.name,
        outcome=Outcome.FAIL if missing or beyond else Outcome.PASS,
        reason=reason,
        value=float(steps[-1]) if steps else None,
        bound=bound,
        num_samples=len(steps),
        steps=(steps[0], steps[-1]) if steps else None,
    )


def every_series_finite(evidence: RunEvidence) -> Verdict:
    """No logged value is NaN, infinite or null."""
    log = evidence.log
    wrong = []
    num_points = 0
    first, last = [], []
    for tag, series in sorted(log.series.items()):
        num_points += len(series)
        if len(series):
            first.append(int(series.steps.min()))
            last.append(int(series.steps.max()))
        bad = ~np.isfinite(series.values)
        if bad.any():
            place = int(np.argmax(bad))
            wrong.append(f"{tag} is {series.values[place]} at step {series.steps[place]}")
    evidence.need_whole_log()
    good = bool(num_points) and not wrong
    return Verdict(
        name=FINITE.name,
        outcome=Outcome.PASS if good else Outcome.FAIL,
        reason=f"{len(log.series)} series" if good else _few(wrong) or "the log holds no scalar",
        value=float(len(wrong)),
        bound="== 0 series with a value that is not finite",
        num_samples=num_points,
        steps=(min(first), max(last)) if first else None,
    )


def gradient_positive(evidence: RunEvidence) -> Verdict:
    """The gradient norm is positive at every step; not triggered at steps whose groups all have equal rewards."""
    need_logged(["train/grad_norm"], evidence)
    verdict = _judged(_GRADIENT, evidence)
    series = evidence.series("train/grad_norm")
    if verdict.outcome is Outcome.PASS:
        return replace(verdict, reason="a gradient flows at every step")
    if verdict.outcome is not Outcome.FAIL or series is None:
        return verdict
    zero_steps = {int(step) for step, value in zip(series.steps, series.values, strict=True) if not value > 0}
    silent = set(evidence.steps_without_signal)
    if not np.isfinite(series.values).all() or not zero_steps <= silent:
        return verdict
    return replace(
        verdict,
        outcome=Outcome.SKIPPED,
        reason=f"not triggered: at steps {_few(sorted(zero_steps))} every group has equal rewards, so that no "
        "advantage is left",
    )


def parameters_moved(evidence: RunEvidence) -> Verdict:
    """Every trained tensor changed, none is lost, added, reshaped or not finite.

    Left out are tensors whose type is too coarse to show a change as small as the learning rates allow. Where the run
    is configured not to move any, none may have moved.

    Raises:
        NotGivenError: the learning rate is configured as 0, and nothing moved.
    """
    name = PARAMETERS_MOVED.name
    job = evidence.job
    evidence.need("export")
    if not job.final_model.is_dir():
        return Verdict(
            name=name,
            outcome=Outcome.FAIL,
            reason=f"the run left no trained model at {job.final_model} ({evidence.launched.describe()})",
        )
    found = evidence.weights
    frozen = tuple(evidence.job.frozen)
    unmoved = [name for name in found.unmoved if not (frozen and name.endswith(frozen))]
    if _is_still(job):
        moved = [change.name for change in found.changes if change.num_changed]
        if not moved:
            raise NotGivenError(STILL)
        reason = f"{len(moved)} tensors moved at a learning rate of 0: {_few(moved)}"
        return Verdict(name=name, outcome=Outcome.FAIL, reason=reason, num_samples=len(found.changes))
    reach = _reach(evidence)
    coarse = [change.name for change in found.changes if reach < STEPS_SHOWN * change.resolution]
    hidden = [name for name in unmoved if name in coarse]
    unmoved = [name for name in unmoved if name not in coarse]
    unreached: list[str] = []
    if unmoved and all(".experts." in name for name in unmoved):
        unreached = sorted(evidence.unreached_experts & set(unmoved))
        unmoved = [name for name in unmoved if name not in unreached]
    names = {
        "moved, though frozen": [
            change.name
            for change in found.changes
            if frozen and change.name.endswith(frozen) and change.num_changed
        ],
        "lost": found.only_before,
        "added": found.only_after,
        "reshaped": found.reshaped,
        "not finite": [change.name for change in found.changes if change.num_nonfinite],
        "did not move": unmoved,
    }
    wrong = [f"{len(of)} tensors {what}: {_few(list(of))}" for what, of in names.items() if of]
    smallest = min((change.max_abs_change for change in found.changes), default=0.0)
    if unmoved and len(wrong) == 1 and evidence.is_without_signal:
        return Verdict(
            name=name,
            outcome=Outcome.SKIPPED,
            reason="not triggered: at every step every group has equal rewards, so that there is nothing to learn",
            num_samples=len(found.changes),
        )
    return Verdict(
        name=name,
        outcome=Outcome.FAIL if wrong or not found.changes else Outcome.PASS,
        reason="; ".join(wrong)
        or (f"all changed but {_few(unreached)}, experts that no token was sent to" if unreached else "")
        or (
            f"all changed but {_few(hidden)}, whose type cannot show a change of {reach:.2g}"
            if hidden
            else f"all {len(found.changes)} tensors changed"
        ),
        value=smallest,
        bound="> 0 in every tensor (smallest of the largest changes)",
        num_samples=len(found.changes),
    )


def _is_still(job: TrainingJob) -> bool:
    """Return whether the run is configured with a learning rate of 0; what it logs as its rate does not count."""
    optimizer = job.configuration.get("policy", {}).get("optimizer", {})
    return bool(optimizer.get("lr") == 0)


def _reach(evidence: RunEvidence) -> float:
    """Return how far AdamW can have moved a weight: the sum of the logged learning rates; infinite where that is 0."""
    rates = evidence.series("train/lr")
    total = 0.0 if rates is None else float(np.sum(rates.values)) * evidence.job.num_updates_per_step
    return total if total > 0 else math.inf


def _few(items: Sequence[object]) -> str:
    """Name the first of many."""
    more = f" (and {len(items) - _SHOWN} more)" if len(items) > _SHOWN else ""
    return ", ".join(str(item) for item in items[:_SHOWN]) + more


def left_reference(evidence: RunEvidence) -> Verdict:
    """The policy has left its frozen reference; not triggered where no step before the last has anything to learn from.

    Each step compares the two before its update.

    Raises:
        NotGivenError: the learning rate is configured as 0, and the policy is where it began.
    """
    need_logged(["train/kl_penalty"], evidence)
    verdict = _judged(_REFERENCE, evidence)
    if verdict.outcome is Outcome.FAIL and _is_still(evidence.job):
        raise NotGivenError(STILL)
    if verdict.outcome is not Outcome.FAIL or "rows" in evidence.job.absent:
        return verdict
    taught = {row.step for row in evidence.ledger} - set(evidence.steps_without_signal)
    if min(taught, default=evidence.job.num_steps) < evidence.job.num_steps:
        return verdict
    return replace(
        verdict,
        outcome=Outcome.SKIPPED,
        reason="not triggered: at every step before the last every group has equal rewards",
    )


_REFERENCE = parse_check('max(data["train/kl_penalty"]) > 0')
_GRADIENT = parse_check('min(data["train/grad_norm"]) > 0')
LOG_UNDAMAGED = Sensor("log undamaged", log_undamaged)
STEPS_REACHED = Sensor("steps reached", steps_reached)
FINITE = Sensor("every series finite", every_series_finite)
GRADIENT_POSITIVE = Sensor(_GRADIENT.text, gradient_positive)
LEFT_REFERENCE = Sensor(_REFERENCE.text, left_reference)
PARAMETERS_MOVED = Sensor("every trainable tensor moved", parameters_moved)
