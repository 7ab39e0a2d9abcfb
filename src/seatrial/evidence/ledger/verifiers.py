"""Answers and rewards of the reference tasks, worked out again from the prompt's own words.

Written apart from the stack's task and reward code on purpose: an error there must not repeat itself here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import zip_longest

_REVERSE = re.compile(r"reverse ([a-z]+)=")
_ADD = re.compile(r"(\d+)\+(\d+)=")
_COUNT = re.compile(r"count ([a-z]) in ([a-z]+)=")


def answer_of(prompt: str) -> str | None:
    """Return the right answer of a prompt of a reference task; None when its form is not known.

    Forms: `reverse abc=`, `12+7=`, `count b in abcb=`.
    """
    if match := _REVERSE.fullmatch(prompt):
        letters = list(match[1])
        letters.reverse()
        return "".join(letters)
    if match := _ADD.fullmatch(prompt):
        return _add_decimal(match[1], match[2])
    if match := _COUNT.fullmatch(prompt):
        return str(len([letter for letter in match[2] if letter == match[1]]))
    return None


def _add_decimal(left: str, right: str) -> str:
    """Add as on paper, digit by digit."""
    digits = []
    carry = 0
    for low, high in zip_longest(reversed(left), reversed(right), fillvalue="0"):
        carry, digit = divmod(int(low) + int(high) + carry, 10)
        digits.append(str(digit))
    return ("".join([str(carry), *reversed(digits)])).lstrip("0") or "0"


def _exact(completion: str, answer: str) -> float:
    return 1.0 if completion.strip() == answer else 0.0


def _characters(completion: str, answer: str) -> float:
    pairs = list(zip_longest(completion.strip(), answer))
    right = [left is not None and left == wanted for left, wanted in pairs]
    return right.count(True) / len(pairs) if pairs else 1.0


def _integer(completion: str, answer: str) -> float:
    try:
        wanted = str(int(answer))
    except ValueError:
        return math.nan
    match = re.fullmatch(r"[+-]?0*(\d+)", completion.strip(), re.ASCII)
    if match is None:
        return 0.0
    negative = completion.strip().startswith("-") and match[1] != "0"
    return 1.0 if ("-" if negative else "") + match[1] == wanted else 0.0


def _byte_nearness(completion: str, answer: str) -> float:
    pairs = list(zip_longest(completion.strip().encode(), answer.encode()))
    near = [
        0.0 if left is None or right is None else (255 - abs(left - right)) / 255 for left, right in pairs
    ]
    return sum(near) / len(pairs) if pairs else 1.0


def _program(completion: str, answer: str) -> float:
    """Judge the bytes of `print(` at the beginning and of `)` at the end: seven places, each with its nearness."""
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)```", completion, re.DOTALL)
    text = str(blocks.pop() if blocks else completion).strip().encode()
    nearness = [255 - abs(byte - right) for byte, right in zip(text[:-1], b"print(", strict=False)]
    nearness += [255 - abs(text[-1] - ord(")"))] if text else []
    return sum(nearness) / 255 / 7


REWARDS: dict[str, Callable[[str, str], float]] = {
    "exact_match": _exact,
    "character_match": _characters,
    "byte_closeness": _byte_nearness,
    "integer_match": _integer,
    "program_form": _program,
}
"""Reward rules by the name that the stack's configuration uses: (completion, answer) -> reward; NaN: the verifier
cannot judge that, and has to say so."""
