"""Damaged logs of each text form, through the commands: an exit code, and never a traceback.

A small share runs each time; `pytest -m nightly tests/fuzz` runs 2,000. `tests.fuzz.commands` runs them on public logs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fuzz.commands import CODES, cases, run
from tests.unit.rules.made_logs import healthy

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(1800)]


def made_files(folder: Path) -> list[Path]:
    """Write one healthy run in each text form."""
    columns = {tag.removeprefix("train/"): values.tolist() for tag, values in healthy(number=60).items()}
    rows = [
        {"step": step, **{tag: values[step - 1] for tag, values in columns.items()}} for step in range(1, 61)
    ]
    header = [*rows[0]]
    forms = {
        "log.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "rows.json": json.dumps(rows),
        "columns.json": json.dumps({"step": [row["step"] for row in rows], **columns}),
        "nested.json": json.dumps({"model": "tiny", "log": rows, "by_step": {"1": 0.5, "9": 0.25}}),
        "trainer_state.json": json.dumps({"global_step": 60, "log_history": rows}),
        "metrics.json": json.dumps(
            {tag: {str(n + 1): x for n, x in enumerate(v)} for tag, v in columns.items()}
        ),
        "log.csv": "\n".join(
            [",".join(header), *(",".join(str(row[tag]) for tag in header) for row in rows)]
        ),
        "dicts.log": "".join(f"{ {tag: row[tag] for tag in header[1:]} }\n" for row in rows),
        "verl.log": "".join(
            f"step:{row['step']} - " + " - ".join(f"{tag}:{row[tag]}" for tag in header[1:]) + "\n"
            for row in rows
        ),
        "words.log": "".join(
            f"[step {row['step']}/60] loss={row['loss']} reward={row['reward']}\n" for row in rows
        ),
    }
    for name, text in forms.items():
        (folder / name).write_text(text)
    return sorted(folder / name for name in forms)


@pytest.mark.parametrize("number", [80, pytest.param(2000, marks=pytest.mark.nightly)])
def test_a_damaged_log_ends_with_an_exit_code(tmp_path: Path, number: int) -> None:
    (tmp_path / "valid").mkdir()
    (tmp_path / "damaged").mkdir()
    files = made_files(tmp_path / "valid")
    for file in files:
        assert run(file, ("watch",)) in {0, 1}, f"the file that is damaged must be valid: {file.name}"
    for seed, path, command in cases(files, number, 0, tmp_path / "damaged"):
        assert run(path, command) in CODES, f"seed {seed}"


def test_a_folder_of_many_runs_is_read_or_named(tmp_path: Path) -> None:
    """300 run folders with one row each: an exit code, and no traceback."""
    for place in range(300):
        (tmp_path / f"run{place}").mkdir()
        (tmp_path / f"run{place}" / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    assert run(tmp_path, ("watch",)) in CODES


def test_a_seed_gives_the_same_damage(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1: loss=0.5, reward=0.2\n" * 9)
    (tmp_path / "out").mkdir()
    contents = [
        [path.read_bytes() for _, path, _ in cases([tmp_path / "a.log"], 5, 3, tmp_path / "out")]
        for _ in "ab"
    ]
    assert contents[0] == contents[1]
