"""Ranges of a series: how they are written, and which points they choose.

`select` works on steps in ascending order. Where a step was logged more than once, all its points go together:
positions and `last(n)` count logged steps.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from seatrial.checks.language.functions import FunctionSpec, distinct
from seatrial.checks.language.nodes import After, Last, Positions, Range, Steps
from seatrial.checks.language.scan import refusal

NAMES = ("steps", "last", "after")
MAX_STEP = 10**15


class Place(TypedDict):
    """Where a node was written."""

    column: int
    text: str


def is_range(node: ast.expr) -> bool:
    """Say whether an argument is an explicit range: `last(5)` is, `last(data["x"])` is not."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in NAMES
        and (node.func.id != "last" or bool(node.args and _whole(node.args[0]) is not None))
    )


def read_range(
    text: str, spec: FunctionSpec, arguments: list[ast.expr], place: Callable[[ast.expr], Place]
) -> Range | None:
    """Read what follows the series: nothing, one explicit range, or NeMo RL's `start, end`.

    Raises:
        UsageError: neither form, or numbers that choose nothing.
    """
    if not arguments:
        return None
    if is_range(arguments[0]):
        if len(arguments) > 1:
            raise refusal(text, place(arguments[1])["column"], "one range is enough")
        return _explicit(text, arguments[0], place)
    if not spec.positional_range:
        raise refusal(
            text,
            place(arguments[0])["column"],
            f"{spec.name} takes a range written as steps(first, last), last(count) or after(step)",
        )
    numbers = [_whole(argument) for argument in arguments]
    if len(numbers) > 2 or any(number is None for number in numbers):
        raise refusal(
            text,
            place(arguments[0])["column"],
            f"{spec.name} takes start and end as whole numbers, or steps(first, last), last(count), after(step)",
        )
    start, end = [*(number or 0 for number in numbers), 0][:2]
    return Positions(start=start, end=end, **place(arguments[0]))


def _explicit(text: str, node: ast.expr, place: Callable[[ast.expr], Place]) -> Range:
    """Read `steps(first, last, every=1)`, `last(count)` or `after(step)`."""
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    where = place(node)
    numbers = [number for argument in node.args if (number := _whole(argument)) is not None]
    if len(numbers) != len(node.args) or node.keywords:
        raise refusal(text, where["column"], f"{node.func.id} takes whole numbers")
    match node.func.id, numbers:
        case "steps", [first, final] if 0 <= first <= final:
            return Steps(first=first, last=final, **where)
        case "steps", [first, final, every] if 0 <= first <= final and every >= 1:
            return Steps(first=first, last=final, every=every, **where)
        case "last", [count] if count >= 1:
            return Last(count=count, **where)
        case "after", [step] if step >= 0:
            return After(step=step, **where)
    raise refusal(
        text,
        where["column"],
        "write steps(first, last) or steps(first, last, every) with first <= last, last(count) with count >= 1, "
        "after(step) with step >= 0",
    )


def _whole(node: ast.expr) -> int | None:
    """Return the value of a literal whole number, else None."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() as value) if value <= MAX_STEP:
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)) if value <= MAX_STEP:
            return -value
    return None


def select(chosen: Range | None, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which points (N,) of a series with ascending steps (N,) a range chooses."""
    match chosen:
        case None:
            return np.ones(len(steps), dtype=np.bool_)
        case Steps(first=first, last=last, every=every):
            return np.asarray((steps >= first) & (steps <= last) & ((steps - first) % every == 0))
        case After(step=step):
            return np.asarray(steps > step)
    place = np.cumsum(np.diff(steps, prepend=steps[:1]) != 0)
    logged = distinct(steps)
    if isinstance(chosen, Last):
        return np.asarray(place >= len(logged) - chosen.count)
    start, end = positions(chosen, logged)
    return np.asarray((place >= start) & (place < end))


def positions(chosen: Positions, logged: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Return the half-open interval of indices into the distinct steps that a positional range means.

    The logged steps are numbered 1, 2, 3, ...; one at step 0 (validation before training) is number 0. For steps
    1..N without gaps this is what NeMo RL's checker gives.
    """
    count = len(logged)
    origin = 0 if count and logged[0] == 0 else 1
    start = chosen.start + count if chosen.start < 0 else chosen.start - origin
    end = chosen.end + count if chosen.end <= 0 else chosen.end - origin
    return max(0, start), end


def num_needed(chosen: Range | None, logged: npt.NDArray[np.int64]) -> int:
    """Return how many logged steps a range needs: `last(6)` and position -6 need 6; 0 for a range without a number."""
    match chosen:
        case Last(count=count):
            return count
        case Positions(start=start, end=end):
            origin = 0 if len(logged) and logged[0] == 0 else 1
            return max(-start, -end, end - origin)
    return 0


def num_expected(chosen: Range | None, steps: npt.NDArray[np.int64]) -> int:
    """Return how many steps `coverage` expects: those of `steps(a, b)`, else from the first to the last logged.

    Without `steps(a, b)` the distance between two is taken to be the smallest seen, and a missing end is not seen.
    """
    if isinstance(chosen, Steps):
        return (chosen.last - chosen.first) // chosen.every + 1
    logged = distinct(steps)
    if len(logged) < 2:
        return 1
    return int((logged[-1] - logged[0]) // np.diff(logged).min()) + 1


def describe(chosen: Range | None) -> str:
    """Return a range in words, for messages."""
    match chosen:
        case None:
            return "the whole series"
        case Steps(first=first, last=last, every=every):
            return f"steps {first} to {last}" + (f" every {every}" if every > 1 else "")
        case After(step=step):
            return f"the steps after {step}"
        case Last(count=count):
            return f"the last {count} logged steps"
        case Positions(start=start, end=end):
            return f"the logged points from position {start} to " + (
                "the last" if end == 0 else f"before {end}"
            )
