"""Judges a pytest run by its JUnit report."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from seatrial.bisect.causes import Cause, Obstacle
from seatrial.bisect.outcomes import Judgement, RunOutcome

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
