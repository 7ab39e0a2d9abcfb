"""Relations and their laws, and measures of how far a stack is from satisfying a law.

A law is a function of a stack and a case that returns a `Measure`. It is registered with its relation by a decorator:

    LOSS = Relation(id="R3.loss", name="loss-ignores-padding", component="policy_loss", ..., cases=rollout_for)

    @LOSS.law("more padding", suspects="padded length as the divisor")
    def more_padding(stack, case):
        return Measure(error=..., bound=1e-10, what="loss with padding against the loss without")

Several decorators on one function register one law each; laws keep the order in which they are written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts import COMPONENTS
from seatrial.relations.raised import error_line, place_of
from seatrial.relations.worst import Worst, is_worse


@dataclass(frozen=True)
class NoCase(Case):
    """Takes the place of the case when the stack raised before there was one."""


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How far a stack is from satisfying a law: it holds when `error <= bound`, so NaN never holds."""

    error: float
    bound: float
    what: str
    """What was compared, and where the largest difference is."""
    left_out: Sequence[str] = ()
    """Parts of the case that the stack does not serve, each with the reason; the others were compared."""
    parts: Mapping[str, Measure] = field(default_factory=dict)
    """Measures of what the law judges one by one, such as logged scalars: each is declared to be broken by itself."""

    @classmethod
    def count(cls, wrong: Sequence[object], what: str, left_out: Sequence[str] = ()) -> Measure:
        """Return a measure that holds if nothing is wrong, and that names up to `MAX_NAMED` wrong items."""
        named = "; ".join(map(str, wrong[:MAX_NAMED])) or "none"
        return cls(error=len(wrong), bound=0, what=f"{what} ({named})", left_out=left_out)

    @classmethod
    def largest(cls, found: Iterable[tuple[float, str]], bound: float, what: str) -> Measure:
        """Return the measure of the largest of these (error, place); infinite if nothing was compared."""
        worst, compared = Worst(), False
        for error, place in found:
            worst.add(error, place)
            compared = True
        if not compared:
            worst = Worst(math.inf, "nothing to compare")
        return cls(error=worst.error, bound=bound, what=f"{what}, at {worst.place}")

    @classmethod
    def of_parts(cls, parts: Mapping[str, Measure]) -> Measure:
        """Return the measure of the worst part, infinite if there is none; see `parts`."""
        worst = next(iter(parts.values()), cls(error=math.inf, bound=0, what="nothing to compare"))
        for one in parts.values():
            if is_worse(one.error, worst.error):
                worst = one
        return replace(worst, parts=dict(parts))

    @classmethod
    def largest_of_each(cls, found: Iterable[tuple[str, float, str]], bound: float, what: str) -> Measure:
        """Return the measure of these (part, error, place), each part by itself."""
        places: dict[str, list[tuple[float, str]]] = {}
        for part, error, place in found:
            places.setdefault(part, []).append((error, place))
        return cls.of_parts({part: cls.largest(own, bound, what) for part, own in places.items()})

    @classmethod
    def count_of_each(cls, wrong: Mapping[str, Sequence[object]], what: str) -> Measure:
        """Return the measure of wrong items by part, none of a part that is right."""
        return cls.of_parts(
            {part: cls.count(own, what) for part, own in wrong.items()} or {what: cls.count([], what)}
        )

    @property
    def broken_parts(self) -> list[str]:
        """The parts that do not hold, in their order."""
        return [part for part, one in self.parts.items() if not one.holds]

    @property
    def holds(self) -> bool:
        """Whether the law holds."""
        return self.error <= self.bound


def nothing_excluded(stack: Any) -> None:
    """Return None: the stack accepts the law's input."""
    return


MakeCase = Callable[[Any, int, bool], Any]
"""(stack, seed, tidy) -> case. Tidy cases have equal lengths and no traps; they show what only the traps find."""
MeasureCase = Callable[..., "Measure | None"]
"""(stack, case, **arguments of the decorator) -> measure, or None when the property did not apply to this case."""
Excluded = Callable[[Any], "str | None"]
"""(stack) -> the declaration by which the stack excludes a law's input, such as `masked_rows=False`; or None."""
F = TypeVar("F", bound=MeasureCase)
MAX_NAMED = 3
"""How many wrong items a message names."""


@dataclass(frozen=True, kw_only=True)
class Law:
    """One property of a relation."""

    name: str
    make: MakeCase
    measure: MeasureCase
    suspects: str
    """The usual causes of a violation."""
    excluded: Excluded = nothing_excluded
    seeded: bool = True
    """Whether other seeds make other cases; a law that is not seeded runs with the first seed only."""
    thorough: bool = False
    """Whether the law runs only if a thorough run is requested, because it takes long."""
    position: int = 0
    """Position among the decorators of its relation."""


@dataclass(kw_only=True, eq=False)
class Relation:
    """A law of RL post-training, or a family of them, about one component."""

    id: str
    name: str
    component: str
    """Key of `contracts.COMPONENTS`."""
    uses: Sequence[str] = ()
    """Other components that its laws call if the stack has them; a fault in one of them breaks the relation too."""
    statement: str
    """The relation in one sentence."""
    catalogue: Sequence[str] = ()
    """Ids of known bugs that break it (SBnnn); may be given as one string, separated by spaces."""
    cost: str
    cases: MakeCase | None = None
    """Default for laws without `cases`."""
    excluded: Excluded = nothing_excluded
    """Default for laws without `excluded`."""
    seeded: bool = True
    """Default for laws without `seeded`."""
    thorough: bool = False
    """Default for laws without `thorough`."""
    laws: Sequence[Law] = ()
    """In the order in which their decorators are written."""
    _num_decorators: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError for an unknown component or two laws with the same name."""
        if self.component not in COMPONENTS:
            raise ValueError(f"relation {self.id}: no component {self.component!r} in contracts.COMPONENTS")
        self.catalogue = tuple(self.catalogue.split() if isinstance(self.catalogue, str) else self.catalogue)
        self.laws = tuple(self.laws)
        self._refuse_equal_names()

    def law(
        self,
        name: str,
        suspects: str,
        *,
        cases: MakeCase | None = None,
        excluded: Excluded | None = None,
        seeded: bool | None = None,
        thorough: bool | None = None,
        **arguments: Any,
    ) -> Callable[[F], F]:
        """Return a decorator that makes a law of a function `(stack, case, **arguments) -> Measure | None`.

        Args:
            name: unique in this relation.
            suspects: the usual causes of a violation.
            cases: makes the law's case; default: the relation's.
            excluded: returns the declaration with which a stack excludes the input; default: the relation's.
            seeded: whether other seeds make other cases; default: the relation's.
            thorough: whether it runs only if a thorough run is requested; default: the relation's.
            **arguments: passed to the function after stack and case.

        Raises:
            ValueError: neither the law nor the relation has cases, or two laws have the same name.
        """
        make = cases or self.cases
        if make is None:
            raise ValueError(f"relation {self.id}: law {name!r} has no cases, and neither does its relation")
        # Stacked decorators are evaluated from the top and applied from the bottom, so the position is set here.
        self._num_decorators += 1
        position = self._num_decorators

        def register(measure: F) -> F:
            law = Law(
                name=name,
                make=make,
                measure=partial(measure, **arguments) if arguments else measure,
                suspects=suspects,
                excluded=excluded or self.excluded,
                seeded=self.seeded if seeded is None else seeded,
                thorough=self.thorough if thorough is None else thorough,
                position=position,
            )
            self.laws = sorted((*self.laws, law), key=lambda one: one.position)
            self._refuse_equal_names()
            return measure

        return register

    def _refuse_equal_names(self) -> None:
        names = [law.name for law in self.laws]
        if len(set(names)) != len(names):
            raise ValueError(f"relation {self.id}: two laws have the same name")

    def chosen_laws(self, *, thorough: bool) -> list[Law]:
        """Return the laws of a thorough run, or of an ordinary one."""
        return [law for law in self.laws if thorough or not law.thorough]

    def key(self, law: Law) -> str:
        """Return the id of one law, as `expected_failures` names it."""
        return f"{self.id}/{law.name}"


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A law that a stack broke, or during which it crashed."""

    law: Law
    seed: int
    case: Case
    measure: Measure | None
    raised: BaseException | None = None
    """The crash; it says nothing about the law."""

    def sentence(self, cause: str | None = None) -> str:
        """Return which law is broken, by how much, and the cause; of a crash only what was raised and where.

        Args:
            cause: what a diagnosis found; empty to name none, None for the usual causes.
        """
        if self.raised is not None:
            where = f"at {place_of(self.raised)} (law {self.law.name!r}, seed {self.seed})"
            return f"raises {error_line(self.raised)}, {where}"
        assert self.measure is not None
        broke = f"{self.measure.what}: {self.measure.error:.3g}, allowed {self.measure.bound:.3g}"
        if len(parts := self.measure.broken_parts) > 1:
            more = f" and {len(parts) - MAX_NAMED} more" if len(parts) > MAX_NAMED else ""
            broke += f"; broken are {', '.join(parts[:MAX_NAMED])}{more}"
        why = f". Usually: {self.law.suspects}" if cause is None else f". Cause: {cause}" if cause else ""
        return f"law {self.law.name!r} broken (seed {self.seed}): {broke}{why}"


@dataclass(frozen=True, kw_only=True)
class NotExercised:
    """A law that did not apply to any case."""

    law: Law
    reason: str
    declared: bool = False
    """Whether the stack declares that it excludes the input."""


@dataclass(frozen=True, kw_only=True)
class MissingDependency:
    """A law that could not run because a package that the stack needs is not installed."""

    law: Law
    package: str


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A law that could not run because a call of the adapter does not fit the installed release."""

    law: Law
    reason: str
