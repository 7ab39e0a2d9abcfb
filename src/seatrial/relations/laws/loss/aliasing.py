"""R27: a stage reads its inputs and leaves them alone; what it returns is its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.records import LossInputs, Row
from seatrial.relations.tensors import inputs_of
from seatrial.relations.worst import largest


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy)


def _tensors(inputs: LossInputs) -> dict[str, Tensor]:
    return {
        field.name: value
        for field in fields(inputs)
        if isinstance(value := getattr(inputs, field.name), Tensor)
    }


def _touched(before: dict[str, Tensor], after: dict[str, Tensor], what: str) -> Measure:
    changed = sorted(name for name in before if not torch.equal(before[name], after[name]))
    return Measure(
        error=float(len(changed)), bound=0, what=f"{what} changed by the call ({changed or 'none'})"
    )


def _loss_leaves_inputs(stack: Any, case: Rollout) -> Measure:
    inputs = inputs_of(case, poison=0.0 if case.tidy else 3.0)
    before = {name: value.detach().clone() for name, value in _tensors(inputs).items()}
    stack.policy_loss(inputs).backward()
    return _touched(
        before, {name: value.detach() for name, value in _tensors(inputs).items()}, "inputs of the loss"
    )


def _advantages_leave_inputs(stack: Any, case: Rollout) -> Measure:
    # In the dtype that is computed in, a conversion is no copy: what works in place works on the caller's tensor.
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
    shares = float(not torch.equal(kept, result))
    return Measure(
        error=measure.error + shares, bound=0, what=f"{measure.what}, or result that shares their storage"
    )


def _batch_is_its_own(stack: Any, case: Rollout) -> Measure:
    """Spoil one batch: the next batch of the same rows is what the first was.

    Fuller rows of the same shape come in between, so that a buffer kept by shape holds more (not when tidy).
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
    """Return rows that have the longest prompt and the longest completion each, so that nothing is padding."""
    prompt_ids = max((row.prompt_ids for row in rows), key=len)
    longest = max(rows, key=lambda row: len(row.completion_ids))
    mask = (1,) * len(longest.completion_ids)
    return [
        replace(longest, prompt_ids=prompt_ids, completion_mask=mask, prompt_id=row.prompt_id) for row in rows
    ]


def _steps_do_not_leak(stack: Any, case: Rollout) -> Measure:
    """The second of two equal steps gives the gradients of the first, and the first's stay what they were.

    A step of fuller rows, of the same shape, comes in between (not when tidy).
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
        error=float(len(changed)) + leaked,
        bound=1e-6,
        what="gradients changed by the next step, or added to it",
    )


def _make_for_model(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, vocab_size=stack.vocab_size, num_prompts=3, num_generations=2)


CATALOGUE = ("SB085", "SB126", "SB221", "SB260", "SB271", "SB280", "SB285", "SB361")
SUSPECTS = "an operation in place on a shared tensor, a view handed out instead of a copy"

RELATIONS = (
    Relation(
        id="R27.loss",
        name="loss-leaves-its-inputs",
        component="policy_loss",
        statement="Computing the loss and its gradient changes none of the inputs.",
        catalogue=CATALOGUE,
        cost="CPU, milliseconds",
        laws=(Law(name="inputs unchanged", make=_make, measure=_loss_leaves_inputs, suspects=SUSPECTS),),
    ),
    Relation(
        id="R27.advantages",
        name="advantages-leave-their-inputs",
        component="advantages",
        statement="Computing advantages changes no input, and the result shares no storage with one.",
        catalogue=CATALOGUE,
        cost="CPU, milliseconds",
        laws=(Law(name="inputs unchanged", make=_make, measure=_advantages_leave_inputs, suspects=SUSPECTS),),
    ),
    Relation(
        id="R27.batch",
        name="batches-are-their-own",
        component="batch_builder",
        statement="Spoiling one batch does not spoil the next one made of the same rows.",
        catalogue=CATALOGUE,
        cost="CPU, milliseconds",
        laws=(Law(name="no shared storage", make=_make, measure=_batch_is_its_own, suspects=SUSPECTS),),
    ),
    Relation(
        id="R27.step",
        name="steps-do-not-leak",
        component="train_step",
        statement="Two equal steps have equal gradients, and the second does not touch those of the first.",
        catalogue=CATALOGUE,
        cost="CPU, seconds",
        laws=(
            Law(
                name="equal steps",
                make=_make_for_model,
                measure=_steps_do_not_leak,
                suspects="gradients not cleared between steps, buffers handed out instead of copies",
            ),
        ),
    ),
)
