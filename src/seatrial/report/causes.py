"""The usual cause of a failed verdict, and what to do next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, cast

from seatrial.errors import UsageError
from seatrial.packaged import read_table
from seatrial.rules.engine import all_rules
from seatrial.verdict import Outcome, Verdict


class Advice(NamedTuple):
    """What a failure usually is, and what to do."""

    cause: str
    next: str


_WRONG = (Outcome.FAIL, Outcome.BLOCKED)
_NOT_LOGGED = "is not in the log"
"""In the reason of a verdict on a series that a run did not log."""
_COMMAND = "ends with status"
"""In the name of the verdict on a command's exit status."""


@cache
def _known() -> list[dict[str, str]]:
    """Return the table: a pattern of a verdict's name, the usual cause, what to do; the closest to a cause first."""
    return cast("list[dict[str, str]]", read_table("seatrial.report", "causes.yaml"))


def by_importance(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the failed verdicts, then the blocked ones, those closest to a cause first: the table's order."""

    def place(verdict: Verdict) -> tuple[int, int]:
        known = (place for place, entry in enumerate(_known()) if re.search(entry["name"], verdict.name))
        return _WRONG.index(verdict.outcome), next(known, len(_known()))

    return sorted((verdict for verdict in verdicts if verdict.outcome in _WRONG), key=place)


def advice_of(verdict: Verdict, of_trial: Sequence[Verdict] = ()) -> Advice:
    """Return the usual cause of a Fail or Blocked verdict and the next step.

    A rule, a relation or the triage of a console log knows its own cause; for the rest there is a table by name.

    Args:
        verdict: the one to explain.
        of_trial: every verdict of its trial; where a command failed, other failures are its consequences.
    """
    if advice := _of_rule(verdict) or _of_text(verdict):
        return advice
    if verdict.outcome is Outcome.BLOCKED:
        return Advice(
            "The environment prevented the evidence; this says nothing about the stack",
            "Fix what the reason names, then run the trial again",
        )
    command = next((one for one in of_trial if _COMMAND in one.name and one.outcome in _WRONG), None)
    if command is not None and command is not verdict:
        return Advice(f"The command did not finish: see {command.name!r}", "Fix that failure first")
    if _NOT_LOGGED in verdict.reason:
        return Advice(
            "The stack does not log this series, or logs it under a name that is not known",
            "Log it, or say what the stack calls it: `metrics:` of a YAML target; `seatrial tags LOGS` lists the names",
        )
    for entry in _known():
        if re.search(entry["name"], verdict.name):
            return Advice(entry["cause"], entry["next"])
    return Advice("Not known for this check", "Read run.log (`seatrial triage run.log`) and the rows below")


def _of_rule(verdict: Verdict) -> Advice | None:
    try:
        rules = all_rules() if verdict.name.startswith("rule ") else ()
    except UsageError:
        return None
    return next((Advice(r.meaning, r.remedy) for r in rules if verdict.name == f"rule {r.id}"), None)


def _of_text(verdict: Verdict) -> Advice | None:
    """Read the cause and the remedy from the text of the verdict, where it says them."""
    # A verdict on several laws explains each of them; the first is the one to read.
    text = str(verdict.details.get("triage") or verdict.reason.partition(" | ")[0])
    before, found, remedy = text.partition("Next: ")
    cause = re.split(r"\b(?:Usually|Cause): ", before)
    if not found and len(cause) == 1:
        return None
    return Advice(
        cause[-1].strip(" .;") or before,
        remedy or "Read the input that the reason names, then the code of the cause",
    )
