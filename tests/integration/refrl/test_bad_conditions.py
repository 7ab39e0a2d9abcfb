"""A run that cannot give what its configuration asks for ends with one message, and keeps what it logged."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from refrl.checkpointing.layout import latest_checkpoint
from refrl.cli import main
from refrl.lifeline import PARENT
from refrl.rewards import VERIFIERS, VerifierError

from .conftest import CONFIGS, ROOT

Overrides = Callable[[str], list[str]]
SMOKE = str(CONFIGS / "grpo-smoke.yaml")
QUICK = ("grpo.max_num_steps=2", "grpo.val_at_start=false", "grpo.val_at_end=false")
SAVING = ("checkpointing.save_period=1", "checkpointing.keep_top_k=1")


def grpo(overrides: list[str], *more: str) -> int:
    """Run refrl in this process and return its exit code."""
    return main(["grpo", "--config", SMOKE, *overrides, *QUICK, *more])


@pytest.mark.parametrize(
    ("metric", "change", "words"),
    [
        ("val:acuracy", "grpo.val_period=1", "is not a metric of this run: did you mean 'val:accuracy'?"),
        ("val:val_loss", "grpo.val_period=1", "known: val:accuracy, val:avg_length"),
        ("val:accuracy", "grpo.val_period=0", "set grpo.val_period to a divisor of"),
        ("train:rewrad", "grpo.val_period=0", "is not a metric of this run: did you mean 'train:reward'?"),
    ],
)
def test_a_misspelt_ranking_metric_is_refused(
    overrides: Overrides, capfd: pytest.CaptureFixture[str], metric: str, change: str, words: str
) -> None:
    """Otherwise every checkpoint lacks the metric, and the latest are kept in place of the best."""
    assert grpo(overrides("a"), *SAVING, change, f"checkpointing.metric_name={metric}") == 2
    told = capfd.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_a_ranking_metric_that_is_logged_is_taken(overrides: Overrides, tmp_path: Path) -> None:
    """The metric of the step is in the checkpoint."""
    assert grpo(overrides("a"), *SAVING, "checkpointing.metric_name=train:reward") == 0
    checkpoint = latest_checkpoint(tmp_path / "a" / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.info.metric is not None


def test_a_verifier_that_judges_nothing_ends_the_run_after_its_log(
    overrides: Overrides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Programs are asked for, and the answers are words: every reward is 0 by error."""

    def unable(completion: str, answer: str) -> float:
        raise VerifierError(f"needs tests, got {answer!r}")

    monkeypatch.setitem(VERIFIERS, "byte_closeness", unable)
    assert grpo(overrides("a")) == 1
    told = capfd.readouterr().err
    assert "step 1: the verifier could not judge 100% of the completions" in told
    assert "grpo.max_verifier_error_share=0.9; the first error is row 0: needs tests" in told
    assert len((tmp_path / "a" / "logs" / "train_data_step1.jsonl").read_text().splitlines()) == 16
    assert grpo(overrides("b"), "grpo.max_verifier_error_share=1") == 0


def test_a_run_whose_rewards_are_all_0_says_so(
    overrides: Overrides, capfd: pytest.CaptureFixture[str]
) -> None:
    """An untrained model never asks the tool, and never guesses a price."""
    lookup = ("data.task=lookup", "data.task_args={}", "data.verifier=null", "data.environment=lookup")
    assert grpo(overrides("a"), *lookup) == 0
    told = capfd.readouterr().out
    assert "every completion of steps 1 to 2 has reward 0: the policy had nothing to learn from" in told
    assert "data.environment answered no completion" in told
    assert grpo(overrides("b")) == 0
    assert "has reward 0" not in capfd.readouterr().out


def test_credentials_are_masked_in_what_a_run_leaves(
    overrides: Overrides, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In run_info.json, in checkpoints, and in messages; the masked run resumes."""
    observer = "logger.observers=[]"
    secret = "data.system_prompt=ask https://me:pa/ss@word@host.example/x"
    words = [*overrides("a"), *SAVING[:1], observer, secret, "policy.tokenizer.chat_template=byte"]
    words += ["policy.max_total_sequence_length=128"]
    assert grpo(words) == 0
    for path in (tmp_path / "a").rglob("*.json"):
        assert "pa/ss" not in path.read_text(), path
    capfd.readouterr()
    assert grpo([*words, "grpo.max_num_steps=3"]) == 0
    told = capfd.readouterr().out
    assert "resuming after step 2" in told
    assert "system_prompt" not in told
    assert grpo([*overrides("b"), "policy.model_name=https://me:pa/ss@word@host.example/x"]) == 2
    assert "https:/[masked]@host.example/x" in capfd.readouterr().err


def test_a_flipped_digit_of_training_info_falls_back_to_the_checkpoint_before(
    overrides: Overrides, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Counters and cursors have no other digest."""
    assert grpo(overrides("a"), "checkpointing.save_period=1") == 0
    root = tmp_path / "a" / "checkpoints"
    path = root / "step_2" / "training_info.json"
    content = path.read_text()
    path.write_text(content.replace('"seed": ', '"seed":  ', 1))
    json.loads(path.read_text())
    capfd.readouterr()
    found = latest_checkpoint(root)
    assert found is not None
    assert found.info.step == 1
    assert "training_info.json does not match its digest" in capfd.readouterr().out


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux alone ends a child with its parent")
def test_a_generator_ends_with_its_parent_while_it_imports() -> None:
    """The parent is killed before the child has imported torch: the child reads no message yet, and must not stay."""
    child = (
        "import sys; sys.modules['torch'] = None\n"
        "from refrl.lifeline import end_with_parent\n"
        "end_with_parent(); print('ready', flush=True)\n"
        "import signal; signal.pause()"
    )
    parent = (
        "import os, subprocess, sys, signal\n"
        f"environment = {{**os.environ, {PARENT!r}: str(os.getpid())}}\n"
        f"process = subprocess.Popen([sys.executable, '-c', {child!r}], env=environment)\n"
        "print(process.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as started:
        assert started.stdout is not None
        lines = {started.stdout.readline().strip(), started.stdout.readline().strip()}
        assert "ready" in lines
        started.send_signal(signal.SIGKILL)
        # The pipe ends when the last process that holds it, the child, has ended.
        assert started.stdout.read() == ""
