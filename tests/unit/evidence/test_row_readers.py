"""Readers of text logs: values in all their states, steps, restarts, and what was lost."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from seatrial.errors import BlockedError
from seatrial.evidence import quick_json
from seatrial.evidence.read import read_logs
from seatrial.evidence.readers.lanes import restarts
from seatrial.evidence.readers.points import decode, decode_step


def put(path: Path, *lines: str, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + end)
    return path


@pytest.mark.parametrize(
    ("raw", "value", "null"),
    [
        (1, 1.0, False),
        (True, 1.0, False),
        (-2.5e-3, -0.0025, False),
        ("0.25", 0.25, False),
        ("-1e-05", -1e-5, False),
        (math.nan, math.nan, False),
        ("NaN", math.nan, False),
        ("-Infinity", -math.inf, False),
        ("inf", math.inf, False),
        (None, math.nan, True),
        (10**400, math.inf, False),
        (-(10**400), -math.inf, False),
    ],
)
def test_states_of_a_value(raw: object, value: float, null: bool) -> None:
    number = decode(raw)
    assert number is not None
    np.testing.assert_equal(number.value, value)
    assert number.null is null


@pytest.mark.parametrize(
    "text",
    [
        '{"step": 1, "loss": 0.1, "note": "x"}',
        '{"step": -9223372036854775809, "loss": 1e400}',
        '{"step": 1, "loss": NaN, "kl": -Infinity}',
        '{"step": 1, "loss": 123456789012345678901234567890, "kl": -0, "lr": -0.0, "reward": 2.4703282292062328e-324}',
        '{"step": 1, "loss": 1' + 400 * "0" + "}",
        '{"step": 1, "loss": [18446744073709551616]}',
        '{"step": 1, "note": "\\ud800"}',
        '{"step": 1, "step": 2}',
        '{"step": 1, "inner": {"loss": 0.5, "loss": 1.5}}',
        '{"step": 01}',
        '{"step": 1, "loss": 0.5,}',
        '{"step": 1, "note": "a\tb"}',
        "[" * 2000 + "]" * 2000,
        '{"a":' * 2000 + "1" + "}" * 2000,
    ],
)
def test_both_parsers_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    pytest.importorskip("orjson")
    path = put(tmp_path / "log.jsonl", '{"step": 7, "loss": 0.25}', text)
    quick = read_logs(path)
    monkeypatch.setattr(quick_json, "orjson", None)
    slow = read_logs(path)
    assert (quick.damage, quick.unread, quick.scalars) == (slow.damage, slow.unread, slow.scalars)
    assert list(quick.series) == list(slow.series)
    for tag, series in slow.series.items():
        assert quick.series[tag].steps.tobytes() == series.steps.tobytes()
        assert quick.series[tag].values.tobytes() == series.values.tobytes()


@pytest.mark.parametrize("raw", ["", "abc", "1_000", "0x10", [1.0], {"a": 1}, "9" * 500])
def test_what_is_no_number(raw: object) -> None:
    assert decode(raw) is None


@pytest.mark.parametrize(
    ("raw", "step"),
    [(3, 3), ("3", 3), (" 3 ", 3), (3.0, 3), ("3.0", 3), (-1, -1), ("1e3", 1000), (2**63 - 1, 2**63 - 1)],
)
def test_what_is_a_step(raw: object, step: int) -> None:
    assert decode_step(raw) == step


@pytest.mark.parametrize(
    "raw", [None, True, 1.5, "1.5", math.nan, "NaN", math.inf, 2**63, "x", "9" * 40, [1]]
)
def test_what_is_no_step(raw: object) -> None:
    assert decode_step(raw) is None


def test_missing_null_and_nan_are_three_states(tmp_path: Path) -> None:
    rows = ['{"step": 1, "a": 1.0}', '{"step": 2, "a": NaN}', '{"step": 3, "a": null}', '{"step": 4, "b": 0}']
    series = read_logs(put(tmp_path / "log.jsonl", *rows, '{"step": 5, "a": "Infinity"}')).series["a"]
    assert series.steps.tolist() == [1, 2, 3, 5]
    np.testing.assert_array_equal(series.values, [1.0, math.nan, math.nan, math.inf])
    assert series.nulls is not None
    assert series.nulls.tolist() == [False, False, True, False]


@pytest.mark.parametrize("key", ["step", "global_step", "_step", "train/global_step", "iteration"])
def test_steps_under_the_usual_keys(tmp_path: Path, key: str) -> None:
    path = put(tmp_path / "log.jsonl", *(json.dumps({key: step, "loss": 0.5}) for step in (10, 20)))
    log = read_logs(path)
    assert log.series["loss"].steps.tolist() == [10, 20]
    assert set(log.series) == {"loss"}


def test_rows_without_steps_are_numbered_by_line(tmp_path: Path) -> None:
    log = read_logs(put(tmp_path / "log.jsonl", '{"loss": 3.0}', "", '{"loss": 2.0}'))
    assert log.series["loss"].steps.tolist() == [1, 3]
    assert "the line number is used" in log.notes[0]


def test_nested_values_text_and_lists(tmp_path: Path) -> None:
    row = {"step": 1, "timing": {"train": {"total": 2.0}}, "note": "text", "counts": [1, 2]}
    log = read_logs(put(tmp_path / "log.jsonl", json.dumps(row)))
    assert log.series["timing/train/total"].values.tolist() == [2.0]
    assert log.unread == {"note": "text", "counts": "list"}
    assert log.tags() == ["counts", "note", "timing/train/total"]


def test_a_value_that_is_text_once_is_damage(tmp_path: Path) -> None:
    path = put(tmp_path / "log.jsonl", '{"step": 1, "loss": 1}', '{"step": 2, "loss": "diverged"}')
    log = read_logs(path)
    assert log.series["loss"].steps.tolist() == [1]
    assert [(item.what, item.offset) for item in log.damage] == [
        ("loss: 1 values are no numbers, the first is 'diverged' in line 2", 2)
    ]


def test_lines_that_are_lost_are_counted_by_number(tmp_path: Path) -> None:
    lines = [f'{{"step": {step}, "loss": 1}}' for step in range(1, 21)]
    for lost in (2, 5, 6, 7, 8, 9, 11):
        lines[lost - 1] = "step 7 loss nan"
    log = read_logs(put(tmp_path / "log.jsonl", *lines))
    assert len(log.series["loss"]) == 13
    assert [item.what for item in log.damage] == [
        "7 of 20 lines are no JSON objects and were lost: 2, 5, 6, 7, 8 and 2 more"
    ]


def test_a_cut_last_line(tmp_path: Path) -> None:
    log = read_logs(put(tmp_path / "log.jsonl", '{"step": 1, "loss": 1}', '{"step": 2, "lo', end=""))
    assert log.series["loss"].steps.tolist() == [1]
    assert [item.what for item in log.damage] == ["truncated in line 2, which is no whole JSON object"]


def test_a_whole_last_line_without_line_end_is_no_damage(tmp_path: Path) -> None:
    log = read_logs(put(tmp_path / "log.jsonl", '{"step": 1, "loss": 1}', '{"step": 2, "loss": 1}', end=""))
    assert len(log.series["loss"]) == 2
    assert log.damage == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([1, 2, 3], []),
        ([1, 2, 3, 4, 2, 3, 4, 5], [4]),
        ([1, 2, 3, 2], [3]),
        ([1, 2, 3, 2, 4, 5], []),
        ([5, 5, 5, 6, 6], []),
        ([1, 2, 3, 1, 2, 3, 1, 2], [3, 6]),
        ([], []),
    ],
)
def test_where_steps_begin_anew(steps: list[int], expected: list[int]) -> None:
    assert restarts(steps) == expected


def test_a_resumed_run_in_one_file(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1.0} for step in range(1, 13)] + [{"step": 11, "loss": 7.0}]
    series = read_logs(put(tmp_path / "log.jsonl", *map(json.dumps, rows))).series["loss"]
    assert series.steps.tolist() == list(range(1, 12))
    assert series.values[-1] == 7.0
    assert series.abandoned == 2


def test_verl(tmp_path: Path) -> None:
    """The rows of verl's FileLogger; orjson has turned NaN into null."""
    rows = [
        '{"step":1,"data":{"actor/loss":0.5,"val-core/acc":0.25}}',
        '{"step":2,"data":{"actor/loss":null}}',
    ]
    log = read_logs(put(tmp_path / "project" / "experiment.jsonl", *rows).parent)
    series = log.series["actor/loss"]
    assert series.nulls is not None
    assert series.nulls.tolist() == [False, True]
    assert log.series["val-core/acc"].steps.tolist() == [1]


def test_prime_rl(tmp_path: Path) -> None:
    """Rows by step, rows by the clock, several producers; NaN is dropped by the writer and shows as a hole."""
    rows = [
        {"step": step, "time": 1.7e9 + step, "producer": "trainer", "loss": 0.5, "common": 1}
        for step in range(10)
    ]
    del rows[4]["loss"], rows[7]["loss"]
    rows += [
        {"step": step, "time": 1.7e9 + step, "producer": "orchestrator", "common": 2} for step in range(10)
    ]
    rows += [{"step": None, "time": 1.7e9 + second, "inference/load": second} for second in (0.2, 5.0, 9.9)]
    rows.sort(key=lambda row: row["time"])
    log = read_logs(put(tmp_path / "metrics.jsonl", *map(json.dumps, rows)))
    assert log.series["loss"].steps.tolist() == [0, 1, 2, 3, 5, 6, 8, 9]
    assert log.series["inference/load"].steps.tolist() == [0, 4, 9]
    assert log.series["trainer/common"].values.tolist() == [1.0] * 10
    assert log.series["orchestrator/common"].values.tolist() == [2.0] * 10
    assert any("loss has none at 4, 7" in note for note in log.notes)


def test_trainer_state_of_the_furthest_checkpoint(tmp_path: Path) -> None:
    for reached in (10, 20):
        history = [{"step": step, "loss": 1 / step, "epoch": 0.1} for step in range(1, reached + 1)]
        state = {"epoch": 1.0, "global_step": reached, "log_history": history}
        put(tmp_path / f"checkpoint-{reached}" / "trainer_state.json", json.dumps(state, indent=2))
    log = read_logs(tmp_path)
    assert log.series["loss"].steps.tolist() == list(range(1, 21))
    assert set(log.series) == {"loss", "epoch"}
    assert "furthest of 2" in log.notes[0]


def test_trainer_state_as_transformers_writes_it(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    history = [{"step": 1, "loss": 2.0, "grad_norm": math.nan}, {"step": 2, "eval_loss": 1.0}]
    state = transformers.TrainerState(global_step=2, log_history=history)
    state.save_to_json(str(tmp_path / "trainer_state.json"))
    log = read_logs(tmp_path)
    assert math.isnan(log.series["grad_norm"].values[0])
    assert log.series["eval_loss"].steps.tolist() == [2]


def test_a_damaged_trainer_state_beside_a_good_one(tmp_path: Path) -> None:
    put(
        tmp_path / "checkpoint-1" / "trainer_state.json",
        '{"global_step": 1, "log_history": [{"step": 1, "loss"',
    )
    good = {"global_step": 1, "log_history": [{"step": 1, "loss": 3.0}, {"loss": 4.0}]}
    put(tmp_path / "checkpoint-2" / "trainer_state.json", json.dumps(good))
    log = read_logs(tmp_path)
    assert log.series["loss"].values.tolist() == [3.0]
    assert len(log.damage) == 2
    assert log.damage[1].what == "entry 2 of log_history is no row with a step"


def test_csv_of_lightning_has_missing_cells_and_not_nan(tmp_path: Path) -> None:
    path = put(
        tmp_path / "metrics.csv",
        "epoch,step,train_loss,val_loss",
        "0,9,0.5,",
        "0,19,NaN,",
        "0,19,,0.4",
        "1,29,,inf",
    )
    log = read_logs(path)
    np.testing.assert_array_equal(log.series["train_loss"].values, [0.5, math.nan])
    np.testing.assert_array_equal(log.series["val_loss"].values, [0.4, math.inf])
    assert log.damage == []


def test_csv_as_tensorboard_downloads_it(tmp_path: Path) -> None:
    path = put(
        tmp_path / "train_loss.csv", "Wall time,Step,Value", "1700000000.5,1,2.5", "1700000001.5,2,2.0"
    )
    series = read_logs(path).series["train_loss"]
    assert series.wall_times is not None
    assert series.wall_times.tolist() == [1700000000.5, 1700000001.5]


def test_csv_with_bad_lines(tmp_path: Path) -> None:
    log = read_logs(put(tmp_path / "m.csv", "step,loss", "1,0.5", "two,0.4", "3,0.3,9", "4"))
    assert log.series["loss"].steps.tolist() == [1]
    assert [item.offset for item in log.damage] == [3, 4, 5]


@pytest.mark.parametrize(
    "name", ["log.jsonl", "log.csv", "metrics.json", "trainer_state.json", "run.wandb", "x"]
)
@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"garbage \xff\xfe", b"{", b"[1, 2"])
def test_empty_and_garbage_files_are_blocked(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    for where in (tmp_path, tmp_path / name):
        with pytest.raises(BlockedError):
            read_logs(where)


def test_what_is_not_there_is_blocked(tmp_path: Path) -> None:
    with pytest.raises(BlockedError, match="no such file or folder"):
        read_logs(tmp_path / "absent")
    with pytest.raises(BlockedError, match="no log can be read there"):
        read_logs(tmp_path)


def test_rows_of_several_shapes_keep_their_order(tmp_path: Path) -> None:
    """2,000 rows: plain ones wait in blocks by their tags, and rows with null, text, nested or huge values between."""
    rows: list[dict[str, object]] = []
    for step in range(1, 2001):
        row: dict[str, object] = {"step": step, "loss": step / 4}
        if step % 7 == 0:
            row["extra"] = True
        if step % 11 == 0:
            row["kl"] = None if step % 22 else 10**400
        if step % 13 == 0:
            row["inner"] = {"x": step}
        rows.append(row)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_logs(path)
    assert log.series["loss"].steps.tolist() == list(range(1, 2001))
    assert log.series["loss"].values.tolist() == [step / 4 for step in range(1, 2001)]
    assert log.series["extra"].steps.tolist() == list(range(7, 2001, 7))
    kl = log.series["kl"]
    assert kl.nulls is not None
    assert kl.steps[kl.nulls].tolist() == [step for step in range(11, 2001, 11) if step % 22]
    assert set(kl.values[~kl.nulls].tolist()) == {float("inf")}
    assert log.series["inner/x"].values.tolist() == list(range(13, 2001, 13))


def test_a_restart_between_rows_of_several_shapes(tmp_path: Path) -> None:
    steps = [*range(1, 11), *range(6, 21)]
    rows = [{"step": step, "a": place, **({"b": 1} if step % 2 else {})} for place, step in enumerate(steps)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_logs(path)
    assert log.series["a"].steps.tolist() == list(range(1, 21))
    assert log.series["a"].values.tolist() == [0, 1, 2, 3, 4, *range(10, 25)]
    assert log.series["b"].steps.tolist() == list(range(1, 21, 2))
