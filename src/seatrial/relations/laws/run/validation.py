"""R23 of the whole run: validations come when they are due, with the weights of their step and numbers of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.measures.updates import validations_due
from seatrial.relations.not_served import NotServed
from seatrial.relations.records.evidence import same
from seatrial.relations.runs import RunCase, run_cases


def _when_due(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    steps, due = [one.step for one in record.validations], validations_due(record.options)
    return Measure(
        error=float(len(set(steps) ^ set(due)) + (steps != sorted(set(steps)))),
        bound=0,
        what=f"validations after other steps ({steps}) than those that are due ({due})",
    )


def _may_differ(stack: Any) -> str | None:
    """Return why validations of one policy may differ: not every stack draws the same numbers for each."""
    return None if getattr(stack, "validations_repeat", False) else "validations_repeat=False"


def _repeats(stack: Any, case: RunCase) -> Measure:
    """With weights that rest, validations of a run are one and the same: they differ by the policy, not by luck."""
    validations = case.record(stack).validations
    different = sum(not same(one.rows, validations[0].rows) for one in validations)
    return Measure(
        error=float(different) if len(validations) > 1 else 1.0,
        bound=0,
        what=f"validations of resting weights that differ from the first ({different} of {len(validations)})",
    )


@torch.no_grad()
def greedy_error(stack: Any, case: RunCase) -> Measure:
    """A greedy validation takes the likeliest token of the weights that the step left, again and again."""
    record = case.record(stack)
    wrong, looked = [], 0
    for one in record.validations:
        for (prompt_ids, ids), media in zip(
            one.sampled, one.media or (None,) * len(one.sampled), strict=True
        ):
            looked += 1
            seen = {} if media is None else {"media": media}
            logits_SV = stack.next_token_logits(record.weights_at(one.step), (*prompt_ids, *ids[:-1]), **seen)
            chosen = logits_SV[len(prompt_ids) - 1 :].double()
            behind = chosen.max(-1).values - chosen[torch.arange(len(ids)), list(ids)]
            if not float(behind.max()) <= 1e-3:  # nearly equal logits may change places in rounding
                wrong.append(f"after step {one.step}: {ids}")
    if not looked:
        raise NotServed("validations record no ids")
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"greedy completions that the weights of the step would not give ({(wrong or ['none'])[0]})",
    )


SCHEDULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("every second step", {"grpo__val_period": 2, "grpo__val_at_start": False, "grpo__max_num_steps": 3}),
    (
        "at both ends",
        {
            "grpo__val_period": 0,
            "grpo__val_at_start": True,
            "grpo__val_at_end": True,
            "grpo__max_num_steps": 3,
        },
    ),
    ("never", {"grpo__val_period": 0, "grpo__val_at_start": False}),
)
RESTING = {"grpo__val_period": 1, "grpo__val_at_start": True, "policy__optimizer__lr": 0.0}
GREEDY = {"grpo__val_period": 1, "grpo__val_at_start": True, "grpo__val_greedy": True}


def _law(name: str, measure: Any, suspects: str, options: dict[str, Any]) -> Law:
    return Law(
        name=name, make=run_cases(tuple(options), **options), measure=measure, suspects=suspects, seeded=False
    )


RELATIONS = (
    Relation(
        id="R23.schedule",
        name="run-validates-when-due",
        component="run",
        statement="Validations come after the steps that the options name, and judge the weights of their step.",
        catalogue=("SB040", "SB131", "SB134", "SB188", "SB390", "SB393", "SB398"),
        cost="CPU, seconds",
        laws=(
            *(
                _law(
                    f"when due, {name}",
                    _when_due,
                    "a period off by one, the last step forgotten, a default that is on",
                    options,
                )
                for name, options in SCHEDULES
            ),
            replace(
                _law(
                    "resting weights",
                    _repeats,
                    "a stream that moves from one validation to the next",
                    RESTING,
                ),
                excluded=_may_differ,
            ),
            _law(
                "greedy", greedy_error, "weights that were not brought up to date, sampling left on", GREEDY
            ),
            _law(
                "greedy, weights of the generator's own",
                greedy_error,
                "a validation that does not bring the generator's weights up to date",
                {**GREEDY, "policy__generation__colocated__enabled": False},
            ),
        ),
    ),
)
