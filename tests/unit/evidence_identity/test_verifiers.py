"""Answers and rewards worked out again from the prompt, against Python's own arithmetic and cases by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.evidence.ledger.laws.rewards import REWARDS, answer_of


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_sums(left: int, right: int) -> None:
    """Python adds as well."""
    assert answer_of(f"{left}+{right}=") == str(left + right)


@given(st.text("abcdefgh", max_size=12))
def test_reversed_words(word: str) -> None:
    """Slicing backwards is another way."""
    assert answer_of(f"reverse {word}=") == word[::-1]


@given(st.sampled_from("abc"), st.text("abc", min_size=1, max_size=12))
def test_letters(letter: str, word: str) -> None:
    """`str.count` is another way."""
    assert answer_of(f"count {letter} in {word}=") == str(word.count(letter))


@pytest.mark.parametrize("prompt", ["", "reverse", "12+=", "12+7", "count ab in abc=", "What is 1+1="])
def test_another_form_has_no_answer(prompt: str) -> None:
    """Nothing is guessed."""
    assert answer_of(prompt) is None


@pytest.mark.parametrize(
    ("rule", "completion", "answer", "reward"),
    [
        ("exact_match", "19", "19", 1.0),
        ("exact_match", " 19\n", "19", 1.0),
        ("exact_match", "019", "19", 0.0),
        ("exact_match", "", "19", 0.0),
        ("character_match", "cba", "cba", 1.0),
        ("character_match", "cbx", "cba", 2 / 3),
        ("character_match", "cbaa", "cba", 3 / 4),
        ("character_match", "", "cba", 0.0),
        ("character_match", "ac", "cba", 0.0),
        ("integer_match", "007", "7", 1.0),
        ("integer_match", "+7", "7", 1.0),
        ("integer_match", "-7", "7", 0.0),
        ("integer_match", "-0", "0", 1.0),
        ("integer_match", "7.0", "7", 0.0),
        ("byte_closeness", "a", "a", 1.0),
        ("byte_closeness", "b", "a", 254 / 255),
        ("byte_closeness", "ab", "a", 0.5),
        ("byte_closeness", "", "a", 0.0),
        ("program_form", "\n print(3+4) ", "", 1.0),
        ("program_form", "pr)", "", 3 / 7),
        ("program_form", ")", "", 1 / 7),
        ("program_form", "", "", 0.0),
    ],
)
def test_rewards(rule: str, completion: str, answer: str, reward: float) -> None:
    """By hand."""
    assert REWARDS[rule](completion, answer) == pytest.approx(reward, abs=1e-12)


@given(st.sampled_from(sorted(REWARDS)), st.text(max_size=10), st.sampled_from(["cba", "19", "0", "x y"]))
def test_rewards_lie_between_zero_and_one(rule: str, completion: str, answer: str) -> None:
    """Whatever is said; an answer that is no integer cannot be judged as one."""
    reward = REWARDS[rule](completion, answer)
    if rule == "integer_match" and answer in ("cba", "x y"):
        assert math.isnan(reward)
    else:
        assert 0.0 <= reward <= 1.0
