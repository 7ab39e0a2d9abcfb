"""Values as text formats hold them: a number, NaN, infinity, their names as text, null, or something else.

A hole, a null and a NaN are different facts about a run: a hole is a missing step, a null was written as one,
and NaN came out of the arithmetic. Each reader keeps them apart through `decode`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

_NAMES = {
    "nan": math.nan,
    "+nan": math.nan,
    "-nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}

MAX_STEP = 2**63 - 1


class Number(NamedTuple):
    """One logged value."""

    value: float
    """The number; NaN where `null` is set."""
    null: bool = False
    """The log holds an explicit null."""


def decode(raw: Any) -> Number | None:
    """Return the number that a JSON value, or a cell of text, stands for; None when it is not a number.

    Booleans count as 0 and 1, as loggers of this field write flags. Text counts when it is a decimal number or
    the name of NaN or an infinity: some writers make JSON valid that way.
    """
    if raw is None:
        return Number(math.nan, null=True)
    if isinstance(raw, float):
        return Number(raw)
    if isinstance(raw, int):
        return Number(_float_of_int(raw))
    if isinstance(raw, str):
        return _decode_text(raw)
    return None


def decode_step(raw: Any) -> int | None:
    """Return the step that a JSON value or text stands for, or None when it is not a whole number of 64 bits.

    Text may say how many steps there will be: `1/438` is step 1.
    """
    if isinstance(raw, bool):
        return None
    if isinstance(raw, str):
        if len(raw) > 32:
            return None
        step, _, last = raw.partition("/")
        raw = step if last.strip().isdecimal() else raw
        try:
            raw = int(raw)
        except ValueError:
            number = _decode_text(raw)
            raw = None if number is None else number.value
    if isinstance(raw, float):
        if not math.isfinite(raw) or raw != int(raw):
            return None
        raw = int(raw)
    if isinstance(raw, int) and -MAX_STEP - 1 <= raw <= MAX_STEP:
        return raw
    return None


def _decode_text(text: str) -> Number | None:
    word = text.strip()
    named = _NAMES.get(word.lower())
    if named is not None:
        return Number(named)
    # float() also takes underscores, which no logger writes as part of a number.
    if not word or len(word) > 400 or "_" in word:
        return None
    try:
        return Number(float(word))
    except ValueError:
        return None


def _float_of_int(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
