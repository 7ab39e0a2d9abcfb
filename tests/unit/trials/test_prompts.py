"""What a trial says of prompts that are not those of the task, of one split, or as often as the others."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.prompts import prompts_are_the_tasks

REVERSE = {"task": "reverse", "task_args": {"min_length": 1, "max_length": 2, "alphabet_size": 2}}
TRAINED = [(0, "reverse a=", "a"), (1, "reverse b=", "b"), (2, "reverse ab=", "ba")]


def said(folder: Path, data: dict[str, Any], trained: list[Any], *validations: list[Any]) -> str:
    """Return what is wrong with prompts of number, text and answer, one row of each group."""
    for step, rows in enumerate(validations):
        lines = [json.dumps(dict(zip(("prompt_id", "prompt", "answer"), row, strict=True))) for row in rows]
        (folder / f"validation_data_step{step}.jsonl").write_text("\n".join(lines))
    configuration = {"data": data, "grpo": {"num_generations_per_prompt": 1}}
    job: Any = SimpleNamespace(configuration=configuration, ledger_dir=folder, byte_level=True)
    evidence = RunEvidence(job, None, [])  # type: ignore[arg-type]
    evidence.__dict__["ledger"] = [
        LedgerRow(step=1, index=index, prompt_id=number, prompt=prompt, answer=answer)
        for index, (number, prompt, answer) in enumerate(trained)
    ]
    return "; ".join(prompts_are_the_tasks(evidence)[0])


@pytest.mark.parametrize(
    ("task", "arguments", "prompt"),
    [
        ("reverse", {"max_length": 2}, "reverse abc="),
        ("reverse", {}, "reverse abcde="),
        ("lookup", {"alphabet_size": 2}, "price c:"),
        ("add", {"digits": 1}, "12+7="),
        ("count_letters", {}, "count a in abcabcab="),
        ("code_print", {"num_operators": 1}, "print 3*4:"),
        ("code_print", {"limit": 4}, "print 3+4:"),
        ("add", {}, "reverse a="),
    ],
)
def test_a_prompt_of_other_arguments_is_seen(
    tmp_path: Path, task: str, arguments: dict[str, int], prompt: str
) -> None:
    """Documented values hold for arguments that are not given."""
    data = {"task": task, "task_args": arguments}
    assert f"no prompt of data.task={task}" in said(tmp_path, data, [(0, prompt, "")])


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ([20 * number for number in range(16)], ""),
        (list(range(16)), "all 16 prompts are among the first 16 of 324"),
        (list(range(308, 324)), "are among the last 16 of 324"),
        ([3, 324], "prompt 324 of data.task=colour, which has 324"),
        ([0, 1, 9], ""),
    ],
)
def test_prompts_of_a_part_of_the_task_are_seen(tmp_path: Path, numbers: list[int], wrong: str) -> None:
    """Chance leaves none of so many quarters out; of three prompts it may."""
    prompt = "<|media|>" * 4 + "a="
    found = said(tmp_path, {"task": "colour"}, [(number, prompt, "") for number in numbers])
    assert wrong in found
    assert bool(found) is bool(wrong)


def test_sound_prompts_pass(tmp_path: Path) -> None:
    """Over two epochs of other orders, and two validations."""
    order = [*TRAINED, TRAINED[2], TRAINED[0], TRAINED[1]]
    held_out = [(3, "reverse ba=", "ab")]
    assert said(tmp_path, {**REVERSE, "num_train": 3}, order, held_out, held_out) == ""


@pytest.mark.parametrize(
    ("data", "trained", "validations", "wrong"),
    [
        ({}, [TRAINED[0], TRAINED[0], TRAINED[0]], [], ""),
        ({}, [TRAINED[0], TRAINED[1], TRAINED[0], TRAINED[0]], [], "comes again before others"),
        ({}, TRAINED, [[TRAINED[1]]], "1 held-out prompts are trained on"),
        ({"num_train": 2}, TRAINED, [], "3 different prompts, and data.num_train is 2"),
        ({}, [(0, "reverse a=", "b")], [], "the answer of 'reverse a=' is 'a'"),
        ({}, [(0, "reverse a=", "a"), (0, "reverse b=", "b")], [], "and another one"),
        ({}, [], [[TRAINED[0]], [TRAINED[1]]], "the validation of step 1 has other prompts"),
    ],
)
def test_other_prompts_are_seen(
    tmp_path: Path, data: dict[str, Any], trained: list[Any], validations: list[list[Any]], wrong: str
) -> None:
    """Each by a line of its own."""
    found = said(tmp_path, {**REVERSE, **data}, trained, *validations)
    assert wrong in found
    assert bool(found) is bool(wrong)
