"""What worked runs of TRL's trainers judge: rows under limits, weights of BEMA, words of a command line."""

import jinja2
import pytest
import torch

from seatrial.targets.trl.worked import callbacks, launched, limits, shown
from seatrial.targets.trl.worked.adapter import FAILURES, OF_TRAINERS
from seatrial.targets.trl.worked.seen import Seen

FREE = [Seen(tuple(range(10, 20)), tuple(range(14, 20))), Seen((30, 31, 32), (31, 32))]
"""A row of four tokens of a prompt and six of an answer, and one that fits."""


def mistakes(found: list[Seen], limit: int | None = 6, *, keeps_end: bool = False) -> list[str]:
    """Return all that is said of rows."""
    wrong, emptied = limits._mistakes(found, FREE, limit, scores=False, keeps_end=keeps_end)
    return [*wrong, *emptied]


@pytest.mark.parametrize(
    "first",
    [
        Seen(tuple(range(10, 16)), (14, 15)),
        Seen((10, 11, 16, 17, 18, 19), (16, 17, 18, 19)),
        Seen((12, 13, 14, 15), (14, 15)),
    ],
)
def test_rows_may_be_cut_at_both_ends_and_between_prompt_and_answer(first: Seen) -> None:
    """Of the prompt and of the answer something is left."""
    assert mistakes([first, FREE[1]]) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([FREE[0], FREE[1]], "10 tokens of"),
        ([Seen((10, 11, 12, 13), ()), FREE[1]], "nothing is trained of"),
        ([Seen((14, 15, 16), (14, 15, 16)), FREE[1]], "nothing of the prompt is left of"),
        ([Seen((10, 11, 40), (40,)), FREE[1]], "no row has"),
        ([Seen((10, 11, 14, 15), (11, 14, 15)), FREE[1]], "is trained of"),
        ([Seen((10, 11, 14, 15), (14, 15))], "fits, and is not there"),
    ],
)
def test_rows_that_a_limit_breaks_are_named(found: list[Seen], words: str) -> None:
    """Each way in which a row can be wrong."""
    assert any(words in said for said in mistakes(found)), mistakes(found)


def test_the_end_may_be_kept_alone() -> None:
    """If the option says so."""
    assert mistakes([Seen((15, 16, 17), (15, 16, 17)), FREE[1]], keeps_end=True) == []


def test_weights_of_bema_are_worked_out() -> None:
    """By hand: lag 3, every second step after the first, of weights 0, 1, 2, 5."""
    steps = [{"w": torch.tensor([float(value)], dtype=torch.float64)} for value in (0, 1, 2, 5)]
    settings = {"update_freq": 2, "update_after": 1, "lag": 1, "ema_power": 0.5, "bias_power": 1.0}
    # At step 3: the age is 1 + 3, the share 1/2, the correction 1/4; the average (1 + 5) / 2, and 4 / 4 is added.
    assert float(callbacks.averaged(steps, settings)["w"]) == pytest.approx(4.0)
    assert float(callbacks.averaged(steps, {"update_freq": 1, "update_after": 9})["w"]) == 0.0


def test_options_become_words() -> None:
    """Lists become several words, and an empty one none."""
    assert launched._words({"a": 1, "b": [2, 3], "c": []}) == ["--a", "1", "--b", "2", "3"]


def test_runs_that_differ_are_told_apart() -> None:
    """By a tensor, by a tensor of one alone, and by what is logged."""
    run = ({"w": torch.ones(2)}, [{"loss": 1.0}])
    assert launched._differences(run, run) == []
    assert launched._differences(run, ({"w": torch.zeros(2)}, [{"loss": 1.0}])) == ["w"]
    assert "saved by one alone" in launched._differences(run, ({}, [{"loss": 1.0}]))[0]
    assert "loss of entry 0" in launched._differences(run, ({"w": torch.ones(2)}, [{"loss": 1.1}]))[0]


def test_failures_are_of_adapters_that_exist() -> None:
    """A renamed adapter takes its failures with it."""
    assert FAILURES.keys() <= OF_TRAINERS.keys()


def test_what_is_due_of_rows_is_cut_as_a_whole() -> None:
    """A prompt of two letters and an answer of three, with a first token; a prompt that fills the row is not there."""
    texts = [shown.Text("ab", "CDE"), shown.Text("abcd", "E")]
    (one,) = shown._due("DPO", texts, True, shown.Limit(5))
    assert len(one.ids) == 5
    assert one.trained == one.ids[3:]
    ends = shown._due("DPO", texts, True, shown.Limit(3, "keep_end"))
    assert sorted(len(one.trained) for one in ends) == [1, 2]
    assert all(one.ids[-len(one.trained) :] == one.trained for one in ends)


def test_pairs_that_are_too_long_are_not_due_for_scores() -> None:
    """Both of their answers are left out, and of the others the last token counts."""
    texts = [shown.Text("a", "B"), shown.Text("a", "BCD"), shown.Text("a", "C"), shown.Text("a", "D")]
    found = shown._due("Reward", texts, False, shown.Limit(3))
    assert [len(one.ids) for one in found] == [2, 2]
    assert all(one.trained == one.ids[-1:] for one in found)


def test_written_turns_are_those_of_the_template() -> None:
    """The texts that are due are worked out without the template."""
    turns = [{"role": "user", "content": "u"}]
    given = {"tools": shown.TOOLS, "mark": "M", "bos_token": "", "add_generation_prompt": True}
    text = jinja2.Template(shown.TEMPLATE).render(messages=turns, **given)
    assert text == shown._written(turns, True, tools=True, mark="M")
