"""Mathematics, choices, code, format, length, and several at once: right, wrong, and what cannot be judged."""

import json

import pytest

from refrl.rewards import VerifierError, VerifierTimeout, make_verifier, score_completions
from refrl.rewards.code import extract_code
from refrl.rewards.math import MathVerifier
from refrl.rewards.verifiers import soft_overlong_penalty
from refrl.rewards.weighted import Part, WeightedVerifier

ADDS = json.dumps([{"stdin": "2 3\n", "stdout": "5\n"}, {"stdin": "1 1\n", "stdout": "2"}])


@pytest.mark.parametrize(
    ("name", "completion", "answer", "reward"),
    [
        ("math_equivalence", "so it is $\\frac{1}{2}$", "0.5", 1.0),
        ("math_equivalence", "\\boxed{1/2}", "\\frac{1}{2}", 1.0),
        ("math_equivalence", "\\boxed{x^2+2x+1}", "(x+1)^2", 1.0),
        ("math_equivalence", "The answer is 42.", "42", 1.0),
        ("math_equivalence", "\\boxed{2}", "3", 0.0),
        ("math_equivalence", "\\boxed{-3}", "3", 0.0),
        ("math_equivalence", "no idea", "3", 0.0),
        ("math_equivalence", "", "3", 0.0),
        ("multiple_choice", "I take \\boxed{C}", "C", 1.0),
        ("multiple_choice", "A is wrong. The answer is (B).", "B", 1.0),
        ("multiple_choice", "Answer: A. No: the answer is D", "D", 1.0),
        ("multiple_choice", " (c) ", "C", 1.0),
        ("multiple_choice", "Answer: A", "B", 0.0),
        ("multiple_choice", "A or B, who knows", "A", 0.0),
        ("multiple_choice", "", "A", 0.0),
        ("format_match", "<think>a\nb</think>7", r"<think>.*</think>\d+", 1.0),
        ("format_match", "<think>a</think>7 or so", r"<think>.*</think>\d+", 0.0),
        ("code_output", "a, b = map(int, input().split())\nprint(a + b)", ADDS, 1.0),
        ("code_output", "Here:\n```python\nprint(sum(map(int, input().split())))\n```\nDone.", ADDS, 1.0),
        ("code_output", "print(5)", ADDS, 0.5),
        ("code_output", "print(5)\nraise SystemExit(1)", ADDS, 0.0),
        ("code_output", "not python", ADDS, 0.0),
        ("code_output", "", ADDS, 0.0),
    ],
)
def test_rewards_known_by_hand(name: str, completion: str, answer: str, reward: float) -> None:
    """Golden answers, wrong ones, and none."""
    assert make_verifier(name)(completion, answer) == reward


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("math_equivalence", ""),
        ("multiple_choice", "maybe"),
        ("format_match", "(unclosed"),
        ("code_output", "5"),
        ("code_output", "[]"),
        ("code_output", '[{"stdin": 1, "stdout": 2}]'),
    ],
)
def test_an_answer_that_nothing_can_be_held_against_is_counted(name: str, answer: str) -> None:
    """Never a silent 0."""
    scores = score_completions(["1"], [answer], make_verifier(name))
    assert scores.num_errors == 1
    assert scores.first_error is not None


def test_the_last_fenced_block_is_the_program() -> None:
    """Drafts stand before it."""
    assert extract_code("```\ndraft\n```\nbetter:\n```py\nfinal\n```") == "final\n"


def test_mathematics_that_takes_too_long_is_a_time_out_and_the_next_is_judged() -> None:
    """The process is ended and another started."""
    verifier = MathVerifier(timeout_seconds=60)
    try:
        assert verifier("\\boxed{4}", "4") == 1.0
        verifier.timeout_seconds = 0.0
        with pytest.raises(VerifierTimeout, match="within 0 s"):
            verifier("\\boxed{9^{9^{9}}}", "5")
        verifier.timeout_seconds = 60
        assert verifier("\\boxed{4}", "5") == 0.0
    finally:
        verifier.close()


@pytest.mark.parametrize(
    ("num_tokens", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.05), (90, -0.5), (100, -1.0), (500, -1.0)]
)
def test_the_length_penalty_is_piecewise_linear(num_tokens: int, penalty: float) -> None:
    """DAPO's equation 13 by hand: length 100, buffer 20."""
    assert soft_overlong_penalty(num_tokens, max_length=100, buffer=20) == pytest.approx(penalty)


def test_a_buffer_beyond_the_length_is_refused() -> None:
    """It would punish every completion."""
    with pytest.raises(ValueError, match="buffer=30"):
        soft_overlong_penalty(1, max_length=20, buffer=30)


def _late(completion: str, answer: str) -> float:
    raise VerifierTimeout("too late")


def test_several_verifiers_are_a_weighted_mean_with_figures_of_each() -> None:
    """3 parts exact, 1 part format."""
    verifier = WeightedVerifier(
        [
            Part("exact", make_verifier("exact_match"), 3.0),
            Part("closeness", make_verifier("character_match"), 1.0),
        ]
    )
    assert verifier("ab", "ab") == 1.0
    assert verifier("ax", "ab") == pytest.approx(1 / 8)
    exact = verifier.stats["exact"]
    assert (exact.num_calls, exact.num_errors, exact.total_reward) == (2, 0, 1.0)
    assert exact.seconds > 0


def test_a_part_that_fails_is_counted_and_the_others_are_still_asked() -> None:
    """The whole is an error, and not a smaller reward."""
    verifier = WeightedVerifier([Part("late", _late, 1.0), Part("exact", make_verifier("exact_match"), 1.0)])
    scores = score_completions(["a", "b"], ["a", "b"], verifier)
    assert (scores.num_errors, scores.first_error) == (2, "row 0: late: too late")
    late = verifier.stats["late"]
    assert (late.num_calls, late.num_errors, late.num_timeouts) == (2, 2, 2)
    assert verifier.stats["exact"].total_reward == 2.0


@pytest.mark.parametrize(
    "parts",
    [[], [Part("a", _late, 1.0), Part("a", _late, 1.0)], [Part("a", _late, 0.0)]],
    ids=["none", "one name twice", "no weight"],
)
def test_parts_that_make_no_sense_are_refused(parts: list[Part]) -> None:
    """Names tell the figures apart."""
    with pytest.raises(ValueError, match=r"different names|positive"):
        WeightedVerifier(parts)


def test_an_unjudged_part_does_not_change_the_error_kind() -> None:
    """`VerifierTimeout` is a `VerifierError`: whoever counts errors counts it."""
    with pytest.raises(VerifierError):
        _late("", "")
