"""`seatrial check` on logs that TensorBoard's own writer made."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from seatrial.cli import main
from seatrial.verdict import EXIT_BLOCKED, EXIT_FAIL, EXIT_PASS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    writer = EventFileWriter(str(tmp_path / "logs"))
    for step in range(1, 21):
        values = {"train/loss": 2.0 / step, "train/late": math.nan if step == 17 else 1.0}
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        writer.add_event(Event(wall_time=1000.0 + step, step=step, summary=summary))
    writer.close()
    return tmp_path / "logs"


def test_a_folder_is_judged_directly(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checks = ['data["train/loss"]["20"] <= 0.1001', 'coverage(data["train/loss"], steps(1, 20)) == 1']
    assert main(["check", str(folder), *checks]) == EXIT_PASS
    assert "samples 20, steps 1-20" in capsys.readouterr().out
    assert main(["check", str(folder), 'max(data["train/late"]) < 2']) == EXIT_FAIL
    assert "NaN at step 17" in capsys.readouterr().out
    assert main(["check", str(folder), 'max(data["train/los"]) < 2']) == EXIT_FAIL
    assert "train/loss" in capsys.readouterr().out


def test_a_folder_cut_in_a_record_is_blocked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [events] = folder.iterdir()
    events.write_bytes(events.read_bytes()[:-7])
    assert main(["check", str(folder), 'max(data["train/loss"]) < 9']) == EXIT_BLOCKED
    assert "damaged" in capsys.readouterr().out
