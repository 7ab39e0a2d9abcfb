"""From a check and the logs it reads to a verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from seatrial.checks.evaluator import Evaluator
from seatrial.checks.intervals import Interval
from seatrial.checks.known_ranges import KNOWN_RANGES
from seatrial.checks.lint import cannot_fail
from seatrial.checks.nodes import Check, SeriesRef
from seatrial.checks.reading import Evidence, UnansweredError, listed
from seatrial.checks.wording import Answer, answer_of, bound_text
from seatrial.errors import UsageError
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome, Verdict

HAND_SET = "hand-set"


def evaluate_check(
    check: Check,
    log: RunLog,
    *,
    runs: Mapping[str, RunLog] | None = None,
    allow_nonfinite: Collection[str] = (),
    source: str = HAND_SET,
    ranges: Mapping[str, Interval] = KNOWN_RANGES,
) -> Verdict:
    """Judge a log by a check.

    Args:
        check: what `parse_check` read.
        log: the run under judgement.
        runs: logs of other runs by the name that `run("NAME")` uses.
        allow_nonfinite: tags whose NaN, infinite and null points are legitimate; they are left out, and counted.
        source: where the bound came from.
        ranges: values that tags can take by construction; see `clip_ranges` for a run with another clip.

    Returns:
        Pass, Fail, Blocked when a log that the check reads is damaged, or Skipped when the check holds and
        could not have failed on any finite log.

    Raises:
        UsageError: the check reads a run that is not given.
    """
    logs: dict[str | None, RunLog] = {None: log}
    logs.update(runs or {})
    unknown = sorted(name for name in check.runs if name not in logs)
    if unknown:
        given = ", ".join(sorted(runs or {})) or "none"
        raise UsageError(
            f'a check reads run("{unknown[0]}"), which is not given (given: {given}): --run NAME=PATH'
        )
    evidence = Evidence(logs, allow_nonfinite)
    evaluator = Evaluator(evidence)
    try:
        good = evaluator.condition(check.condition)
        answer = answer_of(check.condition, evaluator.values, good)
        empty = cannot_fail(check, log, ranges) if good else None
        if empty is not None:
            answer = replace(answer, outcome=Outcome.SKIPPED, reason=f"cannot fail: {empty}; {answer.reason}")
    except UnansweredError as unanswered:
        answer = Answer(outcome=Outcome.FAIL, reason=str(unanswered), bound=bound_text(check.condition, {}))
    return _verdict(check, evidence, answer, source)


def _dropped(evidence: Evidence, reference: SeriesRef) -> list[int]:
    """Return the steps in the range read whose value the writer of the log probably dropped."""
    log = evidence.logs[reference.run]
    if reference.tag not in log.dropped or evidence.tally.steps is None:
        return []
    first, last = evidence.tally.steps
    held = log.series[reference.tag].steps
    return [
        int(step)
        for step in log.dropped[reference.tag]
        if (first <= held[0] or step > first) and (last >= held[-1] or step < last)
    ]


def _verdict(check: Check, evidence: Evidence, answer: Answer, source: str) -> Verdict:
    """Put the answer and what was read into a verdict; damage in a log that was read makes it Blocked."""
    tally = evidence.tally
    outcome, reason = answer.outcome, answer.reason
    details: dict[str, Any] = {}
    read = {reference.run: None for reference in check.references}
    damage = [item for run in read for item in evidence.logs[run].damage]
    if damage:
        details["readable_part"] = f"{outcome.value}: {reason}"
        details["damage"] = [f"{item.path}: {item.what}" for item in damage]
        more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
        outcome, reason = Outcome.BLOCKED, f"the log is damaged: {damage[0].path}: {damage[0].what}{more}"
    for reference in check.references:
        steps = _dropped(evidence, reference)
        if steps:
            details.setdefault("dropped", {})[reference.label] = steps
            if reference.tag not in evidence.allow_nonfinite and outcome in (Outcome.PASS, Outcome.SKIPPED):
                outcome = Outcome.BLOCKED
            reason += (
                f"; {reference.label} has no value at step{'s' if len(steps) > 1 else ''} {listed(steps)}, "
                "and its writer drops what is not finite"
            )
    for tag in sorted(evidence.allow_nonfinite & {reference.tag for reference in check.references}):
        steps = sorted(tally.left_out.get(tag, ()))
        details.setdefault("allowed_nonfinite", {})[tag] = steps
        reason += f"; values of {tag} that are not finite are allowed and left out: {len(steps)} steps"
    for note in dict.fromkeys(tally.notes):
        reason += f"; {note}"
    return Verdict(
        name=check.text,
        outcome=outcome,
        reason=reason,
        value=answer.value,
        bound=answer.bound,
        num_samples=tally.num_samples,
        steps=tally.steps,
        source=source,
        details=details,
    )
