"""Expected failures: laws that an adapter declares broken, each with a reason.

The attribute `expected_failures` of an adapter maps `RELATION/law name` (or a relation's id, for all its laws at once)
to the reason. A law that judges several parts, such as logged scalars, may be expected to be broken in some of them:
`RELATION/law name::part, part`, where `*` is any text; a violation in another part is not expected. A relation
fails if a law is broken that is not expected, or if an expected failure does not occur: what is fixed must not stay
excused. An adapter with `failures_may_hold = True`, which serves releases that its author has not seen, only reports
the latter. Its attribute `known_bugs` explains laws that fail all the same: `RELATION/law` and the bug.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from seatrial.errors import UsageError
from seatrial.relations.law import Relation

OF_PARTS = "::"
"""Between the name of a law and those of its parts."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Expected failures of a stack in one relation."""

    laws: Mapping[str, str] = field(default_factory=dict)
    """Reason by law name."""
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Reasons of parts, by law name and by what is declared: names of parts, separated by commas."""
    whole: str | None = None
    """Reason for the whole relation: at least one of its laws is broken."""
    bugs: Mapping[str, str] = field(default_factory=dict)
    """Known bugs by the name of a law that they break and that fails all the same."""
    may_hold: bool = False
    """Whether an expected failure that does not occur is reported, and does not fail the relation."""

    def reason(self, law: str, part: str | None = None) -> str | None:
        """Return why a law is expected to be broken, or a part of it, or None."""
        if part is not None and law not in self.laws:
            for names, reason in self.parts.get(law, {}).items():
                if is_named(part, names):
                    return reason
        return self.laws.get(law, self.whole)


def is_named(part: str, names: str) -> bool:
    """Return whether a part is among those of a declaration."""
    return any(fnmatchcase(part, name) for name in names.split(", "))


def expected_of(relation: Relation, stack: Any) -> Expected:
    """Return a stack's expected failures in a relation."""
    declared: Mapping[str, str] = getattr(stack, "expected_failures", {})
    keys = {relation.key(law): law.name for law in relation.laws}
    bugs: Mapping[str, str] = getattr(stack, "known_bugs", {})
    parts: dict[str, dict[str, str]] = {}
    for key, reason in declared.items():
        law, separator, names = key.partition(OF_PARTS)
        if separator and law in keys:
            parts.setdefault(keys[law], {})[names] = reason
    return Expected(
        laws={name: declared[key] for key, name in keys.items() if key in declared},
        parts=parts,
        whole=declared.get(relation.id),
        bugs={keys[key]: bug for key, bug in bugs.items() if key in keys},
        may_hold=getattr(stack, "failures_may_hold", False),
    )


def check_expected_failures(stack: Any, relations: Iterable[Relation]) -> None:
    """Check the keys of `expected_failures` against the existing relations.

    Raises:
        UsageError: a key names no relation and no law, or a reason is missing.
    """
    declared: Mapping[str, str] = getattr(stack, "expected_failures", {})
    known = {relation.id: relation for relation in relations}
    for key, reason in declared.items():
        relation = known.get(key.partition("/")[0])
        if relation is None:
            raise UsageError(
                f"expected_failures: no relation {key.partition('/')[0]!r}; known: {', '.join(known)}"
            )
        laws = [relation.key(law) for law in relation.laws]
        law, separator, names = key.partition(OF_PARTS)
        if separator and not names:
            raise UsageError(f"expected_failures: {key!r} names no part of the law")
        if "/" in key and law not in laws:
            raise UsageError(f"expected_failures: {relation.id} has no law {key!r}; known: {', '.join(laws)}")
        if not str(reason).strip():
            raise UsageError(f"expected_failures: {key!r} has no reason; state why the stack breaks it")
