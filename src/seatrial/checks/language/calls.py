"""Reading calls: aggregates with their argument and range, and `abs`."""

from __future__ import annotations

import ast
from typing import Protocol

from seatrial.checks.language import ranges
from seatrial.checks.language.functions import FUNCTIONS, FunctionSpec
from seatrial.checks.language.nodes import (
    Absolute,
    Aggregate,
    Expression,
    Number,
    Range,
    SeriesRef,
    may_be_series,
)
from seatrial.checks.language.scan import refusal
from seatrial.errors import UsageError
from seatrial.nearest import hint

_CALLS = sorted([*FUNCTIONS, "abs"])


class Reader(Protocol):
    """What reads the arguments of a call."""

    text: str

    def expression(self, node: ast.expr) -> Expression:
        """Read what gives a number or a series."""

    def place(self, node: ast.expr) -> ranges.Place:
        """Return where a node was written."""

    def refusal(self, node: ast.expr, message: str) -> UsageError:
        """Return the usage error of a node."""


def read_call(reader: Reader, node: ast.Call, name: str) -> Expression:
    """Read `abs(...)` or an aggregate.

    Raises:
        UsageError: an unknown function, or arguments that it does not take.
    """
    if name == "run":
        raise reader.refusal(node, 'run("NAME") is followed by a tag: run("baseline")["train/loss"]')
    if name == "abs":
        if len(node.args) != 1 or node.keywords:
            raise reader.refusal(node, "abs takes one number or series")
        return Absolute(operand=reader.expression(node.args[0]), **reader.place(node))
    if name in ranges.NAMES and name not in FUNCTIONS:
        raise reader.refusal(
            node, f'{name}(...) is a range: it stands inside a function, mean(data["TAG"], steps(1, 5))'
        )
    if name not in FUNCTIONS:
        raise reader.refusal(node, f"'{name}' is not a function of the language; {hint(name, _CALLS)}")
    return _aggregate(reader, node, FUNCTIONS[name])


def _aggregate(reader: Reader, node: ast.Call, spec: FunctionSpec) -> Aggregate:
    positional = list(node.args)
    if not positional or any(isinstance(item, ast.Starred) for item in positional):
        raise reader.refusal(node, f'{spec.name} takes a series: {spec.name}(data["TAG"])')
    series = reader.expression(positional.pop(0))
    if not may_be_series(series):
        raise refusal(reader.text, series.column, f"'{series.text}' is a number; {spec.name} takes a series")
    argument = _argument(reader, node, spec, positional)
    chosen, share = _range(reader, node, spec, positional)
    return Aggregate(
        function=spec.name,
        series=series,
        argument=argument,
        range=chosen,
        ignore_top_p=share,
        **reader.place(node),
    )


def _argument(
    reader: Reader, node: ast.Call, spec: FunctionSpec, positional: list[ast.expr]
) -> Expression | None:
    if spec.argument is None:
        return None
    if not positional or ranges.is_range(positional[0]):
        raise reader.refusal(node, f'{spec.name} takes a {spec.argument}: {spec.name}(data["TAG"], 0.9)')
    argument = reader.expression(positional.pop(0))
    if spec.argument == "q" and not (isinstance(argument, Number) and 0 <= argument.value <= 1):
        raise refusal(reader.text, argument.column, f"q is a number from 0 to 1, not {argument.text}")
    if may_be_series(argument) and not isinstance(argument, SeriesRef):
        raise refusal(reader.text, argument.column, f"the {spec.argument} is one number, not a series")
    return argument


def _range(
    reader: Reader, node: ast.Call, spec: FunctionSpec, positional: list[ast.expr]
) -> tuple[Range | None, float]:
    share = 0.0
    if len(node.keywords) > 1:
        raise reader.refusal(node.keywords[1].value, "one option is enough: ignore_top_p")
    for keyword in node.keywords:
        value = reader.expression(keyword.value)
        if keyword.arg != "ignore_top_p" or spec.name != "mean":
            raise refusal(
                reader.text,
                value.column,
                f"{spec.name} takes no option '{keyword.arg}'; mean takes ignore_top_p",
            )
        if not (isinstance(value, Number) and 0 <= value.value <= 1):
            raise refusal(reader.text, value.column, "ignore_top_p is a number from 0 to 1")
        share = value.value
    if spec.whole_series and positional:
        raise reader.refusal(positional[0], f"{spec.name} takes the whole series; count takes a range")
    return ranges.read_range(reader.text, spec, positional, reader.place), share
