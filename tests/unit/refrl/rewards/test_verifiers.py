"""Verifiers give what is right, between 0 and 1, and what they cannot judge is counted."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refrl.config import ConfigError
from refrl.rewards import VERIFIERS, VerifierError, make_verifier, score_completions


@pytest.mark.parametrize(
    ("name", "completion", "answer", "reward"),
    [
        ("exact_match", "cba", "cba", 1.0),
        ("exact_match", " cba\n", "cba", 1.0),
        ("exact_match", "cbaa", "cba", 0.0),
        ("exact_match", "", "cba", 0.0),
        ("exact_match", "CBA", "cba", 0.0),
        ("character_match", "cba", "cba", 1.0),
        ("character_match", "cbx", "cba", 2 / 3),
        ("character_match", "cb", "cba", 2 / 3),
        ("character_match", "cbaxxx", "cba", 1 / 2),
        ("character_match", "xcba", "cba", 0.0),
        ("character_match", "", "cba", 0.0),
        ("byte_closeness", "cba", "cba", 1.0),
        ("byte_closeness", "a", "b", 1 - 1 / 255),
        ("byte_closeness", "aa", "a", 1 / 2),
        ("byte_closeness", "", "a", 0.0),
        ("integer_match", "19", "19", 1.0),
        ("integer_match", " 019 ", "19", 1.0),
        ("integer_match", "-3", "-3", 1.0),
        ("integer_match", "+3", "3", 1.0),
        ("integer_match", "+-3", "3", 0.0),
        ("integer_match", "1_9", "19", 0.0),
        ("integer_match", "19.0", "19", 0.0),
        ("integer_match", "١٩", "19", 0.0),
        ("integer_match", "9" * 5000, "19", 0.0),
        ("integer_match", "", "19", 0.0),
    ],
)
def test_known_rewards(name: str, completion: str, answer: str, reward: float) -> None:
    """Each by hand."""
    assert VERIFIERS[name](completion, answer) == pytest.approx(reward)


@given(completion=st.text(max_size=12), answer=st.text(alphabet="abc123", min_size=1, max_size=6))
@pytest.mark.parametrize("name", ["exact_match", "character_match", "byte_closeness"])
def test_the_full_reward_is_for_the_answer_alone(name: str, completion: str, answer: str) -> None:
    """1 exactly where the stripped completion is the answer, otherwise in [0, 1)."""
    reward = VERIFIERS[name](completion, answer)
    assert 0.0 <= reward <= 1.0
    assert (reward == 1.0) == (completion.strip() == answer)


def test_an_unknown_verifier_is_refused_with_the_known_ones() -> None:
    """As `data.verifier` gives it."""
    with pytest.raises(ConfigError, match=r"'fuzzy' is unknown; known: .*exact_match"):
        make_verifier("fuzzy")


def test_each_completion_is_held_against_its_own_answer() -> None:
    """Rows are not shifted."""
    scores = score_completions(["a", "b", "c"], ["a", "x", "c"], VERIFIERS["exact_match"])
    assert list(scores.rewards) == [1.0, 0.0, 1.0]
    assert scores.num_errors == 0
    assert scores.first_error is None


def test_what_cannot_be_judged_is_counted_and_named() -> None:
    """It gets reward 0; the first message has its row."""
    scores = score_completions(["1", "2", "3"], ["1", "two", "three"], VERIFIERS["integer_match"])
    assert list(scores.rewards) == [1.0, 0.0, 0.0]
    assert scores.num_errors == 2
    assert scores.first_error is not None
    assert scores.first_error.startswith("row 1")
    assert "'two'" in scores.first_error


def test_other_errors_of_a_verifier_are_not_swallowed() -> None:
    """A bug in a verifier ends the run; only VerifierError is an answer."""

    def broken(completion: str, answer: str) -> float:
        raise KeyError(answer)

    with pytest.raises(KeyError):
        score_completions(["a"], ["a"], broken)


@pytest.mark.parametrize("reward", [math.nan, -0.1, 1.1, math.inf])
def test_a_reward_outside_its_range_is_refused(reward: float) -> None:
    """NaN among them: a reward that is no number would poison its whole group."""
    with pytest.raises(ValueError, match="row 0"):
        score_completions(["a"], ["a"], lambda completion, answer: reward)


def test_lists_of_unequal_length_are_refused() -> None:
    """No row is left out in silence."""
    with pytest.raises(ValueError, match="shorter"):
        score_completions(["a", "b"], ["a"], VERIFIERS["exact_match"])


def test_a_verifier_error_is_an_exception_of_its_own() -> None:
    """So that it is never confused with a bug."""
    assert not issubclass(VerifierError, ValueError)
