"""Combines the results of a relation's laws into one verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.expected import OF_PARTS, Expected, is_named
from seatrial.relations.law import (
    MAX_NAMED,
    Law,
    Measure,
    Misfit,
    MissingDependency,
    NotExercised,
    Relation,
    Violation,
)
from seatrial.relations.raised import place_of
from seatrial.verdict import Outcome, Verdict
from seatrial.words import counted


@dataclass(frozen=True, kw_only=True)
class LawResult:
    """Result of one law: measures that held, violations that are declared, and at most one of the other four."""

    law: Law
    measures: tuple[Measure, ...] = ()
    known: tuple[Violation, ...] = ()
    """What is declared to be broken, of the whole law or of parts of it."""
    judged_parts: tuple[str, ...] = ()
    """Parts that were judged with every seed, whether they hold or not."""
    violation: Violation | None = None
    """What is broken and not declared."""
    idle: NotExercised | None = None
    missing: MissingDependency | None = None
    misfit: Misfit | None = None

    @property
    def num_cases(self) -> int:
        """Number of cases judged."""
        broken = (*self.known, *([self.violation] if self.violation else []))
        return len(self.measures) + len({one.seed for one in broken})

    @property
    def held(self) -> bool:
        """Whether the law was exercised and held."""
        return bool(self.measures) and not (self.known or self.violation or self.missing or self.misfit)

    def reasons(self, expected: Expected) -> dict[str, list[str]]:
        """Return the parts that are broken as declared, by the reason."""
        whole = expected.reason(self.law.name)
        found: dict[str, list[str]] = {}
        for one in self.known:
            parts = one.measure.broken_parts if one.measure is not None else []
            if whole is not None:
                found.setdefault(whole, []).extend(parts)
                continue
            for part in parts:
                found.setdefault(str(expected.reason(self.law.name, part)), []).append(part)
        return {reason: list(dict.fromkeys(parts)) for reason, parts in found.items()}


def divided(found: Violation, expected: Expected) -> tuple[Violation | None, Violation | None]:
    """Return of a violation what is declared, and what is not."""
    name, measure = found.law.name, found.measure
    if expected.reason(name) is not None:
        return found, None
    known = [] if measure is None else [part for part in measure.broken_parts if expected.reason(name, part)]
    if measure is None or not known:
        return None, found
    broken = {part: measure.parts[part] for part in measure.broken_parts}
    declared, others = (
        {part: one for part, one in broken.items() if (part in known) == is_known}
        for is_known in (True, False)
    )
    return (
        replace(found, measure=Measure.of_parts(declared)),
        replace(found, measure=Measure.of_parts(others)) if others else None,
    )


def conclude(
    relation: Relation,
    results: Sequence[LawResult],
    expected: Expected,
    facts: Mapping[str, Any],
    diagnose: Callable[[], str | None] = lambda: None,
) -> Verdict:
    """Return the verdict of a relation; see `engine.run_relation` for the order of the outcomes.

    Args:
        relation: the relation.
        results: of its laws.
        expected: violations that are declared.
        facts: what the stack declares.
        diagnose: returns the cause of broken laws, if it is known; called only if one is broken.
    """
    fixed = _fixed(relation, results, expected)
    notes = _notes(results, expected, facts)
    if expected.may_hold:
        notes = [
            *notes,
            *(f"{_law_named(key)} holds, and is declared broken ({reason})" for key, reason in fixed.items()),
        ]
    details = {
        "laws_fixed": list(fixed),
        "laws": sorted(result.law.name for result in results if result.held),
        "laws_not_exercised": {result.law.name: result.idle.reason for result in results if result.idle},
        "expected_failures": {
            result.law.name: "; ".join(result.reasons(expected)) for result in results if result.known
        },
        "parts": _broken_parts(results, expected),
        "facts": dict(facts),
        "raises": _grouped(
            (f"{type(one.raised).__name__} at {place_of(one.raised)}", one.sentence(), one.law.name)
            for one in _unexpected(results)
            if one.raised is not None
        ),
        "misfits": _grouped(
            (one.misfit.reason, one.misfit.reason, one.law.name) for one in results if one.misfit
        ),
    }
    return (
        _failed(relation, results, {} if expected.may_hold else fixed, notes, details, diagnose)
        or _blocked(relation, results, notes, details)
        or _not_failed(relation, results, notes, details)
    )


def _grouped(exceptions: Iterable[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return each exception once, with the first sentence about it and the laws that it was raised for.

    Args:
        exceptions: what makes two of them one, the sentence, and the law.
    """
    found: dict[str, dict[str, Any]] = {}
    for same, sentence, law in exceptions:
        found.setdefault(same, {"same": same, "sentence": sentence, "laws": []})["laws"].append(law)
    return list(found.values())


def report_once(verdict: Verdict, reported: dict[str, str]) -> Verdict:
    """Return the verdict; Skipped if its only cause are exceptions that another relation has reported.

    Args:
        verdict: of a relation on an adapter.
        reported: by exception, the verdict that reported it; of the same adapter. New ones are added.
    """
    raised = [*verdict.details.get("raises", ()), *verdict.details.get("misfits", ())]
    known = [reported[one["same"]] for one in raised if one["same"] in reported]
    reported.update((one["same"], verdict.name) for one in raised if one["same"] not in reported)
    nothing_else = not verdict.details.get("laws_broken") and not verdict.details.get("laws_fixed")
    if not raised or len(known) < len(raised) or not nothing_else or verdict.outcome is Outcome.SKIPPED:
        return verdict
    kinds = "raises" if verdict.details["raises"] else "does not fit this release"
    return replace(
        verdict,
        outcome=Outcome.SKIPPED,
        reason=f"{kinds} as reported for {known[0]}, in {counted(sum(len(one['laws']) for one in raised), 'law')}",
        value=None,
        bound=None,
    )


def _broken_parts(results: Sequence[LawResult], expected: Expected) -> dict[str, dict[str, list[str]]]:
    """Return for each law of parts that is broken which of them are, as declared and otherwise."""
    found = {}
    for result in results:
        declared = [part for parts in result.reasons(expected).values() for part in parts]
        measure = result.violation.measure if result.violation else None
        broken = measure.broken_parts if measure is not None else []
        if declared or broken:
            found[result.law.name] = {"expected": declared, "broken": broken}
    return found


def _fixed(relation: Relation, results: Sequence[LawResult], expected: Expected) -> dict[str, str]:
    """Return the expected failures that no longer occur: reasons by the keys of `expected_failures`."""
    fixed = {
        relation.key(result.law): expected.laws[result.law.name]
        for result in results
        if result.held and result.law.name in expected.laws
    }
    for result in results:
        known = [part for one in result.known if one.measure for part in one.measure.broken_parts]
        for names, reason in expected.parts.get(result.law.name, {}).items():
            own = [part for part in result.judged_parts if is_named(part, names)]
            if own and not set(own) & set(known) and result.law.name not in expected.laws:
                fixed[relation.key(result.law) + OF_PARTS + names] = reason
    exercised = [result for result in results if result.num_cases]
    if expected.whole is not None and exercised and not any(one.violation or one.known for one in exercised):
        fixed[relation.id] = expected.whole
    return fixed


def _law_named(key: str) -> str:
    """Return how a message calls a key of `expected_failures`."""
    relation, separator, law = key.partition("/")
    if not separator:
        return relation
    name, _, parts = law.partition(OF_PARTS)
    return f"law {name!r}, {parts}" if parts else f"law {name!r}"


def _unexpected(results: Sequence[LawResult]) -> list[Violation]:
    return [result.violation for result in results if result.violation]


def _failed(
    relation: Relation,
    results: Sequence[LawResult],
    fixed: Mapping[str, str],
    notes: Sequence[str],
    details: dict[str, Any],
    diagnose: Callable[[], str | None],
) -> Verdict | None:
    unexpected = _unexpected(results)
    violations = [violation for violation in unexpected if violation.raised is None]
    if not unexpected and not fixed:
        return None
    cause = diagnose() if violations else None
    sentences = [
        violation.sentence(cause if cause is None or not place else "")
        for place, violation in enumerate(violations)
    ]
    sentences += [
        one["sentence"] + (f", and in {counted(more, 'other law')}" if (more := len(one["laws"]) - 1) else "")
        for one in details["raises"]
    ]
    sentences += [
        f"{_law_named(key)} is in expected_failures but holds: remove the entry ({reason})"
        for key, reason in fixed.items()
    ]
    first = next(iter([*violations, *unexpected]), None)
    measure = first.measure if first else None
    broken: dict[str, Any] = {
        "laws_broken": [violation.law.name for violation in violations],
        "known_bugs_like_this": list(relation.catalogue) if violations else [],
    }
    if cause:
        broken["cause"] = cause
    smallest = {"seed": first.seed, "smallest_case": dict(first.case.describe())} if first else {}
    return Verdict(
        name=_name(relation),
        outcome=Outcome.FAIL,
        reason=" | ".join([*sentences, *notes]),
        value=measure.error if measure else None,
        bound=f"<= {measure.bound:.3g}" if measure else None,
        num_samples=_num_cases(results),
        details={**details, **broken, **smallest},
    )


def _blocked(
    relation: Relation, results: Sequence[LawResult], notes: Sequence[str], details: dict[str, Any]
) -> Verdict | None:
    packages = sorted({result.missing.package for result in results if result.missing})
    reasons = [
        f"the adapter's call does not fit this release: {one['sentence']}" for one in details["misfits"]
    ]
    if packages:
        reasons.append(f"the stack needs {', '.join(packages)}, which is not installed in this environment")
    if not reasons:
        return None
    return Verdict(
        name=_name(relation),
        outcome=Outcome.BLOCKED,
        reason="; ".join([*reasons, *notes]),
        num_samples=_num_cases(results),
        details={**details, "missing_packages": packages},
    )


def _not_failed(
    relation: Relation, results: Sequence[LawResult], notes: Sequence[str], details: dict[str, Any]
) -> Verdict:
    held = [result for result in results if result.held]
    undeclared = [result for result in results if result.idle and not result.idle.declared]
    if not held:
        broken = any(result.known for result in results)
        reason = (
            "every law that could be exercised is broken as expected"
            if broken
            else "no law of this relation could be exercised"
        )
        return Verdict(
            name=_name(relation),
            outcome=Outcome.SKIPPED,
            reason="; ".join([reason, *notes]),
            details=details,
        )
    cases = sum(len(result.measures) for result in held)
    worst = max((measure.error, measure.bound) for result in held for measure in result.measures)
    return Verdict(
        name=_name(relation),
        outcome=Outcome.SKIPPED if undeclared else Outcome.PASS,
        reason="; ".join([f"{counted(len(held), 'law')} held on {counted(cases, 'case')}", *notes]),
        value=worst[0],
        bound=f"<= {worst[1]:.3g}",
        num_samples=cases,
        details=details,
    )


def _notes(results: Sequence[LawResult], expected: Expected, facts: Mapping[str, Any]) -> list[str]:
    """Return the notes on the outcome: laws not exercised, parts left out, expected failures, declarations."""
    notes = [
        f"law {result.law.name!r} not exercised ({'declared: ' if result.idle.declared else ''}{result.idle.reason})"
        for result in results
        if result.idle
    ]
    for result in results:
        left_out = list(dict.fromkeys(part for measure in result.measures for part in measure.left_out))
        if left_out:
            more = f" and {len(left_out) - MAX_NAMED} more" if len(left_out) > MAX_NAMED else ""
            named = "; ".join(left_out[:MAX_NAMED])
            notes.append(f"law {result.law.name!r} left out what the stack does not serve ({named}{more})")
    notes += [
        f"law {result.law.name!r} broken as expected{_named(parts)} ({reason})"
        for result in results
        for reason, parts in result.reasons(expected).items()
    ]
    notes += [
        f"law {one.law.name!r}: a known bug: {expected.bugs[one.law.name]}"
        for one in _unexpected(results)
        if one.law.name in expected.bugs
    ]
    if facts:
        notes.append("the stack declares " + ", ".join(f"{name}={value!r}" for name, value in facts.items()))
    return notes


def _named(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - MAX_NAMED} more" if len(parts) > MAX_NAMED else ""
    return f" in {', '.join(parts[:MAX_NAMED])}{more}" if parts else ""


def _num_cases(results: Sequence[LawResult]) -> int:
    return sum(result.num_cases for result in results)


def _name(relation: Relation) -> str:
    return f"{relation.id} {relation.name}"
