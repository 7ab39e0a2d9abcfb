"""Checks that options which contradict one another are refused, and that options close to them are taken."""

from __future__ import annotations

from seatrial.guards import Guards
from seatrial.targets.reference.configuration import refusal_of, table
from seatrial.targets.reference.guards.base import check


def check_refusals(guards: Guards) -> None:
    """Check the pairs of `tables/pairs.yaml`: options that contradict one another are refused, others are not.

    Pairs with a part of ours are left to the relations: a run does not import it.
    """
    wrong, pairs = [], [pair for pair in table("pairs") if "seatrial." not in str(pair)]
    for pair in pairs:
        if pair["says"] not in refusal_of(pair["refused"]):
            wrong.append(f"{pair['refused']} is not refused with {pair['says']!r}")
        if refusal := refusal_of(pair["taken"]):
            wrong.append(f"{pair['taken']} is refused: {refusal}")
    check(guards, "options that contradict one another", wrong[:1], number=2 * len(pairs))
