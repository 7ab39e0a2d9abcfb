"""`seatrial tags` says what each tag is, for the stack that is recognised or named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial.cli import main

TRL = {
    "train/frac_reward_zero_std": {"1": 0.25},
    "train/completions/mean_length": {"1": 14},
    "my/own": {"1": 1},
}


def rows(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, object]]:
    assert main(["tags", str(path), "--json", *words]) == 0
    return {row["tag"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}


def test_a_recognised_log_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "metrics.json"
    log.write_text(json.dumps(TRL))
    found = rows(log, capsys)
    length = found["train/completions/mean_length"]
    assert (length["canonical"], length["unit"]) == ("length/completion_mean", "tokens")
    assert length["meaning"] == "mean completion length"
    assert found["my/own"]["canonical"] == ""
    main(["tags", str(log)])
    out = capsys.readouterr().out
    assert "3 tags in 1 file; stack trl" in out
    assert "reward/zero_variance_fraction" in out


def test_a_stack_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "metrics.json"
    log.write_text(json.dumps({"actor/entropy": {"1": 2.5}}))
    assert rows(log, capsys)["actor/entropy"]["canonical"] == ""
    assert rows(log, capsys, "--stack", "verl")["actor/entropy"]["canonical"] == "entropy"
    assert main(["tags", str(log), "--stack", "veral"]) == 2
    assert "did you mean 'verl'" in capsys.readouterr().err
