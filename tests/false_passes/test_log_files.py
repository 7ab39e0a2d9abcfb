"""FP20-FP29: what a log file lost, or hid, is said and never passed."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tests.false_passes.corpus import Row
from tests.false_passes.corpus import by_id as rows
from tests.unit.evidence.event_writers import record_offsets, write_events, write_series

from seatrial.checks import evaluate_check, parse_check
from seatrial.cli import main
from seatrial.evidence.read import read_logs
from seatrial.verdict import Outcome, Verdict


def judge(logs: Path, text: str) -> Verdict:
    return evaluate_check(parse_check(text), read_logs(logs))


def accumulated(logs: Path) -> list[int]:
    """Return the steps of `x` that tensorboard's own reader gives."""
    accumulator = EventAccumulator(str(logs), size_guidance={"scalars": 0})
    accumulator.Reload()
    return [event.step for event in accumulator.Scalars("x")]


MAX_BELOW_2 = 'max(data["x"]) < 2'


@pytest.mark.parametrize("row", rows("FP20"), ids=str)
def test_a_cut_file(row: Row, tmp_path: Path) -> None:
    path = write_series(tmp_path / "events.out.tfevents.1", {"x": [1.0] * 100})
    blob = path.read_bytes()
    path.write_bytes(blob[: record_offsets(blob)[50] + 17])
    assert accumulated(tmp_path) == list(range(1, 50)), row.others
    verdict = judge(tmp_path, MAX_BELOW_2)
    assert verdict.outcome is Outcome.BLOCKED, row.right
    assert "truncated after step 49" in verdict.reason
    assert main(["check", str(tmp_path), MAX_BELOW_2]) == 3


@pytest.mark.parametrize("row", rows("FP21"), ids=str)
def test_a_flipped_bit(row: Row, tmp_path: Path) -> None:
    path = write_series(tmp_path / "events.out.tfevents.1", {"x": [1.0] * 100})
    blob = bytearray(path.read_bytes())
    blob[record_offsets(bytes(blob))[50] + 30] ^= 0x20
    path.write_bytes(bytes(blob))
    assert len(accumulated(tmp_path)) == 49, row.others
    log = read_logs(tmp_path)
    assert len(log.series["x"]) == 99, row.right
    assert "after step 49" in log.damage[0].what
    assert judge(tmp_path, MAX_BELOW_2).outcome is Outcome.BLOCKED


@pytest.mark.parametrize("row", rows("FP22"), ids=str)
@pytest.mark.parametrize("content", [b"", os.urandom(400)], ids=["empty", "garbage"])
def test_nothing_in_it(row: Row, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    for command in (["check", str(tmp_path), 'ratio_above(data["x"], 1.05) < 0.02'], ["tags", str(tmp_path)]):
        assert main(command) == 3, row.right
    assert main(["dump", str(tmp_path), "--output", str(tmp_path / "metrics.json")]) == 3
    assert not (tmp_path / "metrics.json").exists()


@pytest.mark.parametrize("row", rows("FP23"), ids=str)
def test_the_older_file_was_touched(row: Row, tmp_path: Path) -> None:
    old = write_series(tmp_path / "events.out.tfevents.1", {"x": [1.0] * 7}, 1000.0)
    new = write_series(tmp_path / "events.out.tfevents.2", {"x": dict.fromkeys(range(4, 8), 9.0)}, 2000.0)
    os.utime(new, (1, 1))
    os.utime(old, (2, 2))
    assert judge(tmp_path, MAX_BELOW_2).outcome is Outcome.FAIL, row.right
    log = read_logs(tmp_path)
    assert log.series["x"].conflicts == 4
    assert any(
        "written again with another value, of which the last counts: 4 points" in note for note in log.notes
    )


@pytest.mark.parametrize("row", rows("FP24"), ids=str)
def test_abandoned_steps(row: Row, tmp_path: Path) -> None:
    write_series(tmp_path / "exp_001" / "events.out.tfevents.1", {"x": [1.0] * 12}, 1000.0)
    write_series(tmp_path / "exp_002" / "events.out.tfevents.2", {"x": {11: 1.0}}, 2000.0)
    assert judge(tmp_path, 'data["x"]["12"] > 0').outcome is Outcome.FAIL, row.right
    assert judge(tmp_path, 'data["x"]["11"] > 0').outcome is Outcome.PASS
    log = read_logs(tmp_path)
    assert log.series["x"].abandoned == 2
    assert any("steps 11 to 12" in note and "abandoned" in note for note in log.notes)


@pytest.mark.parametrize("row", rows("FP25"), ids=str)
@pytest.mark.parametrize("bad", [1, 7777, 13_001, 20_000])
def test_no_point_is_sampled_away(row: Row, tmp_path: Path, bad: int) -> None:
    values = [1.0] * 20_000
    values[bad - 1] = 3.0
    write_series(tmp_path / "events.out.tfevents.1", {"x": values})
    assert judge(tmp_path, MAX_BELOW_2).outcome is Outcome.FAIL, row.right


@pytest.mark.parametrize("row", rows("FP26"), ids=str)
@pytest.mark.parametrize(
    ("value", "outcome"), [(1.0, Outcome.PASS), (3.0, Outcome.FAIL), (math.nan, Outcome.FAIL)]
)
def test_tensor_scalars(row: Row, tmp_path: Path, value: float, outcome: Outcome) -> None:
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[value])
    held = summary_pb2.Summary.Value(tag="x", tensor=tensor)
    held.metadata.plugin_data.plugin_name = "scalars"
    summary = summary_pb2.Summary(value=[held])
    write_events(
        tmp_path / "events.out.tfevents.1",
        [event_pb2.Event(wall_time=1.0, step=step, summary=summary) for step in range(1, 6)],
    )
    assert judge(tmp_path, MAX_BELOW_2).outcome is outcome, row.right


@pytest.mark.parametrize("row", rows("FP27"), ids=str)
def test_the_peak_of_the_first_attempt(row: Row, tmp_path: Path) -> None:
    tag = "ray/node.0.gpu.0.mem_gb"
    for number, peak in ((1, 79.0), (2, 10.0)):
        series = {tag: {0: 8.0, 30: peak}, "train/loss": {number: 1.0}}
        write_series(tmp_path / f"exp_00{number}" / f"events.out.tfevents.{number}", series, 1000.0 * number)
    text = f'max(data["{tag}"]) < 75'
    assert judge(tmp_path, text).outcome is Outcome.FAIL, row.right
    main(["dump", str(tmp_path), "--output", str(tmp_path / "dumped.json")])
    assert judge(tmp_path / "dumped.json", text).outcome is Outcome.FAIL


@pytest.mark.parametrize("row", rows("FP28"), ids=str)
@pytest.mark.parametrize("holes", [[7, 12], [0], [18, 19], [*range(3, 11)]], ids=str)
def test_a_value_that_the_writer_dropped(row: Row, tmp_path: Path, holes: list[int]) -> None:
    lines = [{"step": step, "time": 1.7e9 + step, "x": 1.0, "y": 1.0} for step in range(20)]
    for step in holes:
        del lines[step]["x"]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    main(["dump", str(tmp_path), "--output", str(tmp_path / "dumped.json")])
    for log in (tmp_path / "metrics.jsonl", tmp_path / "dumped.json"):
        verdict = judge(log, MAX_BELOW_2)
        assert verdict.outcome is Outcome.BLOCKED, row.right
        assert (
            f"has no value at step{'s' * (len(holes) > 1)} {', '.join(map(str, holes[:5]))}" in verdict.reason
        )
        assert judge(log, 'max(data["x"]) < 0.5').outcome is Outcome.FAIL
        assert judge(log, 'max(data["y"]) < 2').outcome is Outcome.PASS
        assert judge(log, 'max(data["x"], steps(13, 16)) < 2').outcome is Outcome.PASS


@pytest.mark.parametrize("row", rows("FP28"), ids=str)
def test_a_hole_of_any_series_is_reported(row: Row, tmp_path: Path) -> None:
    lines = [{"step": step, "x": 1.0, "y": 1.0} for step in range(20) if step not in (7, 12)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert any("x has none at 7, 12" in note for note in read_logs(tmp_path).notes), row.right


@pytest.mark.parametrize("row", rows("FP29"), ids=str)
def test_lines_of_another_form(row: Row, tmp_path: Path) -> None:
    lines = [json.dumps({"step": step, "x": 1.0}) for step in range(1, 21)]
    lines[4] = "Step 5 | x: nan | Time: 3s"
    lines[9] = '{"step": 10, "x": -'
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    verdict = judge(tmp_path, MAX_BELOW_2)
    assert verdict.outcome is Outcome.BLOCKED, row.right
    assert "2 of 20 lines" in verdict.reason
    assert "5, 10" in verdict.reason
