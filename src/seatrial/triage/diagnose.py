"""Diagnoses a failed run from its log: the first error, the pattern that it matches, and a verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.readers.opening import read_text
from seatrial.triage.first_error import FirstError, Line, console_lines, first_error, last_of_chain
from seatrial.triage.patterns import Pattern, patterns
from seatrial.verdict import Outcome, Verdict

MAX_UNREADABLE = 0.1
"""Largest share of characters of a console log that are not UTF-8, if it has NUL bytes as well."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is known of a failure."""

    error: FirstError | None
    """None where the log shows no error."""
    pattern: Pattern | None
    """The pattern that it matches; None where the failure is unknown."""
    shown_by: Line | None = None
    """The line that the pattern matches."""

    @property
    def verdict(self) -> Verdict:
        """Blocked or Fail by the pattern; Fail where an error is unknown; Skipped where there is none."""
        if self.pattern is None:
            known = self.error is not None
            return Verdict(
                name="triage",
                outcome=Outcome.FAIL if known else Outcome.SKIPPED,
                reason=f"unknown failure; first error: {self.error.text}"
                if self.error
                else "the log shows no error",
                value="unknown" if known else None,
                num_samples=int(known),
            )
        isolate = f"; rerun alone: {self.pattern.isolate}" if self.pattern.isolate else ""
        return Verdict(
            name="triage",
            outcome=self.pattern.outcome,
            reason=f"{self.pattern.boundary}: {self.pattern.meaning}. Next: {self.pattern.next}{isolate}",
            value=self.pattern.id,
            num_samples=1,
            source=self.pattern.source,
            details={
                "boundary": self.pattern.boundary,
                "line": self.shown_by.number if self.shown_by else None,
                "said": self.shown_by.text.strip()[:400] if self.shown_by else "",
            },
        )


def diagnose_file(path: Path) -> Diagnosis:
    """Read a console log, packed or not.

    Raises:
        BlockedError: it cannot be read, or is empty.
    """
    try:
        raw = read_text(path)
    except OSError as error:
        raise BlockedError(f"{path}: {error.strerror}; name the console log of the run") from error
    if not raw.strip():
        raise BlockedError(f"{path}: empty; name the console log of the run")
    text = raw.decode("utf-8", errors="replace")
    if "\0" in text and text.count("\ufffd") > MAX_UNREADABLE * len(text):
        raise BlockedError(f"{path}: not text; name the console log of the run")
    return diagnose(text)


def diagnose(text: str) -> Diagnosis:
    """Find the first error of the first process that failed, and the pattern that it matches.

    Patterns that are a cause in any case (a killed process, a time limit) are searched in all lines first, then
    patterns of two separate texts; then in the first error with the lines that lead to it, and in the frames of its
    traceback; and where nothing looks like an error, a metric that failed.
    """
    lines = list(console_lines(text))
    error = first_error(lines)
    rows = [row for row in patterns() if not row.also]
    raised = error is not None and error.raised
    roots = [row for row in rows if row.root and not (row.yields and raised)]
    if found := _first(_without_consequences(lines), roots):
        return Diagnosis(error=error, pattern=found[0], shown_by=found[1])
    for row in patterns():
        if row.also and row.expression.search(text) and re.search(row.also, text, re.IGNORECASE):
            shown = next((line for line in lines if row.expression.search(line.text)), None)
            return Diagnosis(error=error, pattern=row, shown_by=shown)
    if error is None:
        found = _first(lines, [row for row in rows if row.boundary == "metric"])
        return Diagnosis(
            error=None, pattern=found[0] if found else None, shown_by=found[1] if found else None
        )
    said = lines[error.line - 1 : error.line + 12]
    # A process that lost a connection or a neighbour names the context in a later exception.
    last = None if error.raised else last_of_chain(lines, error)
    own = [line for line in said if line.who == error.who]
    groups = ([last] if last else [], _said_at_once(said), own, _context(lines, error))
    strong = [row for row in rows if not row.weak]
    found = _first_of_groups(groups, strong) or _in_frames(error, rows) or _first_of_groups(groups, rows)
    return Diagnosis(error=error, pattern=found[0] if found else None, shown_by=found[1] if found else None)


def _first_of_groups(
    groups: Sequence[Sequence[Line]], rows: Sequence[Pattern]
) -> tuple[Pattern, Line] | None:
    """Return the first pattern that matches a line of the first group with a match."""
    return next((found for group in groups if (found := _first(group, rows))), None)


def _in_frames(error: FirstError, rows: Sequence[Pattern]) -> tuple[Pattern, Line] | None:
    """Return the first pattern that matches a frame of the traceback."""
    frames = [Line(error.line, error.who, text) for text in error.frames]
    return _first(frames, [row for row in rows if row.in_frames])


def _said_at_once(said: Sequence[Line]) -> list[Line]:
    """Return the error's line with the indented lines that continue it: pydantic gives its reasons there."""
    message = [said[0]]
    for line in said[1:]:
        if line.who != said[0].who or not line.text.startswith(" "):
            break
        message.append(line)
    return message


def _without_consequences(lines: Sequence[Line]) -> list[Line]:
    """Remove the ranks that torchrun lists before the one that failed first: it stopped them itself."""
    texts = [line.text for line in lines]
    if "Failures:" not in texts:
        return list(lines)
    start = texts.index("Failures:")
    end = next((place for place in range(start, len(texts)) if texts[place].startswith("Root Cause")), start)
    return [*lines[:start], *lines[end:]]


def _first(lines: Sequence[Line], rows: Sequence[Pattern]) -> tuple[Pattern, Line] | None:
    """Return the first pattern that matches a line, and the first such line."""
    for row in rows:
        for line in lines:
            if row.expression.search(line.text):
                return row, line
    return None


def _context(lines: Sequence[Line], error: FirstError) -> list[Line]:
    """Return the lines of the same process that lead to its error."""
    before = [line for line in lines[: error.line - 1] if line.who == error.who and line.text.strip()]
    return before[-len(error.context) :] if error.context else []
