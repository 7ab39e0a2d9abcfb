"""Logs as people keep them: packed, with a byte-order mark, in UTF-16, as one JSON list or as columns."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs

ROWS = [{"step": step, "loss": step / 4, "text": "x"} for step in range(1, 6)]
LOSS = [0.25, 0.5, 0.75, 1.0, 1.25]
FORMS = {
    "log.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "log.json": json.dumps(ROWS, indent=1),
    "trainer_state.json": json.dumps({"global_step": 5, "log_history": ROWS}),
    "metrics.json": json.dumps({"loss": {str(row["step"]): row["loss"] for row in ROWS}}),
    "history.json": json.dumps({"step": [1, 2, 3, 4, 5], "loss": LOSS, "config": {"a": 1}}),
    "log.csv": "step,loss\n" + "".join(f"{row['step']},{row['loss']}\n" for row in ROWS),
    "run.log": "".join(f"step:{row['step']} - loss:{row['loss']}\n" for row in ROWS),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("wrap", ["plain", "gzip", "byte-order mark", "utf-16"])
def test_a_text_log_is_read_however_it_is_wrapped(tmp_path: Path, name: str, wrap: str) -> None:
    text = FORMS[name]
    path = tmp_path / (f"{name}.gz" if wrap == "gzip" else name)
    raw = text.encode({"byte-order mark": "utf-8-sig", "utf-16": "utf-16"}.get(wrap, "utf-8"))
    path.write_bytes(gzip.compress(raw) if wrap == "gzip" else raw)
    for where in (path, tmp_path):
        log = read_logs(where)
        assert not log.damage
        assert log.series["loss"].steps.tolist() == [1, 2, 3, 4, 5]
        assert log.series["loss"].values.tolist() == LOSS


def test_a_packed_log_that_is_cut_is_damaged(tmp_path: Path) -> None:
    raw = gzip.compress(
        "".join(json.dumps({"step": n, "x": os.urandom(9).hex(), "y": 1}) + "\n" for n in range(999)).encode()
    )
    (tmp_path / "log.jsonl.gz").write_bytes(raw[: len(raw) // 2])
    log = read_logs(tmp_path / "log.jsonl.gz")
    assert 0 < len(log.series["y"]) < 999
    assert any("gzip data is damaged after line" in item.what for item in log.damage)


def test_columns_without_a_step_count_their_places(tmp_path: Path) -> None:
    (tmp_path / "history.json").write_text(json.dumps({"reward": [0.1, 0.2, None], "kl": [1.0, 2.0, 3.0]}))
    log = read_logs(tmp_path / "history.json")
    assert log.series["kl"].steps.tolist() == [1, 2, 3]
    assert log.series["reward"].nulls is not None
    assert any("points are numbered from 1" in note for note in log.notes)


def test_a_column_of_another_length_than_the_steps_is_lost_and_said(tmp_path: Path) -> None:
    (tmp_path / "h.json").write_text(json.dumps({"step": [1, 2, 3], "a": [1, 2, 3], "b": [1, 2]}))
    log = read_logs(tmp_path / "h.json")
    assert "b" not in log.series and "b has 2 values where there are 3 steps" in log.damage[0].what


def test_settings_beside_a_log_are_no_log(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [1, 2], "top_p": 0.9, "do_sample": True})
    )
    (tmp_path / "tests.json").write_text(json.dumps([{"name": "a", "score": 1}]))
    with pytest.raises(BlockedError, match="no log can be read"):
        read_logs(tmp_path)


def test_decimal_commas_between_semicolons(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("step;loss;lr\n1;0,25;1e-5\n2;-1,5e-3;2\n")
    log = read_logs(tmp_path / "log.csv")
    assert log.series["loss"].values.tolist() == [0.25, -0.0015] and log.series["lr"].values.tolist() == [
        1e-5,
        2.0,
    ]


def test_rows_of_ms_swift_keep_their_steps(tmp_path: Path) -> None:
    rows = [{"loss": step, "global_step/max_steps": f"{step}/3", "percentage": "1%"} for step in (1, 2, 3)]
    rows.append({"train_loss": 1.0, "global_step": 3, "last_model_checkpoint": "x"})  # type: ignore[dict-item]
    (tmp_path / "logging.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_logs(tmp_path)
    assert log.series["loss"].steps.tolist() == [1, 2, 3] and log.series["train_loss"].steps.tolist() == [3]


def test_a_pipe_is_named_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    with pytest.raises(BlockedError, match="a pipe, not a file"):
        read_logs(tmp_path / "log.jsonl")
    with pytest.raises(BlockedError, match="no log can be read"):
        read_logs(tmp_path)


def test_an_object_that_holds_rows_next_to_settings(tmp_path: Path) -> None:
    """Settings are left out; of two lists of rows with one tag each keeps its own; lists may hold one metric each."""
    steps = range(1, 13)
    document = {
        "model": "tiny",
        "lr": 1e-5,
        "target": [1, 2],
        "step_log": [{"step": step, "loss": step / 4, "reward": 0.5} for step in steps],
        "scalars": {"kl": [{"step": step, "kl": 0.1, "epoch": 0} for step in steps]},
        "by_step": {"10": 0.5, "20": 0.75},
    }
    path = tmp_path / "result.json"
    path.write_text(json.dumps(document))
    log = read_logs(path)
    assert not log.damage
    assert log.series["loss"].steps.tolist() == list(steps)
    assert log.series["by_step"].steps.tolist() == [10, 20]
    assert set(log.series) >= {"loss", "reward", "kl", "by_step"}
    assert "model" not in log.series


def test_a_settings_file_is_no_log(tmp_path: Path) -> None:
    """Short lists of numbers among other entries are settings."""
    document = {"eos_token_id": [1, 2, 3], "betas": [0.9, 0.95], "hidden": 64, "name": "x", "dropout": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(BlockedError):
        read_logs(tmp_path)


def test_an_epoch_is_the_step_of_a_table_without_another(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("epoch,avg_reward,timestamp\n1,0.5,2026-01-01T00:00:00\n2,0.75,2026-01-01T00:01:00\n")
    assert read_logs(path).series["avg_reward"].steps.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("key", "counts", "steps"),
    [
        ("epoch", [2, 4, 6], [2, 4, 6]),
        ("epoch", [0.5, 1.0, 1.5], [1, 2, 3]),
        ("round", [4, 8, 8], [1, 2, 3]),
        ("loss", [4, 8, 9], [1, 2, 3]),
    ],
)
def test_a_list_of_rows_by_epoch(tmp_path: Path, key: str, counts: list[float], steps: list[int]) -> None:
    """Where no row has a step, a counter that rises in whole numbers is it, otherwise the place in the list."""
    path = tmp_path / "training_log.json"
    path.write_text(json.dumps([{key: count, "avg_reward": 0.25 * count} for count in counts]))
    series = read_logs(path).series["avg_reward"]
    assert (series.steps.tolist(), series.values.tolist()) == (steps, [0.25 * count for count in counts])


def test_a_list_of_prompts_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps([{"prompt": "1 + 1", "answer": 2, "difficulty": 0.5}] * 4))
    with pytest.raises(BlockedError):
        read_logs(path)


def test_a_list_that_was_cut_is_read_up_to_the_cut(tmp_path: Path) -> None:
    """As a run leaves it that died while it wrote: whole rows count, and the cut is reported."""
    path = tmp_path / "log.json"
    path.write_text(json.dumps(ROWS, indent=1)[:-30])
    log = read_logs(path)
    assert log.series["loss"].steps.tolist() == [1, 2, 3, 4]
    assert [(item.what, item.is_cut) for item in log.damage] == [("truncated after row 4 of the list", True)]


def test_a_table_without_steps_counts_its_rows_if_it_has_a_loss(tmp_path: Path) -> None:
    """A table of completions with their rewards is no run."""
    path = tmp_path / "log.csv"
    path.write_text("loss,reward\n" + "".join(f"{loss},1\n" for loss in LOSS))
    log = read_logs(path)
    assert log.series["loss"].steps.tolist() == [1, 2, 3, 4, 5]
    assert log.series["loss"].values.tolist() == LOSS
    path.write_text("completion,reward\n" + "a,1\n" * 5)
    with pytest.raises(BlockedError):
        read_logs(path)
