"""A verdict as a row of text, as every view shows it."""

from __future__ import annotations

import math
from typing import NamedTuple

from seatrial.verdict import Outcome, Verdict

HEADINGS = ("Status", "Check", "Value", "Bound", "Steps", "Samples", "Reason")

WORDS = {
    Outcome.PASS: "Pass",
    Outcome.FAIL: "Fail",
    Outcome.BLOCKED: "Blocked",
    Outcome.SKIPPED: "Skipped",
    Outcome.NOT_REQUESTED: "Not requested",
}
"""The words for each outcome."""


class Row(NamedTuple):
    """One verdict as text, in the order of `HEADINGS`."""

    status: str
    check: str
    value: str
    bound: str
    steps: str
    samples: str
    reason: str


def row(verdict: Verdict) -> Row:
    """Return a verdict as text; what it does not have is a dash."""
    bound = verdict.bound or "-"
    if verdict.bound and verdict.source and verdict.source != "hand-set":
        bound = f"{bound} ({verdict.source})"
    return Row(
        status=WORDS[verdict.outcome],
        check=verdict.name,
        value=format_value(verdict.value),
        bound=bound,
        steps=steps_text(verdict),
        samples=str(verdict.num_samples) if verdict.num_samples else "-",
        reason=verdict.reason,
    )


def steps_text(verdict: Verdict) -> str:
    """Return the first and last step read, a dash for none."""
    if verdict.steps is None:
        return "-"
    first, last = verdict.steps
    return str(first) if first == last else f"{first}-{last}"


def printable(text: str) -> str:
    """Return text that cannot control the terminal: control characters become question marks."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def format_value(value: float | str | None) -> str:
    """Return a value with as many digits as show it: 1.00000012, 4.2e-07, nan, a dash for none."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    # Values near one are read by their distance from it.
    if 0.99 < abs(value) < 1.01:
        return f"{value:.9g}"
    return f"{value:.5g}"
