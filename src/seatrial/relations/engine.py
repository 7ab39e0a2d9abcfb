"""Runs a relation on a stack: made cases in, one verdict out, with the smallest case that breaks it.

A relation is a set of laws. A law makes a case from a seed, measures how far the stack is from obeying, and
names what usually causes a violation. A law that could not be exercised counts for nothing: never Pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from seatrial.relations.contracts import COMPONENTS
from seatrial.verdict import Outcome, Verdict

DEFAULT_SEEDS = (0, 1, 2)
MAX_SHRINK_CALLS = 200


class Case(Protocol):
    """A made input."""

    def smaller(self) -> Iterator[Any]:
        """Yield simpler cases of the same kind, simplest first."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values, so that a person can replay it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How far a stack is from obeying a law: it holds when `error <= bound`, so NaN never holds."""

    error: float
    bound: float
    what: str
    """What was compared, and where the largest difference stands."""

    @property
    def holds(self) -> bool:
        """Whether the law holds."""
        return self.error <= self.bound


@dataclass(frozen=True, kw_only=True)
class Law:
    """One property of a relation."""

    name: str
    make: Callable[[Any, int, bool], Case]
    """(stack, seed, tidy) -> case. Tidy cases have equal lengths and no traps: they exist to show what the
    adversarial ones find beyond them."""
    measure: Callable[[Any, Any], Measure | None]
    """(stack, case) -> measure, or None when the property did not apply to this case."""
    suspects: str
    """What a violation of this law usually is."""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A law of RL post-training, or a family of them, about one component."""

    id: str
    name: str
    component: str
    """Key of `contracts.COMPONENTS`."""
    statement: str
    """The relation in one sentence."""
    catalogue: tuple[str, ...]
    """Ids of known bugs that break it (SBnnn)."""
    cost: str
    laws: tuple[Law, ...]
    tags: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse a relation about an unknown component."""
        if self.component not in COMPONENTS:
            raise ValueError(f"relation {self.id}: no component {self.component!r} in contracts.COMPONENTS")


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A law that a stack broke."""

    law: Law
    seed: int
    case: Case
    measure: Measure | None
    raised: BaseException | None = None

    def sentence(self) -> str:
        """Return what was broken, by how much, and what it usually is."""
        if self.raised is not None:
            broke = f"raised {type(self.raised).__name__}: {self.raised}"
        else:
            assert self.measure is not None
            broke = f"{self.measure.what}: {self.measure.error:.3g}, allowed {self.measure.bound:.3g}"
        return f"law {self.law.name!r} broken (seed {self.seed}): {broke}. Usually: {self.law.suspects}"


def run_relation(
    relation: Relation, stack: Any, *, seeds: Sequence[int] = DEFAULT_SEEDS, tidy: bool = False
) -> Verdict:
    """Exercise every law of a relation with every seed and conclude."""
    if not isinstance(stack, COMPONENTS[relation.component]):
        return Verdict(
            name=f"{relation.id} {relation.name}",
            outcome=Outcome.NOT_REQUESTED,
            reason=f"the stack offers no {relation.component}",
        )
    exercised, laws_run, violations, worst = 0, set(), [], (-1.0, math.inf)
    for law in relation.laws:
        for seed in seeds:
            outcome = _exercise(law, stack, seed, tidy)
            if outcome is None:
                continue
            exercised += 1
            laws_run.add(law.name)
            if isinstance(outcome, Violation):
                violations.append(_shrink(outcome, stack))
                break
            worst = max(worst, (outcome.error, outcome.bound))
    return _conclude(relation, exercised, sorted(laws_run), violations, worst)


def first_violation(
    relation: Relation, stack: Any, *, seeds: Sequence[int] = DEFAULT_SEEDS, tidy: bool = False
) -> Violation | None:
    """Return the first violation met, not shrunk, or None: for whoever asks many times whether a relation fails.

    None is no Pass: the relation may not have been exercised, or not be about a component of the stack.
    """
    if not isinstance(stack, COMPONENTS[relation.component]):
        return None
    for law in relation.laws:
        for seed in seeds:
            outcome = _exercise(law, stack, seed, tidy)
            if isinstance(outcome, Violation):
                return outcome
    return None


def _exercise(law: Law, stack: Any, seed: int, tidy: bool) -> Measure | Violation | None:
    try:
        case = law.make(stack, seed, tidy)
    except NotImplementedError:
        return None
    return _measure(law, stack, seed, case)


def _measure(law: Law, stack: Any, seed: int, case: Case) -> Measure | Violation | None:
    try:
        measure = law.measure(stack, case)
    except NotImplementedError:
        return None
    except Exception as error:  # noqa: BLE001  whatever a stack raises on a lawful input is the finding
        return Violation(law=law, seed=seed, case=case, measure=None, raised=error)
    if measure is None or measure.holds:
        return measure
    return Violation(law=law, seed=seed, case=case, measure=measure)


def _shrink(violation: Violation, stack: Any) -> Violation:
    """Return the violation on the simplest case that still breaks the same law."""
    calls, smallest, progress = 0, violation, True
    while progress and calls < MAX_SHRINK_CALLS:
        progress = False
        for case in smallest.case.smaller():
            calls += 1
            found = _measure(violation.law, stack, violation.seed, case)
            same_kind = isinstance(found, Violation) and (found.raised is None) == (violation.raised is None)
            if same_kind:
                smallest, progress = found, True  # type: ignore[assignment]
                break
            if calls >= MAX_SHRINK_CALLS:
                break
    return smallest


def _conclude(
    relation: Relation,
    exercised: int,
    laws_run: Sequence[str],
    violations: Sequence[Violation],
    worst: tuple[float, float],
) -> Verdict:
    name = f"{relation.id} {relation.name}"
    if violations:
        first = violations[0]
        return Verdict(
            name=name,
            outcome=Outcome.FAIL,
            reason=" | ".join(violation.sentence() for violation in violations),
            value=first.measure.error if first.measure else None,
            bound=f"<= {first.measure.bound:.3g}" if first.measure else None,
            num_samples=exercised,
            details={
                "laws_broken": [violation.law.name for violation in violations],
                "seed": first.seed,
                "smallest_case": dict(first.case.describe()),
                "known_bugs_like_this": list(relation.catalogue),
            },
        )
    if not exercised:
        return Verdict(
            name=name, outcome=Outcome.SKIPPED, reason="no law of this relation could be exercised"
        )
    return Verdict(
        name=name,
        outcome=Outcome.PASS,
        reason=f"{len(laws_run)} laws held on {exercised} cases",
        value=worst[0],
        bound=f"<= {worst[1]:.3g}",
        num_samples=exercised,
        details={"laws": list(laws_run), "laws_not_exercised": len(relation.laws) - len(laws_run)},
    )
