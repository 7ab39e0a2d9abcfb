"""Evaluates a check on logs and returns a verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from seatrial.checks.known_ranges import KNOWN_RANGES
from seatrial.checks.language.doubts import NO_TERMS, Finding, Terms, reach, weigh
from seatrial.checks.language.doubts import is_settled as keeps
from seatrial.checks.language.evaluator import Evaluator
from seatrial.checks.language.nodes import Check
from seatrial.checks.language.reading import Evidence, UnansweredError
from seatrial.checks.language.truth import Interval
from seatrial.checks.language.wording import Answer, answer_of, bound_text
from seatrial.checks.lint import cannot_fail
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
    terms: Terms = NO_TERMS,
) -> Verdict:
    """Judge a log by a check.

    Args:
        check: what `parse_check` read.
        log: the run under judgement.
        runs: logs of other runs by the name that `run("NAME")` uses.
        allow_nonfinite: tags whose NaN, infinite and null points are legitimate; they are left out, and counted.
        source: where the bound came from.
        ranges: values that tags can take by construction; see `clip_ranges` for a run with another clip.
        terms: requirements on the log as a whole, and what the user knows about it.

    Returns:
        Pass, Fail, Blocked when a log that the check reads is damaged (where only its end is missing: if that
        could change the answer) or ambiguous, or Skipped when the check holds and could not have failed on any
        finite log.

    Raises:
        UsageError: the check reads a run that is not given, or compares a whole series with a number.
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
    is_settled = terms.steps is not None and all(
        reach(reference.tag, logs[reference.run], terms.steps) for reference in check.references
    )
    try:
        good = evaluator.condition(check.condition)
        answer = answer_of(check.condition, evaluator.values, good)
        is_settled = is_settled or keeps(check.condition, good, evaluator.values, logs)
        empty = cannot_fail(check, log, ranges) if good else None
        if empty is not None:
            answer = replace(answer, outcome=Outcome.SKIPPED, reason=f"cannot fail: {empty}; {answer.reason}")
    except UnansweredError as unanswered:
        is_settled = is_settled or unanswered.is_lasting
        answer = Answer(outcome=Outcome.FAIL, reason=str(unanswered), bound=bound_text(check.condition, {}))
    finding = weigh(check, evidence, Finding(answer.outcome, answer.reason), terms, is_settled=is_settled)
    return _verdict(check, evidence, answer, finding, source)


def _verdict(check: Check, evidence: Evidence, answer: Answer, finding: Finding, source: str) -> Verdict:
    """Return the verdict of an answer and of what was read."""
    tally = evidence.tally
    reason, details = finding.reason, finding.details
    for tag in sorted(evidence.allow_nonfinite & {reference.tag for reference in check.references}):
        steps = sorted(tally.left_out.get(tag, ()))
        details.setdefault("allowed_nonfinite", {})[tag] = steps
        reason += f"; values of {tag} that are not finite are allowed and left out: {len(steps)} steps"
    for reference in check.references:
        held = evidence.logs[reference.run].read_as.get(reference.tag)
        if held is not None:
            details.setdefault("read_as", {})[reference.label] = held
            reason += f"; {reference.label} is read from {held}"
    for note in dict.fromkeys(tally.notes):
        reason += f"; {note}"
    return Verdict(
        name=check.text,
        outcome=finding.outcome,
        reason=reason,
        value=answer.value,
        bound=answer.bound,
        num_samples=tally.num_samples,
        steps=tally.steps,
        source=source,
        details=details,
    )
