"""Runs on rows of a file: what is left out is printed, what a verifier cannot judge is counted, ids follow prompts."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from refrl.config import ConfigError, GRPORunConfig, SFTRunConfig, load_config
from refrl.recipes import recipe_path
from refrl.tasks.examples import stable_id
from refrl.tasks.files.jsonl import JsonLines
from refrl.training.grpo import run_grpo
from refrl.training.sft import run_sft
from seatrial.evidence.read import read_logs

Overrides = Callable[[str], list[str]]
SMALL = (
    "policy.train_global_batch_size=16", "policy.train_micro_batch_size=16", "policy.max_total_sequence_length=48",
)  # fmt: skip


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def logged_rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "train_data_step1.jsonl").read_text().splitlines()]


GRADER = """
def grade(completion, answer):
    if answer == "5":
        raise LookupError("no such answer")
    return len(completion) / 100
"""


def test_grpo_trains_on_rows_with_a_verifier_of_ones_own(
    overrides: Overrides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of both files are left out of training; rewards and ids are those of the rows; failures are counted."""
    (tmp_path / "grader_of_rows.py").write_text(GRADER)
    monkeypatch.chdir(tmp_path)
    train = write(tmp_path / "train.jsonl", [{"prompt": f"say {n}:", "answer": n} for n in range(8)])
    test = write(tmp_path / "test.jsonl", [{"prompt": f"say {n}:", "answer": n} for n in (6, 7, 9)])
    words = [
        *overrides("own"), *SMALL, f"data.train_path={train}", f"data.validation_path={test}",
        "data.on_overlap=drop", "data.verifier=grader_of_rows:grade", "grpo.max_num_steps=1",
        "grpo.num_prompts_per_step=6", "grpo.num_generations_per_prompt=8", "grpo.val_period=0",
    ]  # fmt: skip
    run_grpo(load_config(GRPORunConfig, recipe_path("grpo-own-data"), words))
    shown = capsys.readouterr().out
    assert "data: 2 of 8 prompts of data.train_path are in data.validation_path too and are left out" in shown
    assert "8 verifier errors: row " in shown
    assert "grader_of_rows:grade raised LookupError: no such answer" in shown
    rows = logged_rows(tmp_path / "own" / "logs")
    assert {row["prompt"] for row in rows} == {f"say {n}:" for n in range(6)}
    for row in rows:
        assert row["prompt_id"] == stable_id(row["prompt"])
        assert row["reward"] == (0.0 if row["answer"] == "5" else pytest.approx(len(row["completion"]) / 100))
    log = read_logs(tmp_path / "own" / "logs")
    assert log.series["train/num_verifier_errors"].values.tolist() == [8.0]


def test_fine_tuning_learns_the_column_that_is_named(overrides: Overrides, tmp_path: Path) -> None:
    """After enough steps on six rows the model says what stands there, and not the answer."""
    rows = [{"prompt": f"say {n}:", "answer": n, "said": f"it is {n}"} for n in range(6)]
    words = [
        *overrides("sft"), *SMALL, f"data.train_path={write(tmp_path / 'train.jsonl', rows)}",
        "data.solution_key=said", "data.num_validation=1", "sft.max_num_steps=60", "sft.val_period=0",
        "sft.stop_at_accuracy=null", "sft.val_at_end=true", "sft.val_greedy=true",
    ]  # fmt: skip
    run_sft(load_config(SFTRunConfig, recipe_path("sft-own-data"), words))
    (line,) = (tmp_path / "sft" / "logs" / "validation_data_step60.jsonl").read_text().splitlines()
    assert json.loads(line)["completion"].startswith("it is ")


def test_rows_are_read_when_they_are_drawn(
    overrides: Overrides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 5,000 rows a run of one step reads the longest ones, to refuse them in time, and those it draws."""
    read: list[int] = []
    row = JsonLines.row

    def counted(self: JsonLines, number: int) -> Mapping[str, Any]:
        read.append(number)
        return row(self, number)

    monkeypatch.setattr(JsonLines, "row", counted)
    rows = [{"prompt": f"{'say ' * (n % 3)}{n}:", "answer": n} for n in range(5000)]
    words = [
        *overrides("many"), *SMALL, f"data.train_path={write(tmp_path / 'train.jsonl', rows)}",
        "data.num_validation=4", "grpo.max_num_steps=1", "grpo.num_prompts_per_step=4",
        "grpo.num_generations_per_prompt=4", "grpo.val_period=0",
    ]  # fmt: skip
    run_grpo(load_config(GRPORunConfig, recipe_path("grpo-own-data"), words))
    trained = {row["prompt"] for row in logged_rows(tmp_path / "many" / "logs")}
    assert trained <= {rows[number]["prompt"] for number in read}
    assert len(set(read)) <= 64 + 4 + len(trained) == 64 + 4 + 4


def test_a_row_that_does_not_fit_is_refused_before_anything_is_sampled(
    overrides: Overrides, tmp_path: Path
) -> None:
    """Wherever it is in the file; the first batch need not hold it."""
    rows = [{"prompt": "say " * (20 if n == 1234 else 1) + f"{n}:", "answer": n} for n in range(2000)]
    words = [*overrides("long"), *SMALL, f"data.train_path={write(tmp_path / 'train.jsonl', rows)}"]
    with pytest.raises(ConfigError, match=r"the longest prompt has 86 tokens .* more than .*=48"):
        run_grpo(load_config(GRPORunConfig, recipe_path("grpo-own-data"), words))
    assert not list((tmp_path / "long").glob("logs/*"))
