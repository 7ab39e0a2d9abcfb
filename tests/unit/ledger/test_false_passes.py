"""Ledgers that are damaged, empty or of two runs: never Pass, one message, no traceback."""

import json
from pathlib import Path

import pytest
from tests.unit.ledger.made_ledgers import WRITERS, right_ledger, write_refrl, write_trl_table, write_verl

from seatrial.cli import main
from seatrial.verdict import EXIT_BLOCKED, EXIT_FAIL


def blocked(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command; it is Blocked with one line."""
    assert main(["ledger", str(folder)]) == EXIT_BLOCKED
    output = capsys.readouterr()
    assert "Pass" not in output.out
    assert output.err.startswith("seatrial ledger: Blocked: ")
    assert len(output.err.splitlines()) == 1
    return output.err


def test_nothing_is_no_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no rows" in blocked(tmp_path, capsys)
    assert "does not exist" in blocked(tmp_path / "nowhere", capsys)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    (tmp_path / "validation_data_step1.jsonl").write_text(
        '{"step": 1, "index": 0, "prompt_id": 0, "reward": 1}\n'
    )
    assert "holds no rows" in blocked(tmp_path, capsys)


@pytest.mark.parametrize("stack", WRITERS)
def test_a_truncated_file_is_named(stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    WRITERS[stack](tmp_path, right_ledger())
    file = sorted(tmp_path.iterdir())[1]
    file.write_bytes(file.read_bytes()[:-40])
    if stack == "TRL":
        # Half a document is not JSON, and so no table: the step is gone, and its neighbours say so.
        main(["ledger", str(tmp_path)])
        assert "every 2th step" in capsys.readouterr().out
        return
    message = blocked(tmp_path, capsys)
    assert f"{file.name} line 16 is damaged" in message


@pytest.mark.parametrize(
    "content", ["", "{", "not a row\n", "[1, 2]\n", '{"loss": 1}\n', "\x00" * 100, "{" * 9999]
)
def test_a_file_of_another_form_is_named(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name says that it holds rows: it is not passed over."""
    write_refrl(tmp_path, right_ledger())
    (tmp_path / "train_data_step4.jsonl").write_text(content)
    assert "train_data_step4.jsonl" in blocked(tmp_path, capsys)


@pytest.mark.parametrize(
    ("key", "cell"),
    [
        ("step", 10**400),
        ("step", 2),
        ("step", True),
        ("index", 10**30),
        ("index", 1.5),
        ("prompt_id", None),
        ("prompt_id", "x"),
        ("token_ids", "1 2 3"),
        ("token_ids", [1, 2.5]),
        ("token_ids", [10**5000]),
        ("prompt_length", -(10**40)),
        ("generation_logprobs", ["tensor(-1.)"]),
        ("reward", "tensor(1.)"),
        ("reward", [1.0]),
        ("advantage", {}),
        ("loss_mask", [[1.0]]),
        ("filtered", "no"),
        ("verifier_error", 0.5),
        ("prompt", 3),
    ],
)
def test_a_cell_of_the_wrong_kind_is_named(
    key: str, cell: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not turned into a number by force: 2.5 is no token, and the text of a tensor no reward."""
    write_refrl(tmp_path, right_ledger())
    file = tmp_path / "train_data_step1.jsonl"
    lines = file.read_text().splitlines()
    row = json.loads(lines[2])
    row[key] = cell
    if isinstance(cell, list) and cell == [10**5000]:
        lines[2] = json.dumps({**row, key: "HUGE"}).replace('"HUGE"', "[1" + "0" * 5000 + "]")
    else:
        lines[2] = json.dumps(row)
    file.write_text("\n".join(lines) + "\n")
    assert "train_data_step1.jsonl line 3 is damaged" in blocked(tmp_path, capsys)


@pytest.mark.parametrize(
    ("key", "cell"),
    [
        ("reward", float("nan")),
        ("reward", 10**400),
        ("reward", "NaN"),
        ("reward", None),
        ("advantage", float("nan")),
        ("advantage", None),
        ("generation_logprobs", [None] * 12),
        ("prev_logprobs", [float("nan")] * 12),
        ("prompt_length", 10**9),
        ("prompt_length", -3),
        ("weight_version", 10**18),
        ("kept_support_sizes", []),
    ],
)
def test_a_value_that_is_not_finite_or_not_there_fails(
    key: str, cell: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number that cannot be right breaks a law that names its row."""
    write_refrl(tmp_path, right_ledger())
    file = tmp_path / "train_data_step2.jsonl"
    lines = file.read_text().splitlines()
    lines[5] = json.dumps({**json.loads(lines[5]), key: cell})
    file.write_text("\n".join(lines) + "\n")
    assert main(["ledger", str(tmp_path)]) == EXIT_FAIL
    assert "step 2 row 5" in capsys.readouterr().out


def test_a_step_that_stands_in_two_files_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_refrl(tmp_path, right_ledger())
    (tmp_path / "train_data_step02.jsonl").write_bytes((tmp_path / "train_data_step2.jsonl").read_bytes())
    assert main(["ledger", str(tmp_path)]) == EXIT_FAIL
    assert "step 2 row 0 is there 2 times" in capsys.readouterr().out


def test_a_lost_step_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the middle by its neighbours, at the end where the number of steps is said."""
    rows = right_ledger() + [row for row in right_ledger(1) if row.step == 3]
    write_refrl(tmp_path, rows[:48])
    (tmp_path / "train_data_step3.jsonl").unlink()
    assert main(["ledger", str(tmp_path), "--num-steps", "3"]) == EXIT_FAIL
    assert "step 3 has 0 rows" in capsys.readouterr().out


def test_rows_of_two_runs_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_refrl(tmp_path / "one", right_ledger())
    write_refrl(tmp_path / "two", right_ledger(1))
    assert "rows of several runs (refrl, in " in blocked(tmp_path, capsys)
    write_verl(tmp_path / "one", right_ledger())
    assert "rows of several runs (refrl and verl, in " in blocked(tmp_path / "one", capsys)


def test_a_table_of_unlike_rows_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_trl_table(tmp_path, right_ledger())
    file = tmp_path / "completions_2.table.json"
    table = json.loads(file.read_text())
    table["data"][3].pop()
    file.write_text(json.dumps(table))
    assert "completions_2.table.json is damaged" in blocked(tmp_path, capsys)
    table["data"] = []
    file.write_text(json.dumps(table))
    assert "completions_2.table.json is empty" in blocked(tmp_path, capsys)


def test_a_parquet_file_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "completions_00001.parquet").write_bytes(b"PAR1" + b"\x00" * 60)
    message = blocked(tmp_path, capsys)
    assert "completions_00001.parquet" in message


def test_an_unreadable_file_is_blocked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train_data_step1.jsonl").symlink_to(tmp_path / "lost")
    assert "holds no rows" in blocked(tmp_path, capsys)
