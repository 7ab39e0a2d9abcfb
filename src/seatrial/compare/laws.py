"""Relations on both sides, law by law: which laws HEAD broke, and which it fixed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seatrial.compare.verdicts import APART, BEFORE, BLOCKED, BROKE, FIXED, KIND, SAME
from seatrial.verdict import Outcome, Verdict

HELD, BROKEN, NOT_JUDGED, PREVENTED = "holds", "broken", "not exercised", "blocked"


class Law(NamedTuple):
    """One law on one side."""

    state: str
    reason: str
    num_samples: int
    parts: tuple[str, ...] = ()
    """What is broken of a law that judges several parts."""


def laws_of(verdicts: Sequence[Verdict]) -> dict[str, Law]:
    """Return every law that the relations of a side name, by `[ADAPTER: ]RELATION/law`.

    A law that its adapter expects to be broken is broken; one that raised is broken too.
    """
    found: dict[str, Law] = {}
    for verdict in verdicts:
        adapter, _, relation = verdict.name.rpartition(": ")
        prefix = f"{adapter}: " * bool(adapter) + relation.split(" ")[0]
        details = verdict.details

        def put(law: str, state: str, reason: str, at: str = prefix, of: Verdict = verdict) -> None:
            broken = of.details.get("parts", {}).get(law, {})
            parts = tuple(part for names in broken.values() for part in names)
            found.setdefault(f"{at}/{law}", Law(state, reason, max(1, of.num_samples), parts))

        for law in details.get("laws_broken", ()):
            put(law, BROKEN, _sentence(verdict.reason, law))
        for one in details.get("raises", ()):
            for law in one["laws"]:
                put(law, BROKEN, one["sentence"])
        for law, reason in details.get("expected_failures", {}).items():
            put(law, BROKEN, f"as the adapter expects: {reason}")
        for one in details.get("misfits", ()):
            for law in one["laws"]:
                put(law, PREVENTED, one["sentence"])
        for law in details.get("laws", ()):
            put(law, HELD, "holds")
        for law, reason in details.get("laws_not_exercised", {}).items():
            put(law, NOT_JUDGED, str(reason))
    return found


def _sentence(reason: str, law: str) -> str:
    """Return the sentence about a law out of the reason of its relation."""
    return next((part for part in reason.split(" | ") if repr(law) in part), reason)


def compare_laws(base: Sequence[Verdict], head: Sequence[Verdict]) -> list[Verdict]:
    """Return a verdict for each law that is not the same on both sides or is broken, and one for all that hold on both.

    Args:
        base: verdicts of `seatrial relations` at BASE.
        head: the same at HEAD.
    """
    before, after = laws_of(base), laws_of(head)
    found: list[Verdict] = []
    same = 0
    for name in dict.fromkeys([*after, *before]):
        old, new = before.get(name), after.get(name)
        if old is not None and new is not None and old.state == new.state == HELD:
            same += 1
            continue
        outcome, kind, reason = _difference(old, new)
        if kind == APART and _is_silent(old) and _is_silent(new):
            continue
        found.append(
            Verdict(
                name=name,
                outcome=outcome,
                reason=reason,
                value=f"BASE {_state(old)}, HEAD {_state(new)}",
                bound="HEAD breaks no law that holds at BASE",
                num_samples=sum(law.num_samples for law in (old, new) if law is not None),
                details={KIND: kind},
            )
        )
    found += _whole_relations(base, head)
    if same:
        found.append(
            Verdict(
                name="laws that hold on both",
                outcome=Outcome.PASS,
                reason=f"{same} law{'s' * (same != 1)} hold at BASE and at HEAD",
                num_samples=same,
                details={KIND: SAME},
            )
        )
    order = (Outcome.FAIL, Outcome.BLOCKED, Outcome.SKIPPED, Outcome.PASS)
    return sorted(found, key=lambda verdict: order.index(verdict.outcome))


def _whole_relations(base: Sequence[Verdict], head: Sequence[Verdict]) -> list[Verdict]:
    """Return a Blocked verdict for each relation or adapter of HEAD that names no law and was not blocked at BASE."""
    blocked_before = {verdict.name for verdict in base if verdict.outcome is Outcome.BLOCKED}
    return [
        Verdict(
            name=verdict.name,
            outcome=Outcome.BLOCKED,
            reason=f"blocked at HEAD only: {verdict.reason}",
            details={KIND: BLOCKED},
        )
        for verdict in head
        if verdict.outcome is Outcome.BLOCKED
        and verdict.name not in blocked_before
        and not verdict.details.get("misfits")
    ]


def _difference(old: Law | None, new: Law | None) -> tuple[Outcome, str, str]:
    if new is not None and new.state == BROKEN:
        if old is not None and old.state == HELD:
            return Outcome.FAIL, BROKE, f"HEAD broke this law: {new.reason}"
        if old is not None and old.state == BROKEN:
            more = [part for part in new.parts if part not in old.parts]
            if old.parts and more:
                return Outcome.FAIL, BROKE, f"HEAD broke {', '.join(more)} of this law: {new.reason}"
            return Outcome.SKIPPED, BEFORE, f"broken before: {new.reason}"
        return Outcome.SKIPPED, APART, f"broken at HEAD; BASE cannot be compared ({_why(old)}): {new.reason}"
    if new is not None and new.state == HELD:
        if old is not None and old.state == BROKEN:
            return Outcome.PASS, FIXED, f"fixed: at BASE: {old.reason}"
        return Outcome.SKIPPED, APART, f"holds at HEAD; BASE cannot be compared ({_why(old)})"
    if old is not None and old.state == HELD and new is not None and new.state == PREVENTED:
        return Outcome.BLOCKED, BLOCKED, f"holds at BASE, blocked at HEAD: {new.reason}"
    return Outcome.SKIPPED, APART, f"{_state(old)} at BASE; HEAD cannot be compared ({_why(new)})"


def _is_silent(law: Law | None) -> bool:
    return law is None or law.state in (NOT_JUDGED, PREVENTED)


def _state(law: Law | None) -> str:
    return "has no such law" if law is None else law.state


def _why(law: Law | None) -> str:
    return "it has no such law" if law is None else f"{law.state}: {law.reason}"
