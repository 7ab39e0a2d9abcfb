"""R31.older: what a command takes under an older name of an option is read."""

from __future__ import annotations

from typing import Any, NamedTuple

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

OLDER = relation_of(
    "older",
    "older-names-of-options-are-read",
    "An option that a command takes under an older name has its value at the name that is read.",
)


class MovedOption(NamedTuple):
    """An option that a command takes under an older name."""

    old: str
    new: str
    """The name that it is read by."""
    given: Any
    kept: Any
    """What is at the newer name when the command has read its options."""


@OLDER.law(
    "options under older names",
    "a section that a command still takes and does not read, an option that is moved to another place",
    excluded=without("older options"),
)
def older_names_are_read(stack: Any, case: Numbers) -> Measure:
    """Check every option of the older names, each with a value that is no default."""
    found: list[MovedOption] = stack.utilities["older options"]()
    wrong = [f"{one.old}={one.given}: {one.new} is {one.kept}" for one in found if one.kept != one.given]
    return Measure.count(wrong, f"options that are lost, of {len(found)}")
