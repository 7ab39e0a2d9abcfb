"""The typed nodes of a check: what the grammar builds and the evaluator walks.

Nodes are equal when they mean the same; where they stand in the text (`column`) and how they were written
(`text`) do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

ArithmeticOperator = Literal["+", "-", "*", "/"]
ComparisonOperator = Literal["<", "<=", ">", ">=", "==", "!="]


@dataclass(frozen=True, kw_only=True)
class Node:
    """Where a node was written."""

    column: int = field(default=1, compare=False)
    """Column of its first character, from 1."""
    text: str = field(default="", compare=False)
    """The node as written."""


@dataclass(frozen=True, kw_only=True)
class Number(Node):
    """A literal number; arithmetic of literals is folded into one."""

    value: float


@dataclass(frozen=True, kw_only=True)
class SeriesRef(Node):
    """`data["TAG"]` or `run("NAME")["TAG"]`: a series, or a bare number where the log holds one."""

    tag: str
    run: str | None = None
    """Name of the run, None for the run under judgement."""

    @property
    def label(self) -> str:
        """Return the reference in the form it is written in a check."""
        owner = "data" if self.run is None else f'run("{self.run}")'
        return f'{owner}["{self.tag}"]'


@dataclass(frozen=True, kw_only=True)
class Point(Node):
    """`data["TAG"]["STEP"]`: the value at one step, or of one named key."""

    series: SeriesRef
    key: str


@dataclass(frozen=True, kw_only=True)
class Positions(Node):
    """NeMo RL's positional range `start, end`: points numbered from 1 (0 is the point at step 0), `end` excluded.

    A negative number counts from the end; an `end` of 0 is past the last point.
    """

    start: int
    end: int = 0


@dataclass(frozen=True, kw_only=True)
class Steps(Node):
    """`steps(first, last, every=1)`: every `every`-th step from `first` to `last`, both inclusive."""

    first: int
    last: int
    every: int = 1


@dataclass(frozen=True, kw_only=True)
class Last(Node):
    """`last(count)`: the last `count` logged steps; fewer is not enough samples."""

    count: int


@dataclass(frozen=True, kw_only=True)
class After(Node):
    """`after(step)`: every step greater than `step`."""

    step: int


Range: TypeAlias = Positions | Steps | Last | After


@dataclass(frozen=True, kw_only=True)
class Aggregate(Node):
    """A function of a series that gives one number: `mean(data["TAG"], -6, -1)`."""

    function: str
    series: Expression
    argument: Expression | None = None
    """The threshold of `ratio_above`, the `q` of `quantile`."""
    range: Range | None = None
    ignore_top_p: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Absolute(Node):
    """`abs(...)` of a number, or of each point of a series."""

    operand: Expression


@dataclass(frozen=True, kw_only=True)
class Negate(Node):
    """Unary minus."""

    operand: Expression


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Node):
    """`left operator right`, on numbers, or point by point on series that have the same steps."""

    operator: ArithmeticOperator
    left: Expression
    right: Expression


@dataclass(frozen=True, kw_only=True)
class Comparison(Node):
    """`a < b`, or a chain `a < b <= c`; one operator fewer than operands."""

    operands: tuple[Expression, ...]
    operators: tuple[ComparisonOperator, ...]


@dataclass(frozen=True, kw_only=True)
class Membership(Node):
    """`"STEP" in data["TAG"]`."""

    key: str
    series: SeriesRef
    negated: bool = False


@dataclass(frozen=True, kw_only=True)
class Logic(Node):
    """`and` or `or` of conditions; every part is evaluated, so that no guard is skipped."""

    operator: Literal["and", "or"]
    parts: tuple[Condition, ...]


@dataclass(frozen=True, kw_only=True)
class Not(Node):
    """`not condition`."""

    condition: Condition


Expression: TypeAlias = Number | SeriesRef | Point | Aggregate | Absolute | Negate | Arithmetic
Condition: TypeAlias = Comparison | Membership | Logic | Not


@dataclass(frozen=True)
class Check:
    """One check, read and found to be well formed."""

    text: str
    condition: Condition

    @property
    def references(self) -> tuple[SeriesRef, ...]:
        """Return each series read, once, in the order of reading."""
        return tuple(dict.fromkeys(references(self.condition)))

    def tags(self, run: str | None = None) -> frozenset[str]:
        """Return the tags read from one run (None: the run under judgement)."""
        return frozenset(reference.tag for reference in self.references if reference.run == run)

    @property
    def runs(self) -> frozenset[str]:
        """Return the names of the other runs that the check reads."""
        return frozenset(reference.run for reference in self.references if reference.run is not None)


def children(node: Expression | Condition) -> tuple[Expression | Condition, ...]:
    """Return the nodes directly below one."""
    match node:
        case Number() | SeriesRef():
            return ()
        case Point(series=series) | Membership(series=series):
            return (series,)
        case Aggregate(series=inner, argument=argument):
            return (inner,) if argument is None else (inner, argument)
        case Absolute(operand=operand) | Negate(operand=operand):
            return (operand,)
        case Arithmetic(left=left, right=right):
            return (left, right)
        case Comparison(operands=operands):
            return operands
        case Logic(parts=parts):
            return parts
        case Not(condition=condition):
            return (condition,)


def walk(node: Expression | Condition) -> Iterator[Expression | Condition]:
    """Yield a node and all below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def references(node: Expression | Condition) -> Iterator[SeriesRef]:
    """Yield every reference to a series below a node."""
    return (item for item in walk(node) if isinstance(item, SeriesRef))


def reads_only_numbers(check: Check) -> bool:
    """Say whether a check compares bare `data["TAG"]` alone, each of which must then hold a number and no series."""
    nodes = list(walk(check.condition))
    return any(isinstance(node, SeriesRef) for node in nodes) and not any(
        isinstance(node, Aggregate | Point | Membership) for node in nodes
    )


def may_be_series(node: Expression) -> bool:
    """Say whether an expression can give a series (a bare `data["TAG"]` may hold a number instead)."""
    match node:
        case SeriesRef():
            return True
        case Absolute(operand=operand) | Negate(operand=operand):
            return may_be_series(operand)
        case Arithmetic(left=left, right=right):
            return may_be_series(left) or may_be_series(right)
        case _:
            return False
