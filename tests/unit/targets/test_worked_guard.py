"""A run's own process is asked worked examples of what sets the run apart."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from refrl.config import GRPORunConfig, load_config
from refrl.recipes import recipe_path
from seatrial.guards import Guards
from seatrial.relations.contracts.worked import SUBJECTS, WorkedExample
from seatrial.targets.reference.guards import worked
from seatrial.targets.reference.worked.examples import ReferenceExamples
from seatrial.trials.sensors.guards import GUARDS_HOLD
from seatrial.verdict import Outcome


def config(recipe: str, *words: str) -> GRPORunConfig:
    return load_config(GRPORunConfig, recipe_path(recipe), list(words))


@pytest.mark.parametrize(
    ("recipe", "words", "asked"),
    [
        ("grpo-async", (), "asynchronous"),
        ("grpo-refit-noncolocated", (), "links"),
        ("grpo-checkpoint-save", (), "samplers"),
        ("grpo-lora", (), "returns"),
        ("grpo-smoke", ("policy.megatron_cfg.enabled=true",), "megatron"),
        ("grpo-smoke", ("policy.draft.enabled=true",), "offers"),
        ("grpo-vlm", (), "texts"),
    ],
)
def test_runs_ask_for_their_own_parts(recipe: str, words: Sequence[str], asked: str) -> None:
    subjects = worked.subjects_of(config(recipe, *words))
    assert asked in subjects
    assert {*subjects} < {*SUBJECTS} and "options" not in subjects


def test_a_plain_run_has_all_but_parts_of_other_runs() -> None:
    assert {*worked.subjects_of(config("grpo-smoke"))} == SUBJECTS.keys() - {*worked.ELSEWHERE}
    assert {*worked.ELSEWHERE} < SUBJECTS.keys()


def test_a_run_that_executes_programs_has_their_examples_too() -> None:
    code = ("data.task=code_print", "data.verifier=code_output")
    plain = {*worked.subjects_of(config("grpo-smoke"))}
    assert {*worked.subjects_of(config("grpo-smoke", *code))} == {*plain, "programs", "sandboxes"}


def test_a_wrong_result_fails_and_what_examples_print_is_not_the_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def says() -> int:
        print("one")
        print("two", file=sys.stderr)
        return 1

    def unavailable() -> int:
        raise ModuleNotFoundError("No module named 'made_package'", name="made_package.part")

    made = [
        WorkedExample(name="right", call=says, right=1),
        WorkedExample(name="other", call=unavailable, right=1),
    ]
    monkeypatch.setattr(ReferenceExamples, "worked_examples", lambda self, subject: made)
    monkeypatch.setattr(worked, "subjects_of", lambda config: ["calls"])
    guards = Guards(raises=False)
    worked.WorkedExamples(config("grpo-smoke")).check(guards)
    assert guards.summary()[f"guard {worked.WORKED}"] == {"asked": 1, "failed": None, "blocked": None}
    assert any("made_package, which is not installed" in name for name in guards.summary())
    made.append(WorkedExample(name="wrong", call=says, right=2))
    worked.WorkedExamples(config("grpo-smoke")).check(guards)
    failed = guards.summary()[f"guard {worked.WORKED}"]["failed"]
    assert failed is not None and "wrong: 1, right is 2" in str(failed)
    assert capsys.readouterr() == ("", "")


def test_two_processes_share_the_subjects_and_one_that_ends_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each subject is asked once; what a process of its own was asked when it ended is not taken for right."""
    here = os.getpid()

    def examples(self: object, subject: str) -> Sequence[WorkedExample]:
        def call() -> str:
            if os.getpid() == here:
                time.sleep(0.01)
            elif subject.startswith("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            elif subject.startswith("ends"):
                os._exit(4)
            return subject

        return [WorkedExample(name=subject, call=call, right=subject)]

    monkeypatch.setattr(ReferenceExamples, "worked_examples", examples)
    monkeypatch.setattr(worked, "_has_one_thread", lambda: True)

    def asked(*subjects: str) -> dict[str, Any]:
        monkeypatch.setattr(worked, "subjects_of", lambda config: subjects)
        guards = Guards(raises=False)
        worked.WorkedExamples(config("grpo-smoke")).check(guards)
        return {"number": guards.verdicts[0].num_samples, **guards.summary()[f"guard {worked.WORKED}"]}

    found = asked(*(f"made {number}" for number in range(40)))
    assert (found["number"], found["failed"], found["blocked"]) == (40, None, None)
    for what, kind in (("killed", "blocked"), ("ends", "failed")):
        found = asked(*(f"{what} {number}" for number in range(20)))
        assert found["number"] == 19 and f"asked for {what}" in found[kind]["reason"]


def test_a_blocked_guard_blocks_the_trial_unless_another_fails(tmp_path: Path) -> None:
    guards, path = Guards(raises=False), tmp_path / "guards.json"
    evidence: Any = SimpleNamespace(job=SimpleNamespace(guards_file=path))
    steps: list[tuple[Callable[[], None], Outcome]] = [
        (lambda: guards.hold("a", True, "", number=1), Outcome.PASS),
        (lambda: guards.block("b", "memory was short"), Outcome.BLOCKED),
        (lambda: guards.hold("c", False, "wrong", number=1), Outcome.FAIL),
    ]
    for record, outcome in steps:
        record()
        path.write_text(json.dumps(guards.summary()), encoding="utf-8")
        verdict = GUARDS_HOLD.judge(evidence)
        assert verdict.outcome is outcome
        assert (outcome is Outcome.BLOCKED) == ("guard b: memory was short" in verdict.reason)
