"""The same rows in each stack's form: read whole, pass, and a cell that was changed in the file is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.made_ledgers import WRITERS, change, right_ledger

from seatrial.cli import main
from seatrial.errors import BlockedError
from seatrial.evidence.ledger.read import read_ledger
from seatrial.verdict import EXIT_FAIL, EXIT_PASS


def judged(folder: Path, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the command; return its exit code and the verdicts by name."""
    target = folder.parent / "verdicts.json"
    code = main(["ledger", str(folder), "--json", str(target), *words])
    return code, {verdict["name"]: verdict for verdict in json.loads(target.read_text())["verdicts"]}


@pytest.mark.parametrize("stack", WRITERS)
def test_a_right_ledger_passes(stack: str, tmp_path: Path) -> None:
    WRITERS[stack](tmp_path / "logs", right_ledger())
    code, verdicts = judged(tmp_path / "logs", "--group-size", "4")
    outcomes = {name: verdict["outcome"] for name, verdict in verdicts.items()}
    assert code == EXIT_PASS, verdicts
    assert set(outcomes.values()) == {"Pass", "Skipped"}
    skipped = [verdict["reason"] for verdict in verdicts.values() if verdict["outcome"] == "Skipped"]
    assert all(len(reason) > 20 for reason in skipped)
    assert len(skipped) == {"refrl": 1, "NeMo RL": 5, "verl": 13, "TRL": 11}[stack], skipped


@pytest.mark.parametrize("stack", WRITERS)
def test_what_was_written_is_what_is_read(stack: str, tmp_path: Path) -> None:
    rows = right_ledger()
    WRITERS[stack](tmp_path, rows)
    ledger = read_ledger(tmp_path)
    assert ledger.stack == stack
    written = [(row.step, row.index, row.prompt_id, row.completion, row.reward) for row in rows]
    assert [
        (row.step, row.index, row.prompt_id, row.completion, row.reward) for row in ledger.rows
    ] == written
    if stack == "refrl":
        assert list(ledger.rows) == rows
    if stack == "NeMo RL":
        for read, row in zip(ledger.rows, rows, strict=True):
            for column in ("token_ids", "prompt_length", "generation_logprobs", "prev_logprobs", "advantage"):
                assert getattr(read, column) == getattr(row, column), column
            assert (read.loss_mask or ())[: len(row.token_ids or ())] == row.loss_mask


Edit = Callable[[dict[str, Any]], None]


def edit_line(folder: Path, step: int, index: int, edit: Edit) -> None:
    """Change one row of a step's file by hand."""
    (path,) = [file for file in folder.iterdir() if file.stem.endswith(str(step)) and file.suffix == ".jsonl"]
    lines = path.read_text().splitlines()
    row = json.loads(lines[index])
    edit(row)
    lines[index] = json.dumps(row)
    path.write_text("\n".join(lines) + "\n")


def put(key: str, value: object, place: int | None = None) -> Edit:
    """Return an edit of a cell, or of one place of a list."""

    def edit(row: dict[str, Any]) -> None:
        if place is None:
            row[key] = value
        else:
            row[key][place] = value

    return edit


ADVANTAGES = "advantages recomputed equal the logged"
ORDER = "advantages follow the rewards of their group"
MASK = "the loss counts the sampled tokens"
AGREE = "sampler and trainer agree per token"
TOKENS = "tokens are valid and are the rewarded text"
FIRST = 9
"""Place of the first sampled token: after the first token and `prompt 5`."""


@pytest.mark.parametrize(
    ("stack", "edit", "law"),
    [
        ("refrl", put("reward", 7.0), ADVANTAGES),
        ("refrl", put("advantage", 0.123), ADVANTAGES),
        ("refrl", put("loss_mask", 0.0, -1), MASK),
        ("refrl", put("prev_logprobs", -0.5, 2), AGREE),
        ("refrl", put("generation_logprobs", 0.5, 2), "log-probabilities are possible and the row's own"),
        ("refrl", put("token_ids", 77, -3), TOKENS),
        ("refrl", put("completion", "other"), TOKENS),
        ("refrl", put("prompt", "prompt 6"), "a group is the completions of one prompt"),
        ("NeMo RL", put("rewards", 7.0), ADVANTAGES),
        ("NeMo RL", put("filtered_rewards", 7.0), ADVANTAGES),
        ("NeMo RL", put("advantages", [0.123] * 24), ADVANTAGES),
        ("NeMo RL", put("advantages", 0.123, FIRST + 2), ADVANTAGES),
        ("NeMo RL", put("token_loss_mask", 0.0, FIRST), MASK),
        ("NeMo RL", put("token_loss_mask", 0.0, FIRST + 3), MASK),
        ("NeMo RL", put("token_loss_mask", 1.0, -1), MASK),
        ("NeMo RL", put("prev_logprobs", -0.5, FIRST + 2), AGREE),
        ("NeMo RL", put("token_ids", 77, FIRST + 2), TOKENS),
        ("NeMo RL", put("generation_logprobs", -3.0, 1), MASK),
        ("NeMo RL", put("input_lengths", 14), MASK),
    ],
)
def test_a_changed_cell_is_named(stack: str, edit: Edit, law: str, tmp_path: Path) -> None:
    WRITERS[stack](tmp_path / "logs", right_ledger())
    edit_line(tmp_path / "logs", 2, 5, edit)
    code, verdicts = judged(tmp_path / "logs", "--precision", "float32")
    assert code == EXIT_FAIL
    assert verdicts[law]["outcome"] == "Fail", verdicts
    assert {"step": 2, "index": 5} in verdicts[law]["details"]["rows"], verdicts[law]


@pytest.mark.parametrize("column", ["reward", "advantage"])
def test_a_changed_cell_of_trls_table_is_named(column: str, tmp_path: Path) -> None:
    WRITERS["TRL"](tmp_path / "logs", change(2, 5, **{column: 0.123})(right_ledger()))
    code, verdicts = judged(tmp_path / "logs")
    assert code == EXIT_FAIL
    assert {"step": 2, "index": 5} in verdicts[ADVANTAGES]["details"]["rows"]


@pytest.mark.parametrize(
    ("edit", "law"),
    [
        (put("score", float("nan")), "every reward is finite"),
        (put("input", "another"), "every trained row is there, once"),
    ],
)
def test_a_changed_cell_of_verls_dump_is_seen(edit: Edit, law: str, tmp_path: Path) -> None:
    WRITERS["verl"](tmp_path / "logs", right_ledger())
    edit_line(tmp_path / "logs", 2, 5, edit)
    code, verdicts = judged(tmp_path / "logs")
    assert code == EXIT_FAIL
    assert verdicts[law]["outcome"] == "Fail"
    assert "step 2" in verdicts[law]["reason"]


def test_verls_rewards_are_recomputed_where_the_verifier_is_known(tmp_path: Path) -> None:
    """The prompt is in its template; the answer of the reference tasks is found from the prompt's own words."""
    rows = [
        {"input": f"{left}+7=", "output": str(left + 7 + (index == 1)), "gts": str(left + 7),
         "score": float(index != 1), "step": 1}
        for left in (12, 30) for index in range(4)
    ]  # fmt: skip
    folder = tmp_path / "logs"
    folder.mkdir()
    for score, outcome in ((0.0, "Pass"), (1.0, "Fail")):
        rows[1]["score"] = score
        (folder / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        _, verdicts = judged(folder, "--verifier", "exact_match")
        law = verdicts["rewards recomputed equal the logged"]
        assert law["outcome"] == outcome
    assert law["details"]["rows"] == [{"step": 1, "index": 1}]


def test_earlier_forms_of_nemo_rl(tmp_path: Path) -> None:
    """Versions of 2025 write a text, rewards and log-probabilities; order and declared groups stand for prompts."""
    lines = [
        {"idx": index, "content": "all of it", "rewards": float(index % 2), "input_lengths": 6,
         "generation_logprobs": [0.0, 0.0, -1.1, -1.2 - index, -0.3, -2.0, 0.0],
         "prev_logprobs": [0.0, 0.0, -1.1, -1.2 - index, -0.3, -2.0, 0.0]}
        for index in range(8)
    ]  # fmt: skip
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "train_data_step1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, verdicts = judged(folder, "--group-size", "4")
    assert code == EXIT_PASS
    assert verdicts["every trained row is there, once"]["reason"] == "8 rows in 2 groups"
    assert verdicts[AGREE]["num_samples"] == 8 * 4


def test_neighbouring_groups_of_one_prompt_are_kept_apart(tmp_path: Path) -> None:
    """TRL centres each block of rows, also where two blocks ask the same."""
    rows = right_ledger()
    columns = ["step", "prompt", "completion", "score", "advantage"]
    data = [[1, "one prompt", row.completion, row.reward, row.advantage] for row in rows[:8]]
    data += [[1, row.prompt, row.completion, row.reward, row.advantage] for row in rows[8:16]]
    (tmp_path / "completions.table.json").write_text(json.dumps({"columns": columns, "data": data}))
    groups = [row.group_key for row in read_ledger(tmp_path).rows]
    assert [groups.count(key) for key in dict.fromkeys(groups)] == [4, 4, 4, 4]


def test_weights_of_reward_columns(tmp_path: Path) -> None:
    """Rewards of a table are before weighting; where a function gave none it does not count."""
    folder = tmp_path / "logs"
    folder.mkdir()
    columns = ["step", "prompt", "completion", "right", "form", "seconds", "advantage"]
    data = [
        [1, f"p{place // 2}", f"text {place}", float(place % 2), 1.0 if place == 3 else None, 7.5 * place,
         [-0.5, 0.5, -0.75, 0.75][place % 4]]
        for place in range(4)
    ]  # fmt: skip
    (folder / "completions.table.json").write_text(json.dumps({"columns": columns, "data": data}))
    words = ("--estimator", "dr_grpo", "--reward", "right", "--reward", "form=0.5")
    assert judged(folder, *words)[0] == EXIT_PASS
    assert judged(folder, "--estimator", "dr_grpo")[0] == EXIT_FAIL


def test_a_conversation_is_told_by_its_words(tmp_path: Path) -> None:
    """Messages stand for their words; a longer conversation for all of itself."""
    user = [{"role": "user", "content": "hello"}]
    rows = [
        {"step": 1, "prompt": user, "completion": [{"role": "assistant", "content": f"hi {place}"}],
         "advantage": 0.0, "score": 1.0}
        for place in range(4)
    ]  # fmt: skip
    rows[3]["prompt"] = [*user, {"role": "assistant", "content": "yes?"}, *user]
    (tmp_path / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = read_ledger(tmp_path).rows
    assert [row.prompt for row in read][:3] == ["hello"] * 3
    assert read[3].prompt_id != read[0].prompt_id
    assert read[1].completion == "hi 1"


def test_rows_of_ms_swift_are_lists_of_a_step_and_its_last_step_is_there_twice(tmp_path: Path) -> None:
    """The rewards are recomputed from the user's words in the chat template."""
    prompt = "<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nreverse ab=<|im_end|>\n<|im_start|>assistant\n"
    line = {
        "step": ["1", "1"],
        "prompt": [prompt, prompt],
        "completion": ["ba", "ab"],
        "Right": [1.0, 0.0],
        "advantages": [0.5, -0.5],
    }
    (tmp_path / "completions.jsonl").write_text(f"{json.dumps(line)}\n" * 2)
    rows = read_ledger(tmp_path).rows
    assert [(row.step, row.index, row.group, row.reward, row.advantage) for row in rows] == [
        (1, 0, 0, 1.0, 0.5),
        (1, 1, 0, 0.0, -0.5),
    ]
    _, verdicts = judged(tmp_path, "--verifier", "exact_match")
    assert verdicts["rewards recomputed equal the logged"]["outcome"] == "Pass"
    short = {**line, "advantages": [0.5]}
    (tmp_path / "completions.jsonl").write_text(json.dumps(short))
    with pytest.raises(BlockedError, match="2 steps, and 1 of advantages"):
        read_ledger(tmp_path)
