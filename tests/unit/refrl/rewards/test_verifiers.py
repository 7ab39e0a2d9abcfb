"""Verifiers give what is right, between 0 and 1, and what they cannot judge is counted."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refrl.config import ConfigError
from refrl.rewards import RewardError, VerifierError, make_verifier, make_weighted_verifier, score_completions


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
    assert make_verifier(name)(completion, answer) == pytest.approx(reward)


@given(completion=st.text(max_size=12), answer=st.text(alphabet="abc123", min_size=1, max_size=6))
@pytest.mark.parametrize("name", ["exact_match", "character_match", "byte_closeness"])
def test_the_full_reward_is_for_the_answer_alone(name: str, completion: str, answer: str) -> None:
    """1 exactly where the stripped completion is the answer, otherwise in [0, 1)."""
    reward = make_verifier(name)(completion, answer)
    assert 0.0 <= reward <= 1.0
    assert (reward == 1.0) == (completion.strip() == answer)


def test_an_unknown_verifier_is_refused_with_the_known_ones() -> None:
    """As `data.verifier` gives it."""
    with pytest.raises(ConfigError, match=r"'fuzzy' is unknown; known: .*exact_match"):
        make_verifier("fuzzy")


def test_each_completion_is_held_against_its_own_answer() -> None:
    """Rows are not shifted."""
    scores = score_completions(["a", "b", "c"], ["a", "x", "c"], make_verifier("exact_match"))
    assert list(scores.rewards) == [1.0, 0.0, 1.0]
    assert scores.num_errors == 0
    assert scores.first_error is None


def test_what_cannot_be_judged_is_counted_and_named() -> None:
    """It gets reward 0; the first message has its row."""
    scores = score_completions(["1", "2", "3"], ["1", "two", "three"], make_verifier("integer_match"))
    assert list(scores.rewards) == [1.0, 0.0, 0.0]
    assert scores.num_errors == 2
    assert scores.first_error is not None
    assert scores.first_error.startswith("row 1")
    assert "'two'" in scores.first_error


def test_whatever_a_verifier_raises_is_counted_and_named() -> None:
    """The verifier, the row, and the error in one line; the other rows are judged."""

    def broken(completion: str, answer: str) -> float:
        if completion == "b":
            raise KeyError("two\nlines")
        return 1.0

    scores = score_completions(["a", "b", "c"], ["a", "b", "c"], broken, first_row=10)
    assert list(scores.rewards) == [1.0, 0.0, 1.0]
    assert scores.num_errors == 1
    assert list(scores.failed) == [False, True, False]
    assert scores.first_error is not None
    assert scores.first_error.startswith("row 11: ")
    assert scores.first_error.endswith("broken raised KeyError: 'two\\nlines'")
    assert "\n" not in scores.first_error


def test_an_interrupt_is_no_error_of_a_verifier() -> None:
    """Ctrl-C ends the run."""

    def interrupted(completion: str, answer: str) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_completions(["a"], ["a"], interrupted)


OWN = """
class Strict:
    def __call__(self, completion, answer):
        return float(completion == answer)

class Needs:
    def __init__(self, something):
        pass

def half(completion, answer):
    return 0.5

def fails(completion, answer):
    raise RuntimeError("no network")

number = 3
"""


@pytest.fixture
def own_verifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a module of the user's own and return its name."""
    (tmp_path / "own_verifiers.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_verifiers"
    sys.modules.pop("own_verifiers", None)


def test_a_verifier_by_import_path_judges(own_verifiers: str) -> None:
    """A function, or a class of which one is made; alone or weighted with others."""
    assert make_verifier(f"{own_verifiers}:half")("a", "b") == 0.5
    assert make_verifier(f"{own_verifiers}:Strict")("a", "a") == 1.0
    assert make_weighted_verifier({f"{own_verifiers}:half": 1.0, "exact_match": 3.0})("a", "a") == 0.875


def test_an_error_within_a_weighted_verifier_names_its_part(own_verifiers: str) -> None:
    """And is counted as that part's."""
    verifier = make_weighted_verifier({"exact_match": 1.0, f"{own_verifiers}:fails": 1.0})
    scores = score_completions(["a"], ["a"], verifier)
    assert scores.first_error is not None
    assert "own_verifiers:fails raised RuntimeError: no network" in scores.first_error
    assert verifier.take_stats()[f"{own_verifiers}:fails"].num_errors == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_verifiers:number", "data.verifier=own_verifiers:number is no verifier"),
        ("own_verifiers:Needs", "data.verifier=own_verifiers:Needs: making one failed with TypeError"),
        ("own_verifiers:hald", "own_verifiers has no 'hald'; did you mean 'half'?"),
        ("exact_mach", "did you mean 'exact_match'?"),
    ],
)
def test_what_is_no_verifier_is_refused(own_verifiers: str, name: str, words: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(ConfigError) as caught:
        make_verifier(name)
    assert words in str(caught.value)


@pytest.mark.parametrize("reward", [None, "much", [1.0]])
def test_what_is_no_number_is_no_reward(reward: object) -> None:
    """A forgotten return is the most frequent."""
    with pytest.raises(RewardError, match=r"row 0: .* a reward is a number between 0 and 1"):
        score_completions(["a"], ["a"], lambda completion, answer: reward)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("completion", "near"),
    [
        ("print(7)", 1.0),
        ("```python\nprint(7)\n```", 1.0),
        ("print(", 1 - (ord("(") - ord(")")) ** 2 / 255 / 7),
    ],
)
def test_the_form_of_a_program(completion: str, near: float) -> None:
    """Full for `print(...)`; the answer is not looked at."""
    form = make_verifier("program_form")
    assert form(completion, "") == form(completion, "x")
    assert form(completion, "") <= 1.0
    if near == 1.0:
        assert form(completion, "") == 1.0
    assert form("", "") == 0.0 < form("zzz", "") < form("prinz", "") < 1.0


@pytest.mark.parametrize("reward", [math.nan, -0.1, 1.1, math.inf])
def test_a_reward_outside_its_range_is_refused(reward: float) -> None:
    """NaN among them: a reward that is no number would poison its whole group."""
    with pytest.raises(ValueError, match="row 0"):
        score_completions(["a"], ["a"], lambda completion, answer: reward)


def test_lists_of_unequal_length_are_refused() -> None:
    """No row is left out in silence."""
    with pytest.raises(ValueError, match="shorter"):
        score_completions(["a", "b"], ["a"], make_verifier("exact_match"))


def test_a_verifier_error_is_an_exception_of_its_own() -> None:
    """So that it is never confused with a bug."""
    assert not issubclass(VerifierError, ValueError)
