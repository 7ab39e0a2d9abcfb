"""Ten thousand hostile expressions: never a traceback, never a Pass, bounded memory."""

from __future__ import annotations

import math
import random
import string
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from seatrial.checks import evaluate_check, lint_check, parse_check
from seatrial.errors import UsageError
from seatrial.evidence.runlog import RunLog, Series
from seatrial.verdict import Outcome

NUM_EXPRESSIONS = 10_000
NUM_SHARDS = 10
MEMORY_LIMIT = 64 * 2**20
"""Bytes that reading one expression of 10 MB may take beyond the expression itself."""

VALID = (
    'max(data["train/loss"]) < 2',
    'mean(data["train/loss"], -6, -1) < 1.1 * data["train/loss"]["1"]',
    'ratio_above(data["train/loss"], 1.05, last(3)) < 0.02 and "2" in data["train/loss"]',
    'not (slope(data["train/loss"], steps(1, 9)) > 0 or std(data["train/loss"], after(2)) >= 1)',
    'max(abs(data["train/loss"] - run("old")["train/loss"])) <= 0.1',
    '0 < quantile(data["train/loss"], 0.5) != 3',
)
WALKS = (
    "().__class__.__base__.__subclasses__()",
    "data.__class__.__mro__[1]",
    'data["x"].__init__.__globals__["os"].system("true") == 0',
    "getattr(data, '__class__') == 1",
    '__import__("os").system("true") == 0',
    "(lambda: exit(0))() == 1",
    "[c for c in ().__class__.__bases__] == 1",
    "exec('x=1') == None",
    "eval('1') == 1",
    "open('/etc/passwd').read() == ''",
    "f'{data}' == ''",
    "print(data) == None",
    "max.__self__ == 1",
    "data.clear() == None",
    "breakpoint() == 1",
    "globals()['__builtins__'] == 1",
    "type('X', (), {})() == 1",
    "(yield) == 1",
    "await data == 1",
    "{**data} == 1",
    "data['x'] @ data['y'] == 1",
    "data['x'][...] < 1",
    "data['x'][::2] < 1",
    "`true` == 0",
    "x = 1",
    "import os",
)
LOOK_ALIKES = {
    "a": "а",
    "e": "е",
    "x": "х",
    "<": "＜",
    "(": "（",
    '"': "“",
    "1": "１",
    "-": "−",
    " ": "\u00a0",
    "m": "ｍ",
}
TOKENS = (
    'data["train/loss"]', 'run("old")["train/loss"]', '["1"]', "max(", "mean(", "min", "(", ")", "[", "]", ",", "<",
    ">=", "==", "!=", "in", "not", "and", "or", "+", "-", "*", "/", "**", "//", "1", "0.5", "1e18", "1e400", "True",
    "None", "last(2)", "steps(1,2)", "after(1)", "ignore_top_p=0.5", "data", '"1"', "is", "if",
    "else", "lambda", ":", ".", "@",
    "1j", "nan", "inf", "quantile(", "abs(", "len(", "\x00", "\n", "é", "\\", "'", '"', "#", "{", "}", ";", "$",
    "~", "0x1",
)  # fmt: skip


def _attribute_walk(rng: random.Random) -> str:
    return (
        rng.choice(("", "max(", "not ", "1 < "))
        + rng.choice(WALKS)
        + rng.choice(("", " < 1", ")", " or True"))
    )


def _huge_number(rng: random.Random) -> str:
    number = rng.choice(
        ("9" * rng.randrange(1, 1500), "9**9**9", "2 ** 10000000", "1e400", "1" + "0" * 400, "10**10**10")
    )
    return f'max(data["train/loss"]) {rng.choice("<>")} {number}'


def _deep(rng: random.Random) -> str:
    depth = 10 ** rng.randrange(1, 6)
    opening, closing = rng.choice(
        (("(", ")"), ("[", "]"), ("-", ""), ("not ", ""), ("abs(", ")"), ("data[", "]"), ("{", "}"))
    )
    return opening * depth + 'data["train/loss"]["1"]' + closing * depth + " < 1"


def _look_alike(rng: random.Random) -> str:
    text = rng.choice(VALID)
    places = [place for place, character in enumerate(text) if character in LOOK_ALIKES]
    for place in rng.sample(places, rng.randrange(1, min(4, len(places)))):
        text = text[:place] + LOOK_ALIKES[text[place]] + text[place + 1 :]
    return text


def _mutated(rng: random.Random) -> str:
    text = list(rng.choice(VALID))
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(text))
        change = rng.randrange(4)
        if change == 0:
            text[place] = chr(
                rng.choice((rng.randrange(32, 127), rng.randrange(0, 0x3000), rng.randrange(0xD800, 0xE000)))
            )
        elif change == 1:
            del text[place]
        elif change == 2:
            text.insert(place, rng.choice(string.printable))
        else:
            text[place:place] = text[rng.randrange(len(text)) :][: rng.randrange(10)]
        text = text or ["x"]
    return "".join(text)


def _soup(rng: random.Random) -> str:
    return rng.choice(("", " ")).join(rng.choices(TOKENS, k=rng.randrange(1, 40)))


def _wide(rng: random.Random) -> str:
    piece = rng.choice(
        ('data["train/loss"]["1"] + ', 'max(data["train/loss"]) < 1 and ', "1 < ", "1 + ", '"a" ')
    )
    return piece * rng.randrange(1, 3000) + 'data["train/loss"]["1"] < 1'


KINDS: tuple[Callable[[random.Random], str], ...] = (
    _attribute_walk, _huge_number, _deep, _look_alike, _mutated, _mutated, _soup, _soup, _wide,
)  # fmt: skip


def _log(values: list[float]) -> RunLog:
    series = Series(
        tag="train/loss", steps=np.arange(1, len(values) + 1), values=np.array(values, dtype=float)
    )
    return RunLog(sources=["by hand"], series={"train/loss": series})


HOPELESS = (_log([]), _log([math.nan] * 9), _log([math.inf] * 9), RunLog(sources=[], series={}))
"""Logs on which nothing may pass, whatever is asked."""
SOUND = _log([1.0, 0.9, 0.8, 0.7, 0.6])


@pytest.mark.fuzz
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(NUM_SHARDS))
def test_hostile_expressions_are_refused_or_fail(seed: int) -> None:
    rng = random.Random(seed)
    accepted = refused = 0
    for number in range(NUM_EXPRESSIONS // NUM_SHARDS):
        kind = rng.choice(KINDS)
        text = kind(rng)
        try:
            check = parse_check(text)
        except UsageError as error:
            refused += 1
            assert len(str(error)) < 1500, (seed, number, text[:200])
            continue
        accepted += 1
        assert kind is not _attribute_walk, (seed, number, text)
        lint_check(check, known_tags=["a"], max_num_steps=3)
        for log in (*HOPELESS, SOUND):
            try:
                verdict = evaluate_check(check, log, runs={"old": log})
            except UsageError as error:
                assert "not given" in str(error)
                continue
            assert log is SOUND or verdict.outcome is Outcome.FAIL, (seed, number, text, verdict)
            verdict.to_json()
    assert refused > 500 and accepted > 5, "both sides are tried"


@pytest.mark.fuzz
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "piece", ["(", "-", "x", '"', "1", "not ", '["', "a.", "\x00", "é", "max(data['x'])<1 or "]
)
def test_ten_megabytes_are_refused_at_once(piece: str) -> None:
    text = piece * (10 * 2**20 // len(piece))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="at most"):
            parse_check(text)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT
    finally:
        tracemalloc.stop()
