"""Laws of functions that a slow, plain one defines: each is called with cases and compared with it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.utilities.numbers import Numbers, numbers, without
from seatrial.relations.not_served import NotServed
from seatrial.relations.worst import worst_of

FLOAT32 = 64 * torch.finfo(torch.float32).eps
"""Relative error of a sum of some tens of float32 values."""
Arguments = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A function of a stack with its definition and the cases to call it with."""

    name: str
    """In `contracts.utilities.UTILITIES`."""
    law: str
    suspects: str
    cases: Callable[[Numbers], Iterable[Arguments]]
    """(case) -> arguments of each call."""
    right: Callable[..., Any]
    """The definition; takes the same arguments."""
    bound: float = 0.0
    """Allowed error, by 1 and the value's size."""


def relation_of(subject: str, name: str, statement: str) -> Relation:
    """Return a relation of functions that are compared with their definitions."""
    return Relation(
        id=f"R31.{subject}",
        name=name,
        component="utilities",
        statement=statement,
        cost="CPU, milliseconds",
        cases=numbers,
    )


REPEATED = relation_of(
    "repeated",
    "functions-keep-their-arguments-and-have-no-memory",
    "A function changes none of its arguments, and a second call with the same arguments gives the same.",
)
FUNCTIONS: list[Plain] = []
"""All that `add_laws` was given."""


@REPEATED.law(
    "arguments, and a second call",
    "an operation in place on what the caller gave, a default that is shared between calls, a cache without its key",
    excluded=lambda stack: without(*[one.name for one in FUNCTIONS])(stack),
)
def calls_are_alike(stack: Any, case: Numbers) -> Measure:
    """Call each function that a definition describes twice with the same arguments.

    A call that raises an error is left to the law about that function, which reports it.

    Raises:
        NotServed: no call gave anything.
    """
    wrong, judged = [], 0
    for function in FUNCTIONS:
        if function.name not in stack.utilities:
            continue
        utility = stack.utilities[function.name]
        for arguments in function.cases(case):
            kept = copy.deepcopy(arguments)
            try:
                first = copy.deepcopy(utility(*arguments))
            except Exception:  # noqa: BLE001  of any kind: the function's own law names it
                continue
            judged += 1
            changed, place = difference(arguments, kept)
            if changed:
                wrong.append(f"{function.name!r} changes its arguments{place}: {_named(kept)}")
            elif difference(utility(*arguments), first)[0]:
                wrong.append(f"{function.name!r} gives something else the second time: {_named(kept)}")
    if not judged:
        raise NotServed("no call gave anything")
    return Measure.count(wrong, "calls that change their arguments or the next call")


def add_laws(relation: Relation, functions: Iterable[Plain]) -> None:
    """Register a law for each function."""
    for one in functions:
        relation.law(one.law, one.suspects, excluded=without(one.name), function=one)(equals_definition)
        FUNCTIONS.append(one)


def equals_definition(stack: Any, case: Numbers, function: Plain) -> Measure:
    """Compare the results of all cases with the definition; each side gets arguments of its own.

    Raises:
        NotServed: the stack serves none of the cases.
    """
    found, refused = [], None
    for arguments in function.cases(case):
        right = function.right(*copy.deepcopy(arguments))
        try:
            given = stack.utilities[function.name](*copy.deepcopy(arguments))
        except NotServed as reason:
            refused = reason
            continue
        error, place = difference(given, right)
        found.append((error, f"{place or 'the result'} of {_named(arguments)}"))
    if refused is not None and not found:
        raise refused
    return Measure.largest(found, function.bound, f"{function.name}, error against its definition")


def _named(arguments: Arguments) -> str:
    text = ", ".join(str(one).replace("\n", "") for one in arguments)
    return text if len(text) < 160 else text[:160] + "..."


def difference(given: Any, right: Any, place: str = "") -> tuple[float, str]:
    """Return the largest error of nested results by 1 + the right value's size, and where; infinite in another form.

    NaN equals NaN. Tensors have to have the shape, and where the right one is no float64 the type, of the right one.
    """
    if isinstance(right, Tensor):
        return _difference_of_tensors(given, right, place)
    given = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(right, Mapping):
        if not isinstance(given, Mapping) or set(given) != set(right):
            names = sorted(set(given) ^ set(right), key=str) if isinstance(given, Mapping) else given
            return math.inf, f"{place} has other names: {names}"
        return worst_of(difference(given[name], value, f"{place}[{name!r}]") for name, value in right.items())
    if isinstance(right, (list, tuple)):
        if not isinstance(given, (list, tuple)) or len(given) != len(right):
            return math.inf, f"{place} is {given!r}, {right!r} is right: its length"
        pairs = enumerate(zip(given, right, strict=True))
        return worst_of(difference(one, other, f"{place}[{number}]") for number, (one, other) in pairs)
    if isinstance(right, float) and isinstance(given, (int, float)) and not isinstance(given, bool):
        if given == right or (math.isnan(given) and math.isnan(right)):
            return 0.0, place
        error = abs(given - right) / (1 + abs(right))
        return (math.inf if math.isnan(error) else error), f"{place} is {given!r}, {right!r} is right:"
    same = type(given) is type(right) and given == right
    return (0.0, place) if same else (math.inf, f"{place} is {given!r}, {right!r} is right:")


def _difference_of_tensors(given: Any, right: Tensor, place: str) -> tuple[float, str]:
    if not isinstance(given, Tensor) or given.shape != right.shape:
        return (
            math.inf,
            f"{place} has shape {tuple(getattr(given, 'shape', ()))}, {tuple(right.shape)} is right:",
        )
    if right.dtype is not torch.float64 and given.dtype is not right.dtype:
        return math.inf, f"{place} is {given.dtype}, {right.dtype} is right:"
    one, other = given.double(), right.double()
    equal = (one == other) | (one.isnan() & other.isnan())
    if bool(equal.all()):
        return 0.0, place
    error = torch.where(equal, 0.0, (one - other).abs() / (1 + other.abs())).nan_to_num(math.inf, math.inf)
    return float(error.max()), f"{place} at {tuple(map(int, (error == error.max()).nonzero()[0]))}"
