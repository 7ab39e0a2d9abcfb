"""What the trial of asynchronous rollouts asks of the groups that a run left."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.trials.async_filter_flow import (
    groups_are_the_rows,
    groups_closed,
    none_stale,
    stale_separated,
)
from seatrial.verdict import Outcome

Groups = dict[int, list[dict[str, Any]]]


def good() -> Groups:
    """Return three steps of two groups, a step old, and a group that had become too old before the third."""
    steps: Groups = {
        step: [group(2 * step - 2 + place, step, max(0, step - 2)) for place in range(2)] for step in (1, 2)
    }
    steps[3] = [group(4, 3, 0, "stale"), group(5, 3, 1), group(6, 3, 1)]
    return steps


def group(number: int, step: int, weight_step: int, fate: str = "trained") -> dict[str, Any]:
    """Return a group as the log has it."""
    return {"number": number, "prompt_id": number, "fate": fate, "weight_step": weight_step, "step": step}


def evidence(folder: Path, steps: Groups) -> Any:
    """Return a run of three steps of two groups of four, at most a step old."""
    for step, groups in steps.items():
        lines = [json.dumps(one) + "\n" for one in groups]
        (folder / f"group_data_step{step}.jsonl").write_text("".join(lines))
    options = {
        "grpo": {"async_grpo": {"in_flight_weight_updates": False}},
        "policy": {"train_global_batch_size": 8},
    }
    job = SimpleNamespace(
        ledger_dir=folder,
        num_steps=3,
        num_rows_per_step=8,
        num_generations_per_prompt=4,
        max_lag=1,
        configuration=options,
    )
    return SimpleNamespace(job=job)


def rows_of(steps: Groups) -> list[LedgerRow]:
    """Return the rows of the groups that were trained on."""
    return [
        LedgerRow(
            step=step,
            index=4 * place + sample,
            prompt_id=one["prompt_id"],
            weight_version=one["weight_step"],
            prompt_length=1,
            token_ids=(1, 2),
            loss_mask=(0, 1),
        )
        for step, groups in steps.items()
        for place, one in enumerate(group for group in groups if group["fate"] == "trained")
        for sample in range(4)
    ]


@pytest.mark.parametrize("changed", [{}, {"prompt_id": 9}, {"weight_step": 1}])
def test_groups_are_those_of_the_rows(tmp_path: Path, changed: dict[str, int]) -> None:
    """Their prompts and the weights that they began with."""
    run = evidence(tmp_path, good())
    run.ledger = rows_of(good())
    (tmp_path / "group_data_step1.jsonl").write_text(
        "".join(json.dumps({**one, **changed} if one["number"] == 0 else one) + "\n" for one in good()[1])
    )
    wrong, _, number = groups_are_the_rows(run)
    assert (bool(wrong), number) == (bool(changed), 6)


def test_a_run_that_accounts_for_every_group_passes(tmp_path: Path) -> None:
    """Both questions, on the groups that there are."""
    run = evidence(tmp_path, good())
    for judge in (groups_closed, stale_separated):
        verdict = judge(run)
        assert (verdict.outcome, verdict.num_samples) == (Outcome.PASS, 7)


@pytest.mark.parametrize(
    "damage",
    [
        lambda steps: steps[2].append(group(0, 2, 0)),
        lambda steps: steps[2].pop(),
        lambda steps: steps.pop(2),
        lambda steps: steps[3].pop(0),
        lambda steps: steps.clear(),
    ],
    ids=["twice", "short step", "no step", "lost", "nothing"],
)
def test_a_group_that_is_lost_or_used_twice_fails(tmp_path: Path, damage: Callable[[Groups], object]) -> None:
    """And so does a run that left no groups at all."""
    steps = good()
    damage(steps)
    assert groups_closed(evidence(tmp_path, steps)).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    "damage",
    [
        lambda steps: steps[3][1].update(weight_step=0),
        lambda steps: steps[3][0].update(weight_step=1),
        lambda steps: steps[1][0].update(weight_step=1),
        lambda steps: steps.clear(),
    ],
    ids=["stale trained", "fresh dropped", "weights of the future", "nothing"],
)
def test_a_group_on_the_wrong_side_fails(tmp_path: Path, damage: Callable[[Groups], object]) -> None:
    """The bound is inclusive: a step old is fresh."""
    steps = good()
    damage(steps)
    assert stale_separated(evidence(tmp_path, steps)).outcome is Outcome.FAIL


def test_a_truncated_file_blocks(tmp_path: Path) -> None:
    """It is no evidence of a fault."""
    run = evidence(tmp_path, good())
    (tmp_path / "group_data_step2.jsonl").write_text('{"number": 2, "fa')
    with pytest.raises(BlockedError, match="is not whole"):
        groups_closed(run)


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({}, Outcome.FAIL),
        ({"drop_zero_variance": False, "drop_longer_than": None}, Outcome.FAIL),
        ({"in_flight_weight_updates": True}, Outcome.NOT_REQUESTED),
        ({"drop_zero_variance": True}, Outcome.NOT_REQUESTED),
        ({"drop_longer_than": 40}, Outcome.NOT_REQUESTED),
    ],
)
def test_a_stale_group_fails_unless_an_option_explains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], outcome: Outcome
) -> None:
    """Where groups are dropped, the next ones fill the step, and what is left of these waits."""
    facts = {"config": {"grpo": {"async_grpo": options}}}
    monkeypatch.setattr("seatrial.trials.async_filter_flow.run_facts", lambda evidence: facts)
    assert none_stale(evidence(tmp_path, good())).outcome is outcome
