"""Reads a check: text to typed nodes through a closed grammar.

Python's parser builds the tree and nothing is compiled or run: what is listed here is allowed, everything else
is refused with its column and what is allowed instead.
"""

from __future__ import annotations

import ast
import itertools
from typing import get_args

from seatrial.checks.language import ranges
from seatrial.checks.language.functions import FUNCTIONS, FunctionSpec
from seatrial.checks.language.nodes import (
    Absolute,
    Aggregate,
    Arithmetic,
    ArithmeticOperator,
    Check,
    Comparison,
    ComparisonOperator,
    Condition,
    Expression,
    Logic,
    Membership,
    Negate,
    Not,
    Number,
    Point,
    Range,
    SeriesRef,
    may_be_series,
    references,
)
from seatrial.checks.language.ranges import Place
from seatrial.checks.language.scan import refusal, scan
from seatrial.errors import UsageError
from seatrial.nearest import hint

_CALLS = sorted([*FUNCTIONS, "abs"])


def _read_call(reader: _Reader, node: ast.Call, name: str) -> Expression:
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
            node, f'{name}(...) is a range: write it inside a function, mean(data["TAG"], steps(1, 5))'
        )
    if name not in FUNCTIONS:
        raise reader.refusal(node, f"'{name}' is not a function of the language; {hint(name, _CALLS)}")
    return _aggregate(reader, node, FUNCTIONS[name])


def _aggregate(reader: _Reader, node: ast.Call, spec: FunctionSpec) -> Aggregate:
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
    reader: _Reader, node: ast.Call, spec: FunctionSpec, positional: list[ast.expr]
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
    reader: _Reader, node: ast.Call, spec: FunctionSpec, positional: list[ast.expr]
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


_ARITHMETIC: dict[type[ast.operator], ArithmeticOperator] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}
_COMPARISONS: dict[type[ast.cmpop], ComparisonOperator] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}


def parse_check(text: str) -> Check:
    """Read one check.

    Raises:
        UsageError: it is not in the language; the message names the column and what is allowed.
    """
    text = scan(text)
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise refusal(
            text, min(max(1, error.offset or 1), len(text)), f"not an expression: {error.msg}"
        ) from None
    except (ValueError, MemoryError, RecursionError):
        raise refusal(text, 1, "it is too complicated to read; write several checks") from None
    return Check(text=text, condition=_Reader(text).condition(tree.body))


class _Reader:
    """Turns Python's tree of one check into nodes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.bytes = text.encode()

    def condition(self, node: ast.expr) -> Condition:
        """Read what must be a comparison, or comparisons joined by and, or, not."""
        match node:
            case ast.BoolOp(op=op, values=values):
                parts = tuple(self.condition(value) for value in values)
                return Logic(
                    operator="and" if isinstance(op, ast.And) else "or", parts=parts, **self.place(node)
                )
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Not(condition=self.condition(operand), **self.place(node))
            case ast.Compare(ops=[ast.In() | ast.NotIn() as op], left=left, comparators=[right]):
                return self._membership(node, op, left, right)
            case ast.Compare():
                return self._comparison(node)
            case ast.Constant():
                raise self.refusal(
                    node, f"{self._source(node)} is constant: a check compares something that was logged"
                )
            case _:
                raise self.refusal(
                    node,
                    f"'{self._source(node)}' is not a comparison: compare it with a bound by < <= > >= == != or in",
                )

    def _comparison(self, node: ast.Compare) -> Comparison:
        operators = []
        for op in node.ops:
            if type(op) not in _COMPARISONS:
                raise self.refusal(
                    node, "only < <= > >= == != may be chained; 'in' is used alone, 'is' is not allowed"
                )
            operators.append(_COMPARISONS[type(op)])
        operands = tuple(self.expression(part) for part in (node.left, *node.comparators))
        for left, right in itertools.pairwise(operands):
            if not any(True for side in (left, right) for _ in references(side)):
                raise refusal(
                    self.text,
                    left.column,
                    f"'{left.text}' against '{right.text}' is constant: nothing logged is read",
                )
        return Comparison(operands=operands, operators=tuple(operators), **self.place(node))

    def _membership(self, node: ast.expr, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Membership:
        if not (isinstance(left, ast.Constant) and isinstance(left.value, str)):
            raise self.refusal(
                left, 'only a step in quotes may come before \'in\': "5" in data["train/loss"]'
            )
        series = self.expression(right)
        if not isinstance(series, SeriesRef):
            raise self.refusal(right, '\'in\' is followed by a series: "5" in data["train/loss"]')
        key = self._key(left)
        return Membership(key=key, series=series, negated=isinstance(op, ast.NotIn), **self.place(node))

    def expression(self, node: ast.expr) -> Expression:
        """Read what gives a number or a series."""
        match node:
            case ast.Constant(value=bool() | str() | None):
                raise self.refusal(
                    node, f"{self._source(node)} is not a number; tags go into data[...], steps after it"
                )
            case ast.Constant(value=int() | float() as value):
                return Number(value=float(value), **self.place(node))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.expression(operand)
                if isinstance(inner, Number):
                    return Number(value=-inner.value, **self.place(node))
                return Negate(operand=inner, **self.place(node))
            case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
                return self._arithmetic(
                    node, _ARITHMETIC[type(op)], self.expression(left), self.expression(right)
                )
            case ast.Subscript():
                return self._subscript(node)
            case ast.Call(func=ast.Name(id=name)):
                return _read_call(self, node, name)
            case ast.Name(id=name):
                raise self._unknown_name(node, name)
            case ast.Compare() | ast.BoolOp():
                raise self.refusal(
                    node, "a comparison cannot be inside arithmetic, a function or another comparison"
                )
            case _:
                raise self.refusal(
                    node,
                    f"'{self._source(node)}' is not in the language; allowed are numbers, "
                    'data["TAG"], data["TAG"]["STEP"], run("NAME")["TAG"], + - * /, brackets and functions',
                )

    def _arithmetic(
        self, node: ast.expr, operator: ArithmeticOperator, left: Expression, right: Expression
    ) -> Expression:
        if isinstance(right, Number) and right.value == 0 and operator == "/":
            raise refusal(self.text, right.column, "division by zero")
        if isinstance(left, Number) and isinstance(right, Number):
            a, b = left.value, right.value
            value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else 0.0}[operator]
            return Number(value=value, **self.place(node))
        return Arithmetic(operator=operator, left=left, right=right, **self.place(node))

    def _subscript(self, node: ast.Subscript) -> Expression:
        match node.value:
            case ast.Name(id="data"):
                return SeriesRef(tag=self._tag(node.slice), **self.place(node))
            case ast.Call(func=ast.Name(id="run")) as call:
                return SeriesRef(tag=self._tag(node.slice), run=self._run_name(call), **self.place(node))
            case ast.Subscript() as inner:
                series = self._subscript(inner)
                if isinstance(series, SeriesRef):
                    return Point(series=series, key=self._key(node.slice), **self.place(node))
            case ast.Name(id=name):
                raise self._unknown_name(node.value, name)
        raise self.refusal(
            node, 'only data["TAG"], run("NAME")["TAG"] and a ["STEP"] after them may have brackets'
        )

    def _run_name(self, call: ast.Call) -> str:
        if len(call.args) == 1 and not call.keywords:
            name = call.args[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.strip():
                return name.value
        raise self.refusal(call, 'run takes one name in quotes: run("baseline")["train/loss"]')

    def _tag(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip():
            return node.value
        raise self.refusal(node, 'a tag goes in quotes: data["train/loss"]')

    def _key(self, node: ast.expr) -> str:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.strip()):
            raise self.refusal(node, f'a step goes in quotes: ["{self._source(node).strip("-")}"]')
        if "$" in node.value:
            raise self.refusal(node, f"'{node.value}' is a shell variable that was not replaced by its value")
        return node.value

    def _unknown_name(self, node: ast.expr, name: str) -> UsageError:
        if name == "data":
            return self.refusal(node, 'data is followed by a tag: data["train/loss"]')
        if name in FUNCTIONS or name == "abs":
            return self.refusal(node, f'{name} is a function: {name}(data["TAG"])')
        return self.refusal(
            node, f"'{name}' is not known; the only names are data, run(\"NAME\") and the functions"
        )

    def place(self, node: ast.expr) -> Place:
        """Return where a node was written."""
        return {"column": self._column(node), "text": self._source(node)}

    def _column(self, node: ast.expr) -> int:
        return len(self.bytes[: node.col_offset].decode()) + 1

    def _source(self, node: ast.expr) -> str:
        end = node.end_col_offset if node.end_col_offset is not None else len(self.bytes)
        return self.bytes[node.col_offset : end].decode()

    def refusal(self, node: ast.expr, message: str) -> UsageError:
        """Return the usage error of a node."""
        return refusal(self.text, self._column(node), message)


assert set(_ARITHMETIC.values()) == set(get_args(ArithmeticOperator))
assert set(_COMPARISONS.values()) == set(get_args(ComparisonOperator))
