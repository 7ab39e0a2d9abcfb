"""Made rows of TRL's setups: what training should see of columns, first tokens and rewards of their rows."""

import asyncio
from typing import Any

import pytest

from seatrial.relations.contracts.trainers import RolloutSpec
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.trl.made_rows import MARKERS, MadeRows
from seatrial.targets.trl.made_templates import BEGIN
from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.setups.rows import ROWS
from seatrial.targets.trl.tools import Turn
from seatrial.targets.trl.turns import Turns


def rows_of(name: str) -> MadeRows:
    """Return the rows of a setup."""
    return MadeRows(ROWS[name], tiny_tokenizer())


def applied(rows: MadeRows, row: dict[str, Any]) -> list[int]:
    """Return the ids of a row of conversations as a trainer should make them."""
    ids: list[int] = rows.tokenizer().apply_chat_template(
        row["prompt"] + row["completion"],
        tools=row["tools"],
        **row["chat_template_kwargs"],
        return_dict=False,
    )
    return ids


def test_examples_are_what_the_template_writes_with_a_rows_own_options() -> None:
    rows = rows_of("rows-sft-own")
    for row, example in zip(rows.data(6), rows.examples, strict=False):
        assert applied(rows, row) == [*example.prompt_ids, *example.completion_ids]
    plain = [{**row, "tools": None, "chat_template_kwargs": {}} for row in rows.data(4)]
    changed = [applied(rows, row) != applied(rows, one) for row, one in zip(rows.data(4), plain, strict=True)]
    assert changed == [True, False, True, True]


@pytest.mark.parametrize("name", ["rows-sft-begun", "rows-sft-several"])
def test_texts_alone_begin_with_the_tokenizers_own_token(name: str) -> None:
    rows = rows_of(name)
    tokenizer = rows.tokenizer()
    begin = tokenizer.convert_tokens_to_ids(BEGIN)
    assert tokenizer("a")["input_ids"][0] == begin
    for row, example in zip(rows.data(3), rows.examples, strict=False):
        ids = [*example.prompt_ids, *example.completion_ids]
        if isinstance(row["prompt"], str):
            assert ids == tokenizer(row["prompt"] + row["completion"])["input_ids"]
        else:
            given = row["prompt"] + row["completion"]
            assert ids == tokenizer.apply_chat_template(given, return_dict=False)
            assert ids.count(begin) == 4


def test_limits_keep_the_end_of_a_prompt_and_the_start_of_an_answer() -> None:
    rows = rows_of("rows-dpo-cut")
    for number, (row, example) in enumerate(zip(rows.data(6), rows.examples, strict=False)):
        assert example.prompt_ids == rows.ids_of(row["prompt"])[-5:]
        assert row["prompt"].endswith(MARKERS[number])
        assert example.rejected_ids == rows.ids_of(row["rejected"] + "<|im_end|>")[:6]


def rewards(rows: MadeRows, shift: int = 0, **given: Any) -> list[Any]:
    """Return what the first reward function gives two completions; their rows' column is another row's by a shift."""
    (first, *_) = rows.reward_functions()
    places = [(place + shift) % 2 for place in range(2)]
    asked = {"prompts": [MARKERS[0] + "a", MARKERS[1] + "b"], "completions": ["cd", "ef"], "place": places}
    found: list[Any] = first(**asked | given)
    return found


def test_a_reward_sees_what_belongs_to_another_row() -> None:
    rows = rows_of("rows-grpo-begun")
    right = [
        rows.rewards_of(text, one.prompt_ids)[0]
        for text, one in zip(("cd", "ef"), rows.examples, strict=False)
    ]
    ids = [list(rows.ids_of(text)) for text in ("cd", "ef")]
    assert rewards(rows) == rewards(rows, completion_ids=ids) == pytest.approx(right)
    for wrong in (rewards(rows, shift=1), rewards(rows, completion_ids=ids[::-1])):
        assert all(one > 2 + value for one, value in zip(wrong, right, strict=True))


def test_a_reward_is_awaited() -> None:
    first, second = rows_of("rows-grpo-awaited").reward_functions()
    given = {"prompts": [MARKERS[0]], "completions": ["ab"], "place": [0]}
    assert asyncio.run(first(**given)) == [pytest.approx(195 % 23 / 11 - 0.4)]
    assert second(**given) == [0.25]


def test_a_turn_is_cut_at_the_limit_of_a_completion() -> None:
    """A turn ends where its length is used up, and none follows results that are too long."""
    setup = Setup(
        trainer="GRPO",
        objective=RolloutSpec(),
        data="prompts",
        form="turns",
        tools="in turn",
        max_completion_length=40,
    )
    rows = MadeRows(setup, tiny_tokenizer())
    said = [Turn("ab", (("shout", "cd"),)), Turn("words")]
    prompt = rows.examples[0].prompt_ids
    for limit, kept in ((40, "words"), (33, "wo"), (20, None)):
        served = Turns(
            MadeRows(Setup(**{**vars(setup), "max_completion_length": limit}), tiny_tokenizer()), None
        )
        rollout: dict[str, Any] = {"prompt_ids": prompt}
        first = served.begin(rollout, tuple(said))
        served.next(prompt + first + rows.ids_of(said[0].suffix))
        text = rows.text(rollout["ids"])
        assert len(rollout["ids"]) <= max(limit, len(first))
        assert text.endswith(f"<{kept}") if kept else text == said[0].text
        contents = said[0].words + (f"CD{kept}" if kept else "")
        assert rollout["rewards"] == rows.rewards_of(contents, prompt)
