"""`refrl profile` leaves a trace and a table of the step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from refrl.cli import main


def test_a_step_of_grpo_is_profiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "profile"
    model = tmp_path / "model"
    assert main(["make-model", "--output", str(model)]) == 0
    words = ["profile", "--config", "grpo-smoke", "--step", "2", "--output", str(output)]
    assert main([*words, f"policy.model_name={model}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("profile of step 2: ")
    events = {event["name"] for event in json.loads((output / "trace.json").read_text())["traceEvents"]}
    assert "aten::addmm" in events or "aten::mm" in events
    assert any("AdamW" in name for name in events)
    assert "aten::mm" in (output / "table.txt").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "0"], "--step 0: give a step from 1 on"),
        (["cluster.num_processes=2"], "a profile is of one process"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["profile", "--config", "grpo-smoke", "--output", str(tmp_path / "out"), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_directory_in_use_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept").write_text("")
    assert main(["profile", "--config", "grpo-smoke", "--output", str(tmp_path)]) == 2
    assert "is not an empty directory" in capsys.readouterr().err
