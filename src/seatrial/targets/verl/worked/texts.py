"""Worked examples of what verl's rules read from texts: answers that are found, made alike, compared and scored."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from seatrial.targets.common.worked_rows import Row

SCORES = "verl.utils.reward_score."
NUMBERS = f"{SCORES}gsm8k:"
BOXES = f"{SCORES}math_reward: {SCORES}math:"
MARKED = f"{SCORES}math_dapo:"
QUESTIONS = f"{SCORES}search_r1_like_qa_em:"


def _at(module: str, name: str) -> str:
    """Return the places of a function, of each of a module's names."""
    return " ".join(f"{place}{name}" for place in module.split())


def row_of(module: str, name: str, what: str, *pairs: tuple[Any, Any], since: str = "0") -> Row:
    """Return the row of a function of one argument, or of several in a tuple, by what each call gives."""

    def call(function: Callable[..., Any]) -> list[Any]:
        with contextlib.redirect_stdout(io.StringIO()):
            return [function(*given) if isinstance(given, tuple) else function(given) for given, _ in pairs]

    return Row("returns", _at(module, name), what, call, [right for _, right in pairs], since=since)


_SPACES = " " * 300
_OF_NUMBERS: Sequence[Row] = (
    row_of(
        NUMBERS,
        "extract_solution",
        "answers after the mark",
        ("#### 5", "5"),
        ("#### 5 #### 6", "6"),
        ("#### -1,234.50", "-1234.50"),
        ("#### 5.", "5."),
        ("#### $5", None),
        ("####  5", None),
        ("5", None),
        ("#### 5" + _SPACES, None),
        ("#### 5" + _SPACES[6:], "5"),
        ("#### 5" + _SPACES[5:], None),
        since="0.5",
    ),
    row_of(
        NUMBERS,
        "extract_solution",
        "the last number anywhere",
        (("3 and -4.5", "flexible"), "-4.5"),
        (("3 . ", "flexible"), "3"),
        (("1,000", "flexible"), "1,000"),
        (("none", "flexible"), None),
        (("7" + _SPACES, "flexible"), None),
        (("7 apples and 8 pears", "flexible"), "8"),
        since="0.5",
    ),
)
FRACTIONS: Sequence[tuple[str, str]] = (
    ("x", "x"),
    (r"\frac12", r"\frac{1}{2}"),
    (r"\frac123", r"\frac{1}{2}3"),
    (r"\frac1{23}", r"\frac{1}{23}"),
    (r"\frac1{23}4", r"\frac{1}{23}4"),
    (r"\frac{1}{2}", r"\frac{1}{2}"),
    (r"2\frac12+\frac34", r"2\frac{1}{2}+\frac{3}{4}"),
    (r"\frac1", r"\frac1"),
)
SLASHES: Sequence[tuple[str, str]] = (
    ("1/2", r"\frac{1}{2}"),
    ("-1/2", r"\frac{-1}{2}"),
    ("01/2", "01/2"),
    ("1/2/3", "1/2/3"),
    ("a/2", "a/2"),
    ("1/ 2", "1/ 2"),
    ("5", "5"),
)
WITH_UNITS: Sequence[tuple[str, str]] = ((r"5\text{ cm}", "5"), (r"5\text{cm}", r"5\text{cm}"), ("5", "5"))
ROOTS: Sequence[tuple[str, str]] = (
    (r"\sqrt3", r"\sqrt{3}"),
    (r"\sqrt{3}", r"\sqrt{3}"),
    (r"2\sqrt3x+\sqrt{5}", r"2\sqrt{3}x+\sqrt{5}"),
    ("3", "3"),
)
STRIPPED: Sequence[tuple[str, str]] = (
    ("1\n2", "12"),
    (r"1\!2", "12"),
    (r"\\frac12", r"\frac{1}{2}"),
    (r"\tfrac12", r"\frac{1}{2}"),
    (r"\dfrac12", r"\frac{1}{2}"),
    (r"\left(1, 2\right)", "(1,2)"),
    (r"90^{\circ}", "90"),
    (r"90^\circ", "90"),
    (r"\$5", "5"),
    (r"5\text{ cm}", "5"),
    (r"5\%", "5"),
    ("a .5", "a0.5"),
    ("{.5}", "{0.5}"),
    (".5", r"\frac{1}{2}"),
    (".25", "0.25"),
    ("", ""),
    ("k = 5", "5"),
    ("kk= 5", "5"),
    ("abc=5", "abc=5"),
    ("a=b=5", "a=b=5"),
    (r"\sqrt3 x", r"\sqrt{3}x"),
    ("0.5", r"\frac{1}{2}"),
    ("3/4", r"\frac{3}{4}"),
    ("3 / 4", r"\frac{3}{4}"),
)
_OF_BOXES: Sequence[Row] = (
    row_of(
        BOXES,
        "last_boxed_only_string",
        "the last box",
        (r"\boxed{1} or \boxed{2}", r"\boxed{2}"),
        (r"\boxed{\frac{1}{2}} so", r"\boxed{\frac{1}{2}}"),
        (r"\boxed{a \boxed{b}}", r"\boxed{b}"),
        (r"\fbox{3}", r"\fbox{3}"),
        (r"\boxed{1} \fbox{3}", r"\boxed{1}"),
        (r"$\boxed 7$ so", r"\boxed 7"),
        (r"\boxed{1", None),
        ("1", None),
    ),
    row_of(
        BOXES,
        "remove_boxed",
        "what is in a box",
        (r"\boxed{1}", "1"),
        (r"\boxed 1", "1"),
        (r"\boxed{{1}}", "{1}"),
    ),
    row_of(BOXES, "fix_fracs", "fractions without braces", *FRACTIONS),
    row_of(BOXES, "fix_a_slash_b", "fractions of whole numbers", *SLASHES, since="0.4"),
    row_of(BOXES, "remove_right_units", "units", *WITH_UNITS),
    row_of(BOXES, "fix_sqrt", "roots without braces", *ROOTS),
    row_of(BOXES, "strip_string", "forms of a number", *STRIPPED),
    row_of(
        BOXES,
        "is_equiv",
        "pairs",
        ((None, None), True),
        ((None, "1"), False),
        (("1", None), False),
        (("1/2", r"\frac{1}{2}"), True),
        (("1", "2"), False),
        ((r"5\text{ a}\text{ b}", r"5\text{ a}\text{ b}"), True),
        ((r"5\text{ a}\text{ b}", "5"), False),
    ),
)
_OF_MARKS: Sequence[Row] = (
    row_of(
        MARKED,
        "last_boxed_only_string",
        "the last box",
        (r"\boxed{1} or \boxed{2}", r"\boxed{2}"),
        (r"\boxed{\frac{1}{2}} so", r"\boxed{\frac{1}{2}}"),
        (r"\boxed{1} or \boxed{2", None),
        (r"\boxed 1", None),
    ),
    row_of(MARKED, "remove_boxed", "what is in a box", (r"\boxed{1}", "1"), (r"\boxed{{1}}", "{1}")),
    row_of(
        MARKED,
        "normalize_final_answer",
        "forms of an answer",
        ("x = 5", "5"),
        ("x = y = 5", "5"),
        ("an apple", "apple"),
        ("a cat", "cat"),
        ("5.$", "5"),
        ("$5$.", "5"),
        (r"\$5", "5"),
        (r"1\ 000", "1000"),
        (r"5\mbox{ cm}", "5"),
        (r"1,\text{and}2", "12"),
        (r"1\text{and}2", "12"),
        (r"5\text{m}", "5"),
        ("5 square feet", "5"),
        ("3 ways", "3"),
        ("3 dollars", "3"),
        ("3 mph", "3"),
        ("3 inches", "3"),
        ("3 hours", "3"),
        ("3 km", "3"),
        ("3 units", "3"),
        (r"1,\ldots", "1"),
        ("3 points", "3"),
        ("3 minutes", "3"),
        ("3 digits", "3"),
        ("3 cents", "3"),
        ("3 degrees", "3"),
        ("3 gm", "3"),
        ("3 pounds", "3"),
        ("3 meters", "3"),
        ("3 meals", "3"),
        ("3 edges", "3"),
        ("3 students", "3"),
        ("3 children tickets", "3"),
        ("3 multiples", "3"),
        (r"3\text{}^2", "3"),
        (r"3\mathrm{th}", "3"),
        (r"1,\!000", "1000"),
        ("1{,}000", "1000"),
        (r"1\;2", "12"),
        ('"5"', "5"),
        (r"x,\dots", "x,"),
        ("so $5$ and $6$", "5"),
        (r"\textbf{5}", "5"),
        (r"\overline{5}", "5"),
        (r"\boxed{5}", "5"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac123", r"\frac{1}{2}3"),
        (r"\frac{10}{21}", r"\frac{10}{21}"),
        (r"\sqrt3x", r"\sqrt{3}x"),
        (r"\sqrt{3}", r"\sqrt{3}"),
        ("1,000,000", "1000000"),
        ("1,000.5", "1,000.5"),
    ),
    row_of(
        MARKED,
        "is_correct_minerva",
        "answers after the word, and right ones in a box",
        (("Answer: 5", "5"), (True, "5")),
        (("ANSWER :5\nx", "5"), (True, "5")),
        (("Answer: 5 Answer: 6", "6"), (False, "5Answer:6")),
        (("Answer: 5\nanswer: 6", "6"), (True, "6")),
        (("5", "5"), (False, "[INVALID]")),
        (("Answer: 5", r"it is \boxed{5}", True), (True, "5")),
        (("Answer: 5", r"it is \boxed{5}", False), (False, "5")),
        (("Result: 5", "5", False, r"Result: (\d)"), (True, "5")),
    ),
    row_of(
        MARKED,
        "is_correct_strict_box",
        "the last 100 letters, and those before a token",
        ((r"\boxed{5}", "5"), (1, "5")),
        ((r"\boxed{5}", "6"), (-1, "5")),
        ((r"\boxed{5 }", "5"), (-1, "5 ")),
        (("5", "5"), (-1, None)),
        ((r"\boxed{5}" + " " * 91, "5"), (1, "5")),
        ((r"\boxed{5}" + " " * 92, "5"), (-1, None)),
        ((r"\boxed{5}" + " " * 200, "5", [0, 0, 0, 100]), (1, "5")),
        ((r"\boxed{5}" + " " * 200, "5", [0, 0, 0, 101]), (-1, None)),
    ),
    row_of(
        MARKED,
        "compute_score",
        "the last 300 letters",
        (("Answer: 5\n" + " " * 290, "5"), {"score": 1.0, "acc": True, "pred": "5"}),
        (("Answer: 5\n" + " " * 291, "5"), {"score": -1.0, "acc": False, "pred": "[INVALID]"}),
        (("Answer: 6", "5"), {"score": -1.0, "acc": False, "pred": "6"}),
        ((r"\boxed{5}", "5", True), {"score": 1.0, "acc": True, "pred": "5"}),
        (("Answer: 5", "5", True), {"score": -1.0, "acc": False, "pred": None}),
    ),
)
_OF_QUESTIONS: Sequence[Row] = (
    row_of(
        QUESTIONS,
        "normalize_answer",
        "answers",
        ("The  Cat, an owl.", "cat owl"),
        ("Theory", "theory"),
        ("A-b", "ab"),
        ("a\nb", "b"),
        ("", ""),
    ),
    row_of(
        QUESTIONS,
        "em_check",
        "one of several",
        (("Paris", ["Rome", "paris"]), 1),
        (("Paris", "PARIS!"), 1),
        (("Paris, France", ["Paris"]), 0),
        (("Paris", []), 0),
    ),
    row_of(
        QUESTIONS,
        "subem_check",
        "a part of the answer",
        (("Paris, France", ["Rome", "paris"]), 1),
        (("Par", ["Paris"]), 0),
        (("in Paris", "Paris"), 1),
    ),
    row_of(
        QUESTIONS,
        "extract_solution",
        "the last pair of tags",
        ("<answer> a </answer>", "a"),
        ("<answer>a</answer><answer>b\nc</answer>", "b\nc"),
        ("<answer>a", None),
        ("a</answer>", None),
        ("<answer></answer>", ""),
    ),
    row_of(
        QUESTIONS,
        "count_answer_tags",
        "tags",
        ("<answer><answer></answer>", (2, 1)),
        ("x", (0, 0)),
        since="0.4",
    ),
)


def _programs(score: Callable[..., Any]) -> list[Any]:
    """Return the scores of programs that are called, that read lines, and that have a main block."""
    adds = {"fn_name": "f", "inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"]}
    pairs = {"fn_name": "f", "inputs": ["[1, 2]"], "outputs": ["[2, 1]"]}
    numbers, words = {"inputs": ["2\n"], "outputs": ["0.5\n"]}, {"inputs": ["x\n"], "outputs": ["a b\n"]}
    given: Sequence[tuple[Any, str]] = (
        (adds, "def f(a, b):\n    return a + b"),
        (adds, "class Solution:\n    def f(self, a, b):\n        return a + b"),
        (pairs, "def f(a):\n    return tuple(reversed(a))"),
        (numbers, "if __name__ == '__main__':\n    print(1 / int(input()))"),
        (numbers, "print(0.50000000001)"),
        (words, "import sys\nprint('a b  ')"),
    )
    found = []
    for tests, program in given:
        success, _ = score(f"```python\n{program}\n```", json.dumps(tests), continuous=True)
        found.append(float(success))
    return found


ROWS: Sequence[Row] = (
    Row(
        "rewards",
        f"{SCORES}prime_code:compute_score",
        "programs that are called and that read lines",
        _programs,
        [1.0] * 6,
    ),
    *_OF_NUMBERS,
    *_OF_BOXES,
    *_OF_MARKS,
    *_OF_QUESTIONS,
)
