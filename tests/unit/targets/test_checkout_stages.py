"""NeMo RL and verl from a checkout: their tables, what a dry run prints, and what preflight finds missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from seatrial.checks import parse_check
from seatrial.cli import main
from seatrial.errors import BlockedError, UsageError
from seatrial.targets import get_target
from seatrial.targets.common import preflight
from seatrial.targets.common.checkout_trials import CheckoutTrials
from seatrial.targets.common.stages import Stage, read_stages, unmet
from seatrial.trials.plan import all_trials
from seatrial.verdict import Outcome

STACKS = ("nemo_rl", "verl")


@pytest.mark.parametrize("stack", STACKS)
def test_the_table_names_trials_that_exist_and_checks_that_parse(stack: str) -> None:
    table = read_stages(f"seatrial.targets.{stack}")
    known = {trial.name for trial in all_trials()}
    assert {*table.stages, *table.absent} <= known
    assert not table.stages.keys() & table.absent.keys()
    gates = [gate for stage in table.stages.values() for gate in stage.gates if "data[" in gate]
    assert gates
    for gate in gates:
        parse_check(gate)
    for stage in table.stages.values():
        assert bool(stage.script) != bool(stage.command), stage.trial
        assert stage.gates, stage.trial
        assert stage.expects, stage.trial


@pytest.mark.parametrize("stack", STACKS)
def test_every_level_of_the_workflow_has_a_stage_or_a_reason(stack: str) -> None:
    table = read_stages(f"seatrial.targets.{stack}")
    levels = {trial.name: trial.level for trial in all_trials()}
    assert {levels[name] for name in (*table.stages, *table.absent)} == {0, 1, 2, 3, 4, 5, 6}


def test_no_option_can_be_accepted_without_effect() -> None:
    """A key with + or ++ is accepted whether or not the stack has it."""
    for stack in STACKS:
        table = read_stages(f"seatrial.targets.{stack}")
        words = [
            *table.words,
            *(word for stage in table.stages.values() for word in (*stage.command, *stage.words)),
        ]
        assert not [word for word in words if word.startswith("+")]


@pytest.mark.parametrize(("name", "stack"), [("nemo-rl", "nemo_rl"), ("verl", "verl")])
def test_a_dry_run_prints_every_command_file_and_gate(
    name: str, stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["run", "--target", name, "--level", "0-6", "--dry-run", f"checkout={tmp_path}"])
    printed = capsys.readouterr().out
    assert code == 0
    table = read_stages(f"seatrial.targets.{stack}")
    for stage in table.stages.values():
        assert f" {stage.trial}: {stage.seed}" in printed
        assert (stage.script or stage.command[-1]) in printed
        assert all(f"gate     {gate}" in printed for gate in stage.gates)
        assert all(f"config   {key} = {json.dumps(value)}" in printed for key, value in stage.expects.items())
    for trial, reason in table.absent.items():
        assert f"{trial}: Not requested: {reason}" in printed
    for check in table.checks:
        assert all(test in printed for test in check.tests)


def test_a_run_without_gpus_is_blocked_by_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything starts, and only what the requested trial needs is asked for."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(preflight, "_said", lambda argv, environment=None: None)
    words = ["--target", "nemo-rl", "--level", "0", "--output", str(tmp_path / "runs")]
    assert main(["run", *words, f"checkout={tmp_path}"]) == 3
    capsys.readouterr()
    (report,) = (tmp_path / "runs").glob("*/report.md")
    text = report.read_text()
    for missing in (
        "has no commit",
        "GPUs: 0 GPUs",
        "model Qwen/Qwen2.5-0.5B: not in",
        "has no src/megatron/bridge",
    ):
        assert missing in text, missing
    assert "Qwen3-30B" not in text


def test_words_that_are_no_checkout_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERL_REPO", raising=False)
    target = get_target("verl")
    with pytest.raises(UsageError, match="take checkout=DIR and bridge=DIR"):
        target.check_overrides(["grpo.max_num_steps=3"])
    with pytest.raises(BlockedError, match="set VERL_REPO: git clone"):
        target.check_overrides([])
    with pytest.raises(BlockedError, match="is not a folder"):
        target.check_overrides([f"checkout={tmp_path / 'nowhere'}"])
    assert isinstance(target, CheckoutTrials)


def test_what_a_stage_expects_is_compared_with_what_was_composed() -> None:
    stage = Stage(trial="x", seed="", model="m", gpus=1, expects={"a.b": True, "a.c": 2})
    assert unmet(stage, {"a.b": True, "a.c": 2}) == []
    assert unmet(stage, {"a.b": False}) == ["a.b is False, expected True", "a.c is 'not set', expected 2"]


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_a_checkout_is_named_by_commit_and_its_gaps_block(tmp_path: Path) -> None:
    """Changed files are named; a missing submodule and a shallow clone are Blocked with the command that repairs it."""
    origin = tmp_path / "origin"
    origin.mkdir()
    _git(origin, "init", "-q")
    (origin / "a.py").write_text("1")
    _git(origin, "add", ".")
    _git(origin, "commit", "-qm", "one")
    (origin / "a.py").write_text("2")
    (state, submodules) = preflight.repository("x", origin, ["sub"])
    assert state.outcome is Outcome.PASS
    assert "1 files changed, first M a.py" in state.reason
    assert submodules.outcome is Outcome.BLOCKED
    assert "submodule update --init" in submodules.reason
    _git(origin, "commit", "-qam", "two")
    _git(tmp_path, "clone", "-q", "--depth", "1", f"file://{origin}", "shallow")
    shallow = preflight.repository("x", tmp_path / "shallow")[1]
    assert shallow.outcome is Outcome.BLOCKED
    assert "fetch --unshallow" in shallow.reason


def test_a_model_in_the_cache_is_read(tmp_path: Path) -> None:
    root = tmp_path / "hub" / "models--a--b" / "snapshots" / "1"
    root.mkdir(parents=True)
    assert "hf download a/b" in preflight.snapshot("a/b", tmp_path).reason
    (root / "config.json").write_text("{}")
    (root / "tokenizer.json").write_text("{}")
    save_file({"w": np.ones(3, dtype=np.float32)}, root / "model.safetensors")
    assert preflight.snapshot("a/b", tmp_path).outcome is Outcome.PASS
    (root / "model.safetensors.index.json").write_text('{"weight_map": {"w": "x", "v": "y"}}')
    assert "v is missing" in preflight.snapshot("a/b", tmp_path).reason
    whole = (root / "model.safetensors").read_bytes()
    (root / "model.safetensors").write_bytes(whole[:-4])
    assert "does not load" in preflight.snapshot("a/b", tmp_path).reason


def test_the_origin_of_a_module_is_asked_of_the_runs_own_interpreter(tmp_path: Path) -> None:
    """With the variables of the run, and without importing it."""
    (tmp_path / "mystack").mkdir()
    (tmp_path / "mystack" / "__init__.py").write_text("raise SystemExit(1)")
    variables = {"PYTHONPATH": str(tmp_path)}
    right = preflight.origins("run", sys.executable, ["mystack"], {"mystack": tmp_path}, variables)
    assert right[0].outcome is Outcome.PASS
    elsewhere = preflight.origins(
        "run", sys.executable, ["mystack"], {"mystack": tmp_path / "other"}, variables
    )
    assert elsewhere[0].outcome is Outcome.BLOCKED
    missing = preflight.origins("run", sys.executable, ["no_such_stack"], {}, variables)
    assert "install it for" in missing[0].reason


def test_an_interpreter_is_read_from_a_programs_first_lines(tmp_path: Path) -> None:
    for name, text in {
        "one": f"#!{sys.executable}\nimport x\n",
        "two": f"#!/bin/sh\n'''exec' '{sys.executable}' \"$0\" \"$@\"\n' '''\n",
        "three": "#!/bin/bash\necho\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    found = [preflight.interpreter_of(name, str(tmp_path)) for name in ("one", "two", "three", "four")]
    assert found == [sys.executable, sys.executable, None, None]


def test_doctor_writes_what_a_target_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preflight, "_said", lambda argv, environment=None: None)
    file = tmp_path / "checks.json"
    words = ["doctor", "--target", "verl", "--level", "0", "--json", str(file), f"checkout={tmp_path}"]
    assert main(words) == 3
    checks = json.loads(file.read_text())["checks"]
    assert {"GPUs", "checkout verl", "Ray cluster at auto"} <= {check["name"] for check in checks}
    assert main(["doctor", "--target", "trl"]) == 2
    assert "only YAML files, nemo-rl and verl" in capsys.readouterr().err
