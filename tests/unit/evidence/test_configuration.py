"""The configuration beside a log, and in what two differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial.evidence.configuration import differences, find_configuration


def test_it_is_read_from_every_form(tmp_path: Path) -> None:
    """refrl's, W&B's, Hydra's; beside the log or one folder above."""
    for name, text in (
        ("a/logs/run_info.json", json.dumps({"config": {"grpo": {"kl": 0.1}}})),
        ("b/config.yaml", "grpo: {kl: 0.1}\n"),
        ("c/config.yaml", "wandb_version: 1\ngrpo:\n  desc: null\n  value: {kl: 0.1}\n"),
        ("d/.hydra/config.yaml", "grpo:\n  kl: 0.1\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
        logs = tmp_path / name[0] / "logs"
        logs.mkdir(exist_ok=True)
        found = find_configuration(logs)
        assert found is not None
        assert found["grpo.kl"] == 0.1
    metrics = tmp_path / "b" / "metrics.json"
    metrics.write_text("{}")
    assert find_configuration(metrics) == {"grpo.kl": 0.1}


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: *b", "a: {", "\x00", "a: 1\na: 2\n"])
def test_what_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    """Empty, no mapping, aliases, cut, bytes, a key twice."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "config.yaml").write_text(text)
    assert find_configuration(tmp_path / "logs") is None


def test_keys_that_tell_runs_apart_may_differ() -> None:
    """A seed, folders and names; not a rate, and not a key that only one has."""
    one = {
        "grpo.seed": 1,
        "logger.log_dir": "a",
        "checkpointing.checkpoint_dir": "a",
        "run_name": "x",
        "lr": 1,
    }
    other = {
        **one,
        "grpo.seed": 2,
        "logger.log_dir": "b",
        "checkpointing.checkpoint_dir": "b",
        "run_name": "y",
    }
    assert differences(one, other) == []
    assert differences(one, {**other, "lr": 2, "kl": 0}) == ["kl", "lr"]
