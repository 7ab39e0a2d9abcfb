"""A run's own process is asked worked examples of what sets the run apart."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from refrl.config import GRPORunConfig, load_config
from refrl.recipes import recipe_path
from seatrial.guards import Guards
from seatrial.relations import NotServed
from seatrial.relations.contracts.worked import SUBJECTS, WorkedExample
from seatrial.targets.reference.guards import worked


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
    ],
)
def test_runs_ask_for_their_own_parts(recipe: str, words: Sequence[str], asked: str) -> None:
    subjects = worked.subjects_of(config(recipe, *words))
    assert asked in subjects
    assert {*subjects} < {*SUBJECTS} and "options" not in subjects


def test_a_plain_run_asks_for_all_but_whole_runs() -> None:
    assert {*worked.subjects_of(config("grpo-smoke"))} == SUBJECTS.keys() - {*worked.ELSEWHERE}
    assert {*worked.ELSEWHERE} < SUBJECTS.keys()


def test_a_wrong_result_fails_and_what_examples_print_is_not_the_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def says() -> int:
        print("one")
        print("two", file=sys.stderr)
        return 1

    def not_served() -> int:
        raise NotServed("no such option")

    made = [
        WorkedExample(name="right", call=says, right=1),
        WorkedExample(name="other", call=not_served, right=1),
    ]
    monkeypatch.setattr(worked.ReferenceExamples, "worked_examples", lambda self, subject: made)
    monkeypatch.setattr(worked, "subjects_of", lambda config: ["calls"])
    guards = Guards(raises=False)
    worked.check_worked(config("grpo-smoke"), guards)
    assert guards.summary()[f"guard {worked.WORKED}"] == {"asked": 1, "failed": None}
    made.append(WorkedExample(name="wrong", call=says, right=2))
    worked.check_worked(config("grpo-smoke"), guards)
    failed = guards.summary()[f"guard {worked.WORKED}"]["failed"]
    assert failed is not None and "wrong: 1, right is 2" in str(failed)
    assert capsys.readouterr() == ("", "")
