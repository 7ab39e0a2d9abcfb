"""Runs a relation on a stack and returns one verdict, with the smallest case that breaks a law.

A law makes a case from a seed, measures how far the stack is from satisfying it, and names what usually causes a
violation. A law that could not be exercised is named and never counts as Pass.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.conclusion import LawResult, conclude, divided
from seatrial.relations.contracts import COMPONENTS
from seatrial.relations.expected import Expected, expected_of
from seatrial.relations.facts import describe_facts
from seatrial.relations.law import (
    Law,
    Measure,
    Misfit,
    MissingDependency,
    NoCase,
    NotExercised,
    Relation,
    Violation,
)
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import misfit_of, refusal_of
from seatrial.relations.runs import sharing_runs
from seatrial.verdict import Outcome, Verdict

DEFAULT_SEEDS = (0, 1, 2)
MAX_SHRINK_CALLS = 200
SHRINK_SECONDS = 20.0
"""Limit for shrinking a violation; a call that has started is completed."""

_INSTALL = re.compile(r"\bpip install ['\"`]?([A-Za-z0-9_-]+)")

_Found = Measure | Violation | NotExercised | MissingDependency | Misfit


def run_relation(
    relation: Relation,
    stack: Any,
    *,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    tidy: bool = False,
    thorough: bool = False,
    adapter_package: str | None = None,
    shrink_seconds: float = SHRINK_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Verdict:
    """Exercise every law of a relation with every seed and conclude.

    Fail if a law is broken that is not in the stack's `expected_failures`, if a law listed there holds (unless the
    stack says `failures_may_hold`), or if the stack crashes; Blocked if a package that the stack needs is missing, or a
    call of the adapter does not fit the installed release; Skipped if a law was not exercised, unless the stack's
    declared facts exclude its input; otherwise Pass.

    Args:
        relation: the laws.
        stack: the adapter.
        seeds: of the cases.
        tidy: whether cases have no traps.
        thorough: whether to run the laws that take long as well.
        adapter_package: where the adapter's code is, if it serves several releases of a stack that is installed apart.
            An exception with which the stack refuses an input, or that a call from this package raises, is then no
            crash.
        shrink_seconds: limit for finding a smaller case.
        clock: seconds.
    """
    if not isinstance(stack, COMPONENTS[relation.component]):
        return Verdict(
            name=f"{relation.id} {relation.name}",
            outcome=Outcome.NOT_REQUESTED,
            reason=f"the stack offers no {relation.component}",
        )
    expected = expected_of(relation, stack)
    with sharing_runs():
        results = [
            _run_law(
                law, _Judged(stack, adapter_package), seeds, tidy, _Shrinker(shrink_seconds, clock), expected
            )
            for law in relation.chosen_laws(thorough=thorough)
        ]
    return conclude(relation, results, expected, describe_facts(stack), partial(_cause_of, relation, stack))


def _cause_of(relation: Relation, stack: Any) -> str | None:
    """Return the cause of a broken relation; see `diagnosis`, which needs torch."""
    from seatrial.relations.diagnosis import cause_of

    offered = [name for name in (relation.component, *relation.uses) if isinstance(stack, COMPONENTS[name])]
    return next((cause for name in offered if (cause := cause_of(name, stack)) is not None), None)


def first_violation(
    relation: Relation, stack: Any, *, seeds: Sequence[int] = DEFAULT_SEEDS, tidy: bool = False
) -> Violation | None:
    """Return the first violation, without shrinking its case, or None; for callers that run a relation many times.

    None is not Pass: the relation may not have been exercised, or the stack may not offer its component.
    """
    if not isinstance(stack, COMPONENTS[relation.component]):
        return None
    with sharing_runs():
        for law in relation.chosen_laws(thorough=False):
            if law.excluded(stack):
                continue
            for seed in _seeds_of(law, seeds):
                found = _exercise(law, _Judged(stack), seed, tidy)
                if isinstance(found, Violation):
                    return found
    return None


@dataclass(frozen=True)
class _Judged:
    """A stack, and where its adapter's code is; see `run_relation`."""

    stack: Any
    adapter_package: str | None = None


def _seeds_of(law: Law, seeds: Sequence[int]) -> Sequence[int]:
    return seeds if law.seeded else seeds[:1]


def _run_law(
    law: Law,
    judged: _Judged,
    seeds: Sequence[int],
    tidy: bool,
    shrinker: _Shrinker,
    expected: Expected,
) -> LawResult:
    """Run a law with every seed; stop at the first violation."""
    declaration = law.excluded(judged.stack)
    if declaration:
        return LawResult(law=law, idle=NotExercised(law=law, reason=declaration, declared=True))
    measures: list[Measure] = []
    known: list[Violation] = []
    judged_parts: dict[str, None] = {}
    idle = NotExercised(law=law, reason="it did not apply to the cases of these seeds")
    for seed in _seeds_of(law, seeds):
        found = _exercise(law, judged, seed, tidy)
        measured = found.measure if isinstance(found, Violation) else found
        if isinstance(measured, Measure):
            judged_parts |= dict.fromkeys(measured.parts)
        if isinstance(found, Measure):
            measures.append(found)
        elif isinstance(found, NotExercised):
            idle = found
        elif isinstance(found, MissingDependency):
            return LawResult(law=law, measures=tuple(measures), missing=found)
        elif isinstance(found, Misfit):
            return LawResult(law=law, measures=tuple(measures), misfit=found)
        else:
            declared, other = divided(found, expected)
            known += [declared] if declared else []
            if other is not None:
                other = shrinker.shrink(other, judged, expected)
                return LawResult(law=law, measures=tuple(measures), violation=other, known=tuple(known))
            if expected.reason(law.name) is not None:
                break  # a declaration of the whole law is of all its cases
    return LawResult(
        law=law,
        measures=tuple(measures),
        known=tuple(known),
        judged_parts=tuple(judged_parts),
        idle=None if measures or known else idle,
    )


def _exercise(law: Law, judged: _Judged, seed: int, tidy: bool) -> _Found:
    """Make the law's case for the stack, and measure it."""
    case: Case = NoCase()
    try:
        case = law.make(judged.stack, seed, tidy)
    except Exception as error:  # noqa: BLE001  see `_judge_raised`
        return _judge_raised(error, law, judged, seed, case)
    return _measure(law, judged, seed, case)


def _measure(law: Law, judged: _Judged, seed: int, case: Case) -> _Found:
    try:
        measure = law.measure(judged.stack, case)
    except Exception as error:  # noqa: BLE001  see `_judge_raised`
        return _judge_raised(error, law, judged, seed, case)
    if measure is None:
        return NotExercised(law=law, reason="it did not apply to the cases of these seeds")
    return measure if measure.holds else Violation(law=law, seed=seed, case=case, measure=measure)


def _judge_raised(error: Exception, law: Law, judged: _Judged, seed: int, case: Case) -> _Found:
    """Return what an exception is: a refusal, a missing package, a call that does not fit, or a crash."""
    if isinstance(error, NotServed):
        return NotExercised(law=law, reason=str(error) or "not served")
    if judged.adapter_package is not None:
        if (words := refusal_of(error)) is not None:
            return NotExercised(law=law, reason=f"refused: {words}")
        if (misfit := misfit_of(error, judged.adapter_package)) is not None:
            return Misfit(law=law, reason=misfit)
    missing = _missing_package(error, judged.stack) if isinstance(error, ImportError) else None
    if missing is not None:
        return MissingDependency(law=law, package=missing)
    return Violation(law=law, seed=seed, case=case, measure=None, raised=error)


def _missing_package(error: ImportError, stack: Any) -> str | None:
    """Return the third-party package that an import did not find; None if the stack's own modules are broken."""
    package = (error.name or _asked_for(error)).partition(".")[0]
    own = (stack if isinstance(stack, type) else type(stack)).__module__.partition(".")[0]
    if isinstance(error, PackageNotFoundError):
        return f"metadata of {error.name}"  # it may well be importable, from a source tree
    return package if package and package not in (own, "seatrial") else None


def _asked_for(error: ImportError) -> str:
    """Return the package that an error without a name says to install; empty if there is none, or it is installed."""
    found = _INSTALL.search(str(error))
    return found[1] if found and find_spec(found[1].replace("-", "_")) is None else ""


@dataclass(frozen=True)
class _Shrinker:
    """Searches for simpler cases within a limit of time and calls."""

    seconds: float
    clock: Callable[[], float]

    def shrink(self, violation: Violation, judged: _Judged, expected: Expected) -> Violation:
        """Return the violation on the simplest case found that still breaks the same law in the same way.

        What is expected to be broken does not count.
        """
        calls, smallest, progress, end = 0, violation, True, self.clock() + self.seconds
        while progress:
            progress = False
            for case in smallest.case.smaller():
                if calls >= MAX_SHRINK_CALLS or self.clock() >= end:
                    return smallest
                calls += 1
                found: _Found | None = _measure(violation.law, judged, violation.seed, case)
                found = divided(found, expected)[1] if isinstance(found, Violation) else None
                if found is not None and (found.raised is None) == (violation.raised is None):
                    smallest, progress = found, True
                    break
        return smallest
