"""R27: a component does not change its inputs, and its result shares no storage with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases import Rollout, rollout_for, rollout_of_model
from seatrial.relations.law import Measure, Relation
from seatrial.relations.records import LossInputs, Row
from seatrial.relations.tensors import inputs_of
from seatrial.relations.worst import largest

CATALOGUE = "SB085 SB126 SB221 SB260 SB271 SB280 SB285 SB361"
SUSPECTS = "an operation in place on a shared tensor, a view returned instead of a copy"

LOSS = Relation(
    id="R27.loss",
    name="loss-leaves-its-inputs",
    component="policy_loss",
    statement="Computing the loss and its gradient changes none of the inputs.",
    catalogue=CATALOGUE,
    cost="CPU, milliseconds",
    cases=rollout_for,
)

ADVANTAGES = Relation(
    id="R27.advantages",
    name="advantages-leave-their-inputs",
    component="advantages",
    statement="Computing advantages changes no input, and the result shares no storage with one.",
    catalogue=CATALOGUE,
    cost="CPU, milliseconds",
    cases=rollout_for,
)

BATCH = Relation(
    id="R27.batch",
    name="batches-are-their-own",
    component="batch_builder",
    statement="Overwriting one batch does not change the next one made of the same rows.",
    catalogue=CATALOGUE,
    cost="CPU, milliseconds",
    cases=rollout_for,
)

STEP = Relation(
    id="R27.step",
    name="steps-do-not-leak",
    component="train_step",
    statement="Two equal steps have equal gradients, and the second does not touch those of the first.",
    catalogue=CATALOGUE,
    cost="CPU, seconds",
    cases=rollout_of_model,
)


@LOSS.law("inputs unchanged", SUSPECTS)
def loss_keeps_inputs(stack: Any, case: Rollout) -> Measure:
    """Check that computing the loss and its gradient changes no input."""
    inputs = inputs_of(case, poison=0.0 if case.tidy else 3.0)
    before = {name: value.detach().clone() for name, value in _tensors(inputs).items()}
    stack.policy_loss(inputs).backward()
    return _touched(
        before, {name: value.detach() for name, value in _tensors(inputs).items()}, "inputs of the loss"
    )


def _touched(before: dict[str, Tensor], after: dict[str, Tensor], what: str) -> Measure:
    changed = sorted(name for name in before if not torch.equal(before[name], after[name]))
    return Measure.count(changed, f"{what} changed by the call")


def _tensors(inputs: LossInputs) -> dict[str, Tensor]:
    return {
        field.name: value
        for field in fields(inputs)
        if isinstance(value := getattr(inputs, field.name), Tensor)
    }


@ADVANTAGES.law("inputs unchanged", SUSPECTS)
def advantages_keep_inputs(stack: Any, case: Rollout) -> Measure:
    """Check that computing advantages changes no input, and that the result shares no storage with one."""
    # In the dtype of the computation a conversion makes no copy: an operation in place changes the caller's tensor.
    dtype = torch.float32 if case.tidy else torch.float64
    given = {
        "rewards": torch.tensor([row.reward for row in case.rows], dtype=dtype),
        "prompt ids": torch.tensor([row.prompt_id for row in case.rows]),
    }
    before = {name: value.clone() for name, value in given.items()}
    result = stack.advantages(given["rewards"], given["prompt ids"])
    measure = _touched(before, given, "inputs of the advantages")
    # A result that shares storage with its input would change with it.
    kept = result.clone()
    given["rewards"].fill_(1e6)
    shares = not torch.equal(kept, result)
    return replace(
        measure, error=measure.error + shares, what=f"{measure.what}, or a result that shares their storage"
    )


@BATCH.law("no shared storage", SUSPECTS)
def batches_share_no_storage(stack: Any, case: Rollout) -> Measure:
    """Overwrite one batch and check that the next batch of the same rows has the original values.

    Fuller rows of the same shape come in between (not when tidy), so that a buffer cached by shape holds more.
    """
    first = stack.make_batch(case.rows)
    names = [field.name for field in fields(first) if isinstance(getattr(first, field.name), Tensor)]
    before = {name: getattr(first, name).clone() for name in names}
    for name in names:
        getattr(first, name).fill_(1)
    if not case.tidy:
        stack.make_batch(_filled(case.rows))
    second = stack.make_batch(case.rows)
    return _touched(before, {name: getattr(second, name) for name in names}, "fields of the next batch")


def _filled(rows: Sequence[Row]) -> list[Row]:
    """Return rows that each have the longest prompt and the longest completion, so that there is no padding."""
    prompt_ids = max((row.prompt_ids for row in rows), key=len)
    longest = max(rows, key=lambda row: len(row.completion_ids))
    mask = (1,) * len(longest.completion_ids)
    return [
        replace(longest, prompt_ids=prompt_ids, completion_mask=mask, prompt_id=row.prompt_id) for row in rows
    ]


@STEP.law("equal steps", "gradients not cleared between steps, buffers returned instead of copies")
def equal_steps_have_equal_gradients(stack: Any, case: Rollout) -> Measure:
    """Check that the second of two equal steps repeats the first one's gradients and leaves those unchanged.

    A step of fuller rows of the same shape comes in between (not when tidy).
    """
    everything = [list(range(len(case.rows)))]
    first = stack.gradients(case.rows, everything).gradients
    kept = {name: value.clone() for name, value in first.items()}
    if not case.tidy:
        stack.gradients(_filled(case.rows), everything)
    second = stack.gradients(case.rows, everything).gradients
    changed = [name for name in kept if not torch.equal(kept[name], first[name])]
    scale = max(float(value.abs().max()) for value in kept.values()) or 1.0
    leaked = largest(float((kept[name] - second[name]).abs().max()) / scale for name in kept)
    return Measure(
        error=len(changed) + leaked,
        bound=1e-6,
        what="gradients changed by the next step, or added to it",
    )
