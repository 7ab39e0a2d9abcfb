"""Known failures that do not fail a comparison until a date, each with its reason: `--quarantine FILE`.

A list of mappings:

    - trial: grpo-smoke
      verdict: max(data["train/token_mult_prob_error"]) *
      reason: issue 12, the sampler's mask
      until: 2026-12-31
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

from seatrial.compare.verdicts import BEFORE, KIND
from seatrial.errors import UsageError
from seatrial.nearest import hint
from seatrial.strict_yaml import read_yaml
from seatrial.trials.results import TrialResult
from seatrial.verdict import Outcome, Verdict

KEYS = ("trial", "verdict", "reason", "until")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One known failure."""

    number: int
    """Its place in the file, from 1."""
    trial: str = "*"
    """Name of the trial, or `relations`; a star matches anything."""
    verdict: str = "*"
    """Name of the verdict or law; a star matches anything."""
    reason: str
    until: date
    """The last day on which it does not fail."""

    def matches(self, trial: str, verdict: str) -> bool:
        """Return whether the entry names this verdict."""
        return _matches(self.trial, trial) and _matches(self.verdict, verdict)

    def words(self) -> str:
        """Return the entry in words, for a message."""
        return f"entry {self.number} ({self.trial}: {self.verdict})"


def _matches(pattern: str, name: str) -> bool:
    """Return whether a name matches; only the star is special, since names of checks have brackets."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def read_quarantine(path: Path) -> list[Entry]:
    """Return the entries of a quarantine file.

    Raises:
        UsageError: the file cannot be read, or an entry has an unknown, missing or wrong key: one line.
    """
    content = read_yaml(path, "--quarantine")
    if not isinstance(content, list):
        raise UsageError(f"--quarantine {path}: write a list of entries with {', '.join(KEYS)}")
    return [_entry(path, number, given) for number, given in enumerate(content, 1)]


def _entry(path: Path, number: int, given: Any) -> Entry:
    place = f"--quarantine {path}: entry {number}"
    if not isinstance(given, dict):
        raise UsageError(f"{place} is no mapping; write {', '.join(KEYS)}")
    for key in given:
        if key not in KEYS:
            raise UsageError(f"{place} has the key {key}; {hint(str(key), KEYS)}")
    for key in ("reason", "until"):
        if key not in given:
            raise UsageError(
                f"{place} has no {key}: every entry has a reason and the day until which it counts"
            )
    if not {"trial", "verdict"} & set(given):
        raise UsageError(f"{place} names neither a trial nor a verdict: it would hide every failure")
    for key in ("trial", "verdict", "reason"):
        value = given.get(key, "*")
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{place}: {key} is {value!r}; write a text")
    until = given["until"]
    if not isinstance(until, date) or isinstance(until, datetime):
        raise UsageError(f"{place}: until is {until!r}; write a day, such as 2026-12-31")
    return Entry(number=number, **given)


def apply_quarantine(
    entries: Sequence[Entry], trials: Sequence[TrialResult], today: date
) -> Mapping[int, int]:
    """Change the failures that entries name to Skipped, or say that the entry has expired.

    Args:
        entries: of the file.
        trials: compared trials; their verdicts are replaced.
        today: the day, UTC.

    Returns:
        Number of failures that each entry names, by the entry's number; those that were broken before count.
    """
    used = {entry.number: 0 for entry in entries}
    for trial in trials:
        changed = []
        for verdict in trial.verdicts:
            entry = next((one for one in entries if one.matches(trial.name, verdict.name)), None)
            if entry is None or not _is_failure(verdict):
                changed.append(verdict)
                continue
            used[entry.number] += 1
            changed.append(_quarantined(verdict, entry, today))
        trial.verdicts = changed
    return used


def _is_failure(verdict: Verdict) -> bool:
    return verdict.outcome is Outcome.FAIL or verdict.details.get(KIND) == BEFORE


def _quarantined(verdict: Verdict, entry: Entry, today: date) -> Verdict:
    details = {**verdict.details, "quarantine": {"reason": entry.reason, "until": entry.until.isoformat()}}
    if today > entry.until:
        reason = f"its quarantine ended on {entry.until} ({entry.reason}): {verdict.reason}"
        return replace(verdict, reason=reason, details=details)
    reason = f"in quarantine until {entry.until} ({entry.reason}): {verdict.reason}"
    return replace(verdict, outcome=Outcome.SKIPPED, reason=reason, details=details)


def unused(entries: Sequence[Entry], used: Mapping[int, int], today: date) -> list[str]:
    """Return a line for each entry that names no failure, or has expired."""
    lines = []
    for entry in entries:
        if not used[entry.number]:
            lines.append(f"quarantine: {entry.words()} matches no failure; remove it ({entry.reason})")
        elif today > entry.until:
            lines.append(f"quarantine: {entry.words()} ended on {entry.until} ({entry.reason})")
    return lines
