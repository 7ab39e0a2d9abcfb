"""The command: one message and an exit code; a run that is stopped leaves whole files."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from refrl.cli import main

from .conftest import CONFIGS, ROOT, command, start

SMOKE = str(CONFIGS / "grpo-smoke.yaml")


@pytest.mark.e2e
def test_a_model_is_made_and_trained_by_two_commands(tmp_path: Path) -> None:
    """As the first lines of the recipe say."""
    made = subprocess.run(
        command("make-model", "--output", str(tmp_path / "m"), "--num-layers", "1"), cwd=ROOT, check=False
    )
    assert made.returncode == 0
    overrides = [
        f"policy.model_name={tmp_path / 'm'}",
        f"logger.log_dir={tmp_path / 'l'}",
        f"checkpointing.checkpoint_dir={tmp_path / 'c'}",
    ]
    ran = subprocess.run(
        command("grpo", "--config", SMOKE, *overrides), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[1].startswith("step 1/3  reward ")
    assert ran.stderr == ""
    names = {path.name for path in (tmp_path / "c" / "final").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert (tmp_path / "l" / "run_info.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["grpo", "--config", "none.yaml"], "refrl grpo: configuration file none.yaml does not exist"),
        (
            ["grpo", "--config", SMOKE, "grpo.sed=1"],
            "unknown key 'grpo.sed'; the nearest known key is 'grpo.seed'",
        ),
        (["grpo", "--config", SMOKE, "grpo.seed"], "override 'grpo.seed' is malformed"),
        (["grpo", "--config", SMOKE, "policy.model_name=nowhere"], "is not a directory"),
        (["sft", "--config", SMOKE], "required key 'sft' is missing"),
        (["make-model", "--output", SMOKE], "not an empty directory"),
        (["make-model", "--output", "x", "--head-dim", "8"], "head_dim=8"),
    ],
)
def test_a_users_error_is_one_line_and_exit_code_2(
    words: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """No traceback; nothing on standard output."""
    assert main(words) == 2
    captured = capfd.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("words", [[], ["grpo"], ["fly"], ["make-model", "--output"]])
def test_wrong_words_are_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line names the mistake and the help."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("refrl") and line.endswith(" --help")


def test_help_and_validation_need_no_torch() -> None:
    """A wrong key is told in a fraction of a second."""
    script = (
        "import sys; sys.modules.update(torch=None, transformers=None)\n"
        "from refrl.cli import main\n"
        f"raise SystemExit(main(['grpo', '--config', {SMOKE!r}, 'grpo.sed=1']))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "grpo.seed" in ran.stderr


@pytest.mark.e2e
@pytest.mark.usefixtures("forked_processes")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_stopped_leaves_whole_files(
    overrides: Callable[[str], list[str]], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """The signal comes after the second step; its exit code says so, the log is read to the end."""
    process = start("grpo", "--config", SMOKE, *overrides("a"), "grpo.max_num_steps=100000")
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("step      2/100000") for line in lines)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.splitlines() == [f"refrl grpo: {'interrupted' if code == 130 else 'terminated'}"]
    (path,) = (tmp_path / "a" / "logs" / "tensorboard").iterdir()
    events = list(EventFileLoader(str(path)).Load())
    assert any(
        value.tag == "train/loss" for event in events if event.step == 2 for value in event.summary.value
    )
    assert not list((tmp_path / "a" / "logs").glob(".*"))
    assert not (tmp_path / "a" / "checkpoints" / "final").exists()


def test_a_full_disk_is_one_message(
    overrides: Callable[[str], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is no user's error and no bug: exit code 1, the system's words, no traceback."""

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("refrl.logging.write_atomically", full)
    assert main(["grpo", "--config", SMOKE, *overrides("a")]) == 1
    assert "No space left on device" in capfd.readouterr().err
