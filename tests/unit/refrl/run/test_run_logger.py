"""What a run writes is read back whole by TensorBoard's own reader, also when the run dies."""

import json
import math
import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from refrl.config import ConfigError, GRPORunConfig, LoggerConfig, load_config
from refrl.logging import RunLogger, console_line
from refrl.recipes import FOLDER

CONFIGS = FOLDER


def scalars(directory: Path) -> list[tuple[int, str, float]]:
    """Return (step, tag, value) in the order of writing."""
    (path,) = (directory / "tensorboard").iterdir()
    return [
        (event.step, value.tag, value.tensor.float_val[0])
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def test_scalars_are_read_back(tmp_path: Path) -> None:
    """Prefix, name, step and value, NaN and infinity among them."""
    with RunLogger(LoggerConfig(log_dir=str(tmp_path))) as logger:
        logger.log({"loss": 0.5, "grad_norm": math.inf}, 1, "train")
        logger.log({"accuracy": math.nan}, 0, "validation")
    first, second, third = scalars(tmp_path)
    assert first == (1, "train/loss", 0.5)
    assert second == (1, "train/grad_norm", math.inf)
    assert third[:2] == (0, "validation/accuracy")
    assert math.isnan(third[2])


def test_a_step_is_on_disk_when_log_returns(tmp_path: Path) -> None:
    """A process killed right after loses nothing: the file is read while it is still open."""
    logger = RunLogger(LoggerConfig(log_dir=str(tmp_path)))
    logger.log({"loss": 1.0}, 1, "train")
    assert scalars(tmp_path) == [(1, "train/loss", 1.0)]


def test_the_file_is_closed_when_the_run_fails(tmp_path: Path) -> None:
    """Nothing more can be written to it."""
    logger = RunLogger(LoggerConfig(log_dir=str(tmp_path)))
    with pytest.raises(KeyError), logger:
        raise KeyError("the run failed")
    with pytest.raises(ValueError, match="closed"):
        logger.log({"loss": 1.0}, 1, "train")


def test_what_is_switched_off_is_not_written(tmp_path: Path) -> None:
    """Neither events nor rows."""
    config = LoggerConfig(log_dir=str(tmp_path), tensorboard_enabled=False, log_train_data=False)
    with RunLogger(config) as logger:
        logger.log({"loss": 1.0}, 1, "train")
        logger.log_rows([{"step": 1}], "train_data", 1)
    assert list(tmp_path.iterdir()) == []


def test_rows_are_one_ascii_line_each(tmp_path: Path) -> None:
    """Texts hold whatever a model samples, line separators of every alphabet among them."""
    rows = [{"text": "a\u2028b\x85c\nd\U0001f600"}, {"text": "\ufffd"}]
    with RunLogger(LoggerConfig(log_dir=str(tmp_path))) as logger:
        logger.log_rows(rows, "train_data", 7)
    text = (tmp_path / "train_data_step7.jsonl").read_text(encoding="ascii")
    assert [json.loads(line) for line in text.splitlines()] == rows


def test_run_info_says_what_ran(tmp_path: Path) -> None:
    """Configuration, seed, process, and where the code came from."""
    config = load_config(GRPORunConfig, CONFIGS / "grpo-smoke.yaml")
    with RunLogger(LoggerConfig(log_dir=str(tmp_path))) as logger:
        logger.log_run_info(config, seed=7, device="cpu", sandbox="landlock")
    info = json.loads((tmp_path / "run_info.json").read_text())
    assert info["seed"] == 7
    assert info["pid"] == os.getpid()
    assert info["device"] == "cpu"
    assert info["sandbox"] == "landlock"
    assert GRPORunConfig.model_validate_json(json.dumps(info["config"])) == config
    import refrl

    assert Path(info["origins"]["refrl"]) == Path(str(refrl.__file__))
    assert isinstance(info["argv"], list)


def test_the_log_of_another_run_is_not_added_to(tmp_path: Path) -> None:
    """Evidence of two runs is never mixed."""
    config = load_config(GRPORunConfig, CONFIGS / "grpo-smoke.yaml")
    with RunLogger(LoggerConfig(log_dir=str(tmp_path))) as logger:
        logger.log_run_info(config, seed=7, device="cpu")
    with pytest.raises(ConfigError, match="holds the log of another run"):
        RunLogger(LoggerConfig(log_dir=str(tmp_path)))


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The key stands in the message."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"logger\.log_dir=.*cannot be written"):
        RunLogger(LoggerConfig(log_dir=str(tmp_path / "file")))


def test_the_console_line_is_readable() -> None:
    """Step of steps, then the figures that exist, in order."""
    line = console_line(3, 60, {"loss": 0.0123, "reward": 0.5, "other": 1.0}, ("reward", "loss", "missing"))
    assert line == "step  3/60  reward 0.5  loss 0.0123"
