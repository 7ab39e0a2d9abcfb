"""R23.schedule, R23.run: validations come when due, with the weights of their step, and change nothing in training."""

from __future__ import annotations

import math
from typing import Any

import torch

from seatrial.relations.law import Measure, Relation
from seatrial.relations.measures.updates import validations_due
from seatrial.relations.not_served import NotServed
from seatrial.relations.records.evidence import differences, same
from seatrial.relations.runs import RunCase, run_cases

SCHEDULES: dict[str, dict[str, Any]] = {
    "every second step": {"grpo__val_period": 2, "grpo__val_at_start": False, "grpo__max_num_steps": 3},
    "at both ends": {
        "grpo__val_period": 0,
        "grpo__val_at_start": True,
        "grpo__val_at_end": True,
        "grpo__max_num_steps": 3,
    },
    "never": {"grpo__val_period": 0, "grpo__val_at_start": False},
}
EVERY_STEP = {"grpo__val_period": 1, "grpo__val_at_start": True}
GREEDY = {**EVERY_STEP, "grpo__val_greedy": True}

SCHEDULE = Relation(
    id="R23.schedule",
    name="run-validates-when-due",
    component="run",
    statement="Validations come after the steps that the options name, and judge the weights of their step.",
    catalogue="SB040 SB131 SB134 SB188 SB390 SB393 SB398",
    cost="CPU, seconds",
    seeded=False,
)
UNCHANGED = Relation(
    id="R23.run",
    name="run-validation-changes-nothing",
    component="run",
    statement="A run with validation trains as one without, and validates on prompts that it never trains on.",
    catalogue="SB216 SB217 SB390 SB391 SB393 SB394 SB396 SB397",
    cost="CPU, seconds",
    cases=run_cases(**EVERY_STEP, grpo__max_val_samples=3),
    seeded=False,
)


def validations_come_when_due(stack: Any, case: RunCase) -> Measure:
    """Compare the steps of validations with those that the options make due."""
    record = case.record(stack)
    steps, due = [one.step for one in record.validations], validations_due(record.options)
    return Measure(
        error=len(set(steps) ^ set(due)) + (steps != sorted(set(steps))),
        bound=0,
        what=f"validations after other steps ({steps}) than those that are due ({due})",
    )


for _name, _options in SCHEDULES.items():
    SCHEDULE.law(
        f"when due, {_name}",
        "a period off by one, the last step left out, a default that is on",
        cases=run_cases(**_options),
    )(validations_come_when_due)


def _needs_repeatable_validations(stack: Any) -> str | None:
    """Return the declaration by which validations of one policy may differ: they draw different random numbers."""
    return None if getattr(stack, "validations_repeat", False) else "validations_repeat=False"


@SCHEDULE.law(
    "equal weights, equal validations",
    "a stream that moves from one validation to the next",
    cases=run_cases(**EVERY_STEP, policy__optimizer__lr=0.0),
    excluded=_needs_repeatable_validations,
)
def equal_weights_validate_equally(stack: Any, case: RunCase) -> Measure:
    """Check that validations of a run whose weights do not change are equal: only the policy makes a difference."""
    validations = case.record(stack).validations
    different = [f"after step {one.step}" for one in validations if not same(one.rows, validations[0].rows)]
    return Measure.count(
        different if len(validations) > 1 else ["fewer than two"],
        f"validations of equal weights that differ from the first, of {len(validations)}",
    )


@SCHEDULE.law("greedy", "weights that are out of date, sampling left on", cases=run_cases(**GREEDY))
@SCHEDULE.law(
    "greedy, separate generator weights",
    "a validation that does not bring the generator's weights up to date",
    cases=run_cases(**GREEDY, policy__generation__colocated__enabled=False),
)
@torch.no_grad()
def greedy_error(stack: Any, case: RunCase) -> Measure:
    """Check that a greedy validation always takes the likeliest token of the weights after its step."""
    record = case.record(stack)
    wrong, num_rows = [], 0
    for one in record.validations:
        for (prompt_ids, ids), media in zip(
            one.sampled, one.media or (None,) * len(one.sampled), strict=True
        ):
            num_rows += 1
            seen = {} if media is None else {"media": media}
            logits_SV = stack.next_token_logits(record.weights_at(one.step), (*prompt_ids, *ids[:-1]), **seen)
            chosen = logits_SV[len(prompt_ids) - 1 :].double()
            behind = chosen.max(-1).values - chosen[torch.arange(len(ids)), list(ids)]
            if not float(behind.max()) <= 1e-3:  # nearly equal logits may change places in rounding
                wrong.append(f"after step {one.step}: {ids}")
    if not num_rows:
        raise NotServed("validations record no ids")
    return Measure.count(wrong, "greedy completions that the weights of the step would not give")


@UNCHANGED.law(
    "training is the same with validation",
    "one random stream or iterator for both, a mode or a cache left switched",
)
def training_is_the_same(stack: Any, case: RunCase) -> Measure:
    """Compare a run with validation with the run without, bit for bit."""
    validated = case.record(stack)
    if not validated.validations:
        return Measure(
            error=math.inf, bound=0, what="validation is configured, and the run has no validation"
        )
    plain = case.record(stack, grpo__val_period=0, grpo__val_at_start=False)
    wrong = [name for name in differences(plain, validated) if name != "validations"]
    return Measure.count(wrong, "what validation changed in training")


@UNCHANGED.law("validation on held-out prompts", "the training split validated, a period off by one")
def validation_is_on_held_out_prompts(stack: Any, case: RunCase) -> Measure:
    """Check that validations are on prompts that do not train, and come after every step."""
    record = case.record(stack)
    wrong = [
        f"validation of step {one.step}, prompt {prompt}"
        for one in record.validations
        for prompt, _, _ in one.rows
        if prompt in record.train_prompts
    ]
    steps, due = (
        [one.step for one in record.validations],
        list(range(record.options["grpo.max_num_steps"] + 1)),
    )
    if steps != due:
        wrong.append(f"validated after steps {steps}, due after {due}")
    return Measure.count(wrong, "validations on training prompts, or at other steps than configured")
