"""The wording of a verdict on a check: the measured value, the bound, and the reason."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from seatrial.checks.language.nodes import (
    Comparison,
    ComparisonOperator,
    Condition,
    Expression,
    Logic,
    Membership,
    Not,
    Number,
    references,
)
from seatrial.verdict import Outcome

_MIRRORED: dict[ComparisonOperator, ComparisonOperator] = {
    "<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!=",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The part of a verdict that a check's condition gives."""

    outcome: Outcome
    reason: str
    value: float | str | None = None
    bound: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Part:
    """One comparison in words."""

    subject: str
    value: float | str
    bound: str


def number_text(value: float) -> str:
    """Return a number in readable form, exact enough to distinguish it from its bound."""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def answer_of(condition: Condition, values: Mapping[int, float | bool], good: bool) -> Answer:
    """Word the answer to a condition whose operands had these values (by id of the node)."""
    parts = _parts(condition, values)
    measured = "; ".join(f"{part.subject} = {_shown(part.value, part.bound)}, {part.bound}" for part in parts)
    outcome = Outcome.PASS if good else Outcome.FAIL
    if len(parts) == 1 and not isinstance(condition, Not):
        part = parts[0]
        if isinstance(condition, Membership):
            reason = f"{part.subject} is {part.value}; it should be {part.bound}"
            return Answer(outcome=outcome, reason=reason, value=part.value, bound=part.bound)
        verb = "which is" if good else "not"
        reason = f"{part.subject} is {_shown(part.value, part.bound)}, {verb} {part.bound}"
        return Answer(outcome=outcome, reason=reason, value=part.value, bound=part.bound)
    reason = f"{condition.text} is {'true' if good else 'false'}: {measured}"
    value = (
        parts[0].value
        if len(parts) == 1
        else "; ".join(f"{p.subject} = {_shown(p.value, p.bound)}" for p in parts)
    )
    return Answer(outcome=outcome, reason=reason, value=value, bound=bound_text(condition, values))


def bound_text(condition: Condition, values: Mapping[int, float | bool]) -> str:
    """Return the bounds of the measured sides of a condition: `< 1.05`, `> 0 and < 10`, `not > 1`.

    Sides without a value are shown as written.
    """
    match condition:
        case Not(condition=inner):
            text = bound_text(inner, values)
            return f"not ({text})" if " " in text.strip("<>=! ") else f"not {text}"
        case Logic(operator=joiner, parts=parts):
            return f" {joiner} ".join(
                f"({text})" if isinstance(part, Logic) else text
                for part in parts
                for text in [bound_text(part, values)]
            )
        case _:
            return _parts(condition, values)[0].bound


def _parts(condition: Condition, values: Mapping[int, float | bool]) -> list[_Part]:
    """Return each comparison below a condition in words, in the order of reading."""
    match condition:
        case Comparison():
            return [_comparison(condition, values)]
        case Membership(key=key, series=series, negated=negated):
            bound = f"{'not in' if negated else 'in'} {series.label}"
            return [
                _Part(
                    subject=f"step {key}",
                    value="present" if values.get(id(condition)) else "absent",
                    bound=bound,
                )
            ]
        case Logic(parts=inner):
            return [part for item in inner for part in _parts(item, values)]
        case Not(condition=one):
            return _parts(one, values)


def _comparison(node: Comparison, values: Mapping[int, float | bool]) -> _Part:
    """Word one comparison: its first measured side is the subject, the sides next to it are the bound."""
    measured = [
        place for place, operand in enumerate(node.operands) if any(True for _ in references(operand))
    ]
    if len(measured) > 1 and len(node.operands) > 2:
        chain = _side(node.operands[0], values)
        for sign, operand in zip(node.operators, node.operands[1:], strict=True):
            chain += f" {sign} {_side(operand, values)}"
        sides = "; ".join(_side(node.operands[p], values) for p in measured)
        return _Part(subject=node.text, value=sides, bound=chain)
    place = measured[0]
    bounds = []
    if place > 0:
        bounds.append(f"{_MIRRORED[node.operators[place - 1]]} {_side(node.operands[place - 1], values)}")
    if place < len(node.operators):
        bounds.append(f"{node.operators[place]} {_side(node.operands[place + 1], values)}")
    subject = node.operands[place]
    return _Part(
        subject=subject.text, value=float(values.get(id(subject), math.nan)), bound=" and ".join(bounds)
    )


def _side(operand: Expression, values: Mapping[int, float | bool]) -> str:
    """Return one side of a bound: a literal as written, a measured side with its value."""
    if isinstance(operand, Number) or id(operand) not in values:
        return operand.text
    return f"{number_text(float(values[id(operand)]))} ({operand.text})"


def _shown(value: float | str, bound: str) -> str:
    """Return a value, with more digits where the short form would read like the bound."""
    if isinstance(value, str):
        return value
    short = number_text(value)
    return repr(value) if bound.endswith(f" {short}") else short
