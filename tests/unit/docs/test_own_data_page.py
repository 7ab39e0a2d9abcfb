"""docs/use/own_data.md: each option it names exists, and its messages are those that are printed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from refrl.config import ConfigError, DataConfig
from refrl.recipes import recipe_names
from refrl.rewards import make_verifier
from refrl.tasks import make_splits

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "use" / "own_data.md").read_text()


def test_every_option_that_is_named_exists() -> None:
    """Of the section `data`."""
    named = set(re.findall(r"`data\.(\w+)", PAGE))
    assert named
    assert named - set(DataConfig.model_fields) == set()


def test_every_recipe_that_is_named_exists() -> None:
    """By its name."""
    named = set(re.findall(r"(?:sft|grpo)-[a-z-]+", PAGE))
    assert named - set(recipe_names()) == set()


def test_the_message_about_a_row_is_the_one_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With file, line, column, option and the columns that there are."""
    monkeypatch.chdir(tmp_path)
    good, bad = {"question": "1+1=", "result": {"value": 2}}, {"prompt": "1+1=", "result": {"value": 2}}
    Path("problems.jsonl").write_text("\n".join(map(json.dumps, [good, {**good, "question": "x"}, bad])))
    with pytest.raises(ConfigError) as caught:
        make_splits(DataConfig(train_path="problems.jsonl", prompt_key="question", answer_key="result.value"))
    assert f"refrl grpo: {caught.value}" in PAGE


def test_the_row_of_code_on_the_page_is_judged_by_running(tmp_path: Path) -> None:
    """Its answer is read by the verifier of code."""
    (row,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "rows.jsonl").write_text(row + row.replace("two", "2"))
    (example,) = make_splits(DataConfig(train_path=str(tmp_path / "rows.jsonl"))).train
    judge = make_verifier("code_output")
    assert judge("print(sum(map(int, input().split())))", example.answer) == 1.0
    assert judge("print(4)", example.answer) == 0.0
