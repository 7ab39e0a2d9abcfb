"""Worked examples of refrl's verifiers: answers, edges, several at once, failures, penalties on length."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from refrl.config import RewardShapingConfig
from refrl.rewards import Scores, score_completions
from refrl.rewards.scoring import join_scores, make_verifier, make_weighted_verifier, penalise_length
from refrl.rewards.verifiers import (
    VerifierError,
    VerifierTimeout,
    byte_closeness,
    character_match,
    exact_match,
    format_match,
    integer_match,
    judge,
    multiple_choice,
    soft_overlong_penalty,
)
from refrl.rewards.weighted import Part, WeightedVerifier
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, for_all, refused, rollouts


def several() -> WeightedVerifier:
    """Return three verifiers: one that judges all, one that fails on two texts, one that judges none."""
    return WeightedVerifier(
        [Part("exact", exact_match, 1.0), Part("fails", _fails, 3.0), Part("never", _never, 2.0)]
    )


def two() -> WeightedVerifier:
    """Return the first two of `several`."""
    return WeightedVerifier(several().parts[:2])


def _fails(completion: str, answer: str) -> float:
    if completion == "slow":
        raise VerifierTimeout("too slow")
    if completion == "broken":
        raise VerifierError("broken")
    return 0.75


def _never(completion: str, answer: str) -> float:
    raise VerifierError("never")


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_one_verifier()
    yield from _of_several()
    yield from _of_scores()
    yield from _of_lengths()


def _of_one_verifier() -> Iterator[WorkedExample]:
    for completion, answer, reward in (
        ("", "", 1.0),
        ("ab", "abc", 0.0),
        ("A", "a", 0.0),
        ("a b", "ab", 0.0),
    ):
        yield example(f"exact {completion!r}", reward, exact_match, completion, answer)
    for completion, answer, reward in (
        ("", "", 1.0),
        ("", "ab", 0.0),
        ("ab", "abcd", 0.5),
        ("xbx", "ab", 1 / 3),
    ):
        yield example(f"characters {completion!r} of {answer!r}", reward, character_match, completion, answer)
    for completion, answer, reward in (
        ("", "", 1.0),
        ("", "a", 0.0),
        ("ab", "a", 0.5),
        ("ca", "ac", 1 - 2 / 255),
    ):
        yield example(f"bytes {completion!r} of {answer!r}", reward, byte_closeness, completion, answer)
    for completion, answer, reward in (
        ("-07", "-7", 1.0),
        ("7.0", "7", 0.0),
        (" 7\n", "7", 1.0),
        ("+-7", "7", 0.0),
        ("", "0", 0.0),
        ("٧", "7", 0.0),
        ("-7", "7", 0.0),
    ):
        yield example(f"integer {completion!r}", reward, integer_match, completion, answer)
    yield refused("integer", "an answer that is no integer", integer_match, "7", "seven")
    for completion, answer, reward in (
        ("\\boxed{B} no, \\boxed{C}", "C", 1.0),
        ("\\boxed{C} no, \\boxed{B}", "C", 0.0),
        ("\\boxed{\\text{(D)}}", "(d)", 1.0),
        ("The answer is A, and \\boxed{B}", "B", 1.0),
        ("Answer: A. Option B", "B", 1.0),
        ("Option B, answer: A", "B", 0.0),
        ("(c).", "C", 1.0),
        ("A cat", "A", 0.0),
        ("the answer is a", "A", 1.0),
        ("", "A", 0.0),
    ):
        yield example(f"choice {completion!r}", reward, multiple_choice, completion, answer)
    yield refused("one letter", "an answer of two letters", multiple_choice, "A", "AB")
    yield example("a form with line ends", 1.0, format_match, "a\nb", "a.b")
    yield example("a form with more after it", 0.0, format_match, "ab ", "ab")
    yield refused("regular expression", "a form that is none", format_match, "a", "(")
    for value, right in ((1, 1.0), (True, 1.0), (0.0, 0.0), ("0.5", 0.5)):
        yield example(
            f"a verifier that gives {value!r}", right, judge, lambda one, other, of=value: of, "", ""
        )
    for bad in (math.nan, math.inf, -0.1, 1.1, "x", None):
        yield refused("gave", f"a verifier that gives {bad!r}", judge, lambda one, other, of=bad: of, "", "")
    yield refused("ZeroDivisionError", "a verifier that raises", judge, lambda one, other: 1 / 0, "", "")
    yield example("what a verifier is given", [(" c\n", "a ")], _given)
    yield refused("data.verifier='exact_matc'", "a name with a letter too few", make_verifier, "exact_matc")
    yield refused(
        "data.verifiers='exact_matc'", "one of several names", make_weighted_verifier, {"exact_matc": 1.0}
    )


def _given() -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []

    def verifier(completion: str, answer: str) -> float:
        seen.append((completion, answer))
        return 1.0

    judge(verifier, " c\n", "a ")
    return seen


def _of_several() -> Iterator[WorkedExample]:
    yield example("the weighted mean", 0.25 + 0.5625, two(), "a", "a")
    yield example("the weighted mean of a wrong answer", 0.5625, two(), "b", "a")
    yield example("full rewards are exactly 1", True, lambda: _full() == 1.0)
    yield from for_all({"full, no and mixed rewards of random weights": (_exact, 300)})
    for given in (None, "x", 1.5, -0.5, math.nan):
        verifier = WeightedVerifier(
            [Part("exact", exact_match, 1.0), Part("odd", lambda *_, of=given: of, 1.0)]
        )
        yield refused("gave", f"one of two that gives {given}", verifier, "a", "a")
    for order in (1, -1):
        verifier = WeightedVerifier([Part("raises", _raises, 9.0), *two().parts][::order])
        yield refused("raises: ", f"one of three that raises, in order {order}", verifier, "a", "a")
    yield refused("fails: too slow", "one of two that fails", two(), "slow", "slow")
    yield refused("fails: too slow; never: never", "two of three that fail", several(), "slow", "slow")
    yield example("every part is called after a failure", _CALLS, _calls)
    yield example("statistics begin again", (1, 1, 0), _taken_twice)
    yield refused("different names", "no verifier", WeightedVerifier, [])
    yield refused("different names", "equal names", WeightedVerifier, [several().parts[0]] * 2)
    for weight in (0.0, math.inf, -1.0):
        yield refused(
            "positive", f"a weight of {weight}", WeightedVerifier, [Part("one", exact_match, weight)]
        )


def _exact(stream: random.Random) -> bool:
    """Return whether full rewards give exactly 1, none exactly 0, and mixed ones the mean of exact fractions."""
    weights = [stream.randrange(1, 99) / 10 for _ in range(stream.randrange(1, 7))]
    rewards = [stream.randrange(9) / 8 for _ in weights]
    mean = sum(Fraction(weight) * Fraction(one) for weight, one in zip(weights, rewards, strict=True))
    exact = float(mean / sum(map(Fraction, weights)))
    found = [_mean(weights, given) for given in ([1.0] * len(weights), [0.0] * len(weights), rewards)]
    return found[:2] == [1.0, 0.0] and abs(found[2] - exact) <= 3 * math.ulp(exact)


def _mean(weights: Sequence[float], rewards: Sequence[float]) -> float:
    parts = [
        Part(str(number), lambda *_, of=reward: of, weight)
        for number, (weight, reward) in enumerate(zip(weights, rewards, strict=True))
    ]
    return WeightedVerifier(parts)("a", "b")


def _raises(completion: str, answer: str) -> float:
    raise KeyError(completion)


_CALLS = {"exact": (1, 0, 0, 0.0), "fails": (1, 1, 1, 0.0), "never": (1, 1, 0, 0.0)}
"""Calls, errors, time-outs and rewards of each part after one completion that is too slow."""


def _calls() -> dict[str, Any]:
    verifier = several()
    with contextlib.suppress(VerifierError):
        verifier("slow", "a")
    return {
        name: (one.num_calls, one.num_errors, one.num_timeouts, one.total_reward)
        for name, one in verifier.take_stats().items()
    }


def _taken_twice() -> tuple[int, int, int]:
    verifier = two()
    counts = []
    for calls in (1, 1, 0):
        for _ in range(calls):
            verifier("a", "a")
        counts.append(verifier.take_stats()["exact"].num_calls)
    return counts[0], counts[1], counts[2]


def _full() -> float:
    return make_weighted_verifier({"exact_match": 0.1, "character_match": 0.2, "byte_closeness": 0.7})(
        "a", "a"
    )


def _plain(scores: Scores) -> dict[str, Any]:
    return {
        "rewards": list(scores.rewards),
        "errors": (scores.num_errors, scores.first_error, list(scores.failed)),
        "penalties": scores.penalties,
        "verified": list(scores.verified),
    }


def _of_scores() -> Iterator[WorkedExample]:
    yield example(
        "rows of which two fail",
        {
            "rewards": [0.8125, 0.0, 0.0, 0.5625],
            "errors": (2, "row 11: fails: too slow", [False, True, True, False]),
            "penalties": None,
            "verified": [0.8125, 0.0, 0.0, 0.5625],
        },
        lambda: _plain(
            score_completions(["a", "slow", "broken", "b"], ["a", "a", "a", "a"], two(), first_row=10)
        ),
    )
    yield refused(
        "row 3: ", "a reward beyond 1", score_completions, ["a"], ["a"], lambda one, other: 2.0, first_row=3
    )
    yield refused("", "answers of other rows", score_completions, ["a", "b"], ["a"], exact_match)
    shaped, plain = rollouts().scores, Scores([0.5], 1, "row 9: no", failed=[True])
    yield example(
        "chosen rows in another order",
        {
            "rewards": [-0.5, 0.0, 1.0],
            "errors": (1, "row 2: no", [False, True, False]),
            "penalties": [-0.5, 0.0, 0.0],
            "verified": [0.0, 0.0, 1.0],
        },
        lambda: _plain(shaped.rows([3, 2, 0])),
    )
    yield example(
        "chosen rows without a failure",
        {
            "rewards": [0.25],
            "errors": (0, None, [False]),
            "penalties": [-0.25],
            "verified": [0.5],
        },
        lambda: _plain(shaped.rows([1])),
    )
    yield example(
        "joined parts",
        {
            "rewards": [0.5, 0.5],
            "errors": (2, "row 9: no", [True, True]),
            "penalties": None,
            "verified": [0.5, 0.5],
        },
        lambda: _plain(join_scores([plain, plain])),
    )
    yield example(
        "joined parts with penalties",
        {
            "rewards": [-0.5, 0.25],
            "errors": (0, None, [False, False]),
            "penalties": [-0.5, -0.25],
            "verified": [0.0, 0.5],
        },
        lambda: _plain(join_scores([shaped.rows([3]), shaped.rows([1])])),
    )


def _of_lengths() -> Iterator[WorkedExample]:
    for tokens, right in ((0, 0.0), (6, 0.0), (7, -0.25), (10, -1.0), (11, -1.0)):
        yield example(
            f"a penalty on {tokens} tokens", right, soft_overlong_penalty, tokens, max_length=10, buffer=4
        )
    yield refused("buffer", "a buffer longer than all", soft_overlong_penalty, 1, max_length=3, buffer=4)
    config = RewardShapingConfig(enabled=True, overlong_buffer_length=4, overlong_buffer_penalty=0.5)
    scores = Scores([1.0, 0.5, 0.0], 0, None, failed=[False] * 3)
    yield example(
        "penalties of rows",
        {
            "rewards": [1.0, 0.375, -0.5],
            "errors": (0, None, [False, False, False]),
            "penalties": [0.0, -0.125, -0.5],
            "verified": [1.0, 0.5, 0.0],
        },
        lambda: _plain(penalise_length(scores, [6, 7, 12], config, 10)),
    )
    shorter = config.model_copy(update={"max_response_length": 8})
    yield example(
        "penalties at a length of their own",
        [0.75, 0.125, -0.5],
        lambda: list(penalise_length(scores, [6, 7, 12], shorter, 10).rewards),
    )
    off = RewardShapingConfig()
    yield example("no penalty", True, lambda: penalise_length(scores, [6, 7, 12], off, 10) is scores)
    yield example(  # 3 sampled tokens of 5: a tool wrote two
        "a penalty on sampled tokens alone",
        [-0.25, -0.25],
        lambda: list(rollouts().rows([0, 1]).penalised(config, 5).scores.penalties or ()),
    )


_ECHO = "```python\nprint(input())\n```"
_TESTS = [
    {"stdin": "a\n", "stdout": "a"},
    {"stdin": "b\n", "stdout": "c"},
    {"stdin": "d\n", "stdout": "d \n\n"},
]
