"""What a relation is made of: laws, the cases they make, and how far a stack is from obeying."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from seatrial.relations.contracts import COMPONENTS


class Case(Protocol):
    """A made input."""

    def smaller(self) -> Iterator[Any]:
        """Yield simpler cases of the same kind, simplest first."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values, so that a person can replay it."""
        ...


class NoCase:
    """Stands where the case would, when the stack raised before there was one."""

    def smaller(self) -> Iterator[Any]:
        """Nothing is smaller."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return nothing: there was no input."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How far a stack is from obeying a law: it holds when `error <= bound`, so NaN never holds."""

    error: float
    bound: float
    what: str
    """What was compared, and where the largest difference stands."""

    @classmethod
    def of_errors(cls, errors: Sequence[str], what: str) -> Measure:
        """Return one that holds where there are none; it tells the first of them."""
        return cls(error=float(len(errors)), bound=0, what=f"{what} ({errors[0] if errors else 'none'})")

    @property
    def holds(self) -> bool:
        """Whether the law holds."""
        return self.error <= self.bound


def _nothing_excluded(stack: Any) -> None:
    return None


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
    excluded: Callable[[Any], str | None] = _nothing_excluded
    """(stack) -> the declaration by which the stack excludes this law's input, such as `masked_rows=False`; or None."""
    seeded: bool = True
    """Whether other seeds make other cases; a law that is not is exercised with the first seed alone."""


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
        """Refuse a relation about an unknown component, and two laws of one name."""
        if self.component not in COMPONENTS:
            raise ValueError(f"relation {self.id}: no component {self.component!r} in contracts.COMPONENTS")
        names = [law.name for law in self.laws]
        if len(set(names)) != len(names):
            raise ValueError(f"relation {self.id}: two laws have one name")

    def key(self, law: Law) -> str:
        """Return the id of one law, as `expected_failures` names it."""
        return f"{self.id}/{law.name}"


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


@dataclass(frozen=True, kw_only=True)
class NotExercised:
    """A law that met nothing to judge."""

    law: Law
    reason: str
    declared: bool = False
    """Whether the stack declares that it excludes the input by design."""


@dataclass(frozen=True, kw_only=True)
class MissingDependency:
    """A law that could not be judged, because a package that the stack needs is not installed."""

    law: Law
    package: str
