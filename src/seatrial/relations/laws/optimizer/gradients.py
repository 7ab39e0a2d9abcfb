"""R10: gradients reach every trainable tensor, and an update moves these and no others."""

from __future__ import annotations

import math
from typing import Any

import torch

from seatrial.relations.cases import Rollout, rollout_of_model
from seatrial.relations.law import Measure, Relation

NORM_BOUND = 1e-4


def _offers_no_gradients(stack: Any) -> str | None:
    return None if hasattr(stack, "gradients") else "it offers no train_step"


STEP = Relation(
    id="R10.step",
    name="gradient-reaches-every-tensor",
    component="train_step",
    statement="The loss is finite, and every trainable tensor gets a finite gradient that is not zero.",
    catalogue="SB091 SB162 SB169 SB183 SB190 SB191 SB205 SB351 SB352 SB353",
    cost="CPU, seconds",
    cases=rollout_of_model,
)

UPDATE = Relation(
    id="R10.update",
    name="update-moves-what-trains",
    component="optimizer_step",
    statement="An update moves exactly the trainable tensors, none at rate 0; the norm is that before clipping.",
    catalogue="SB221 SB222 SB228 SB229 SB231 SB233 SB271 SB313 SB316 SB341 SB345",
    cost="CPU, seconds",
    cases=rollout_of_model,
)


@STEP.law(
    "no dead tensor", "a detach too much, a tensor computed under no_grad, an adapter that is not in the path"
)
def every_tensor_has_a_gradient(stack: Any, case: Rollout) -> Measure | None:
    """Check that the loss and every gradient are finite and no gradient is zero, in one micro-batch and row by row.

    Row by row, one micro-batch has nothing to train on (not when tidy).
    """
    if not any(any(row.completion_mask) and row.advantage for row in case.rows):
        return None
    rows = list(range(len(case.rows)))
    dead = []
    for split in [[rows]] if case.tidy else [[rows], [[row] for row in rows]]:
        result = stack.gradients(case.rows, split)
        if not math.isfinite(result.loss):
            dead.append(f"the loss is {result.loss}")
        dead += [
            name for name, value in result.gradients.items() if not 0 < float(value.abs().max()) < math.inf
        ]
    return Measure.count(dead, "losses that are not finite, tensors whose gradient is zero or not finite")


@UPDATE.law(
    "exactly the trainable set",
    "parameters missing from the optimizer, frozen ones in it, copies updated instead",
)
def only_trainable_tensors_move(stack: Any, case: Rollout) -> Measure:
    """Check that an update moves every trainable tensor and no other."""
    stack.reset()
    before = dict(stack.parameters())
    stack.update(case.rows)
    moved = _changed(before, dict(stack.parameters()))
    stack.reset()
    wrong = sorted(moved ^ set(stack.trainable()))
    return Measure.count(wrong, "tensors that moved and should not, or the reverse")


def _changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@UPDATE.law("rate 0", "weight decay or a schedule that ignores the rate, buffers that train")
def rate_zero_moves_nothing(stack: Any, case: Rollout) -> Measure:
    """Check that an update with learning rate 0 moves no tensor."""
    stack.reset()
    before = dict(stack.parameters())
    stack.update(case.rows, lr=0.0)
    moved = _changed(before, dict(stack.parameters()))
    stack.reset()
    return Measure.count(sorted(moved), "tensors moved by learning rate 0")


@UPDATE.law(
    "norm with any clip", "norm after clipping, the clip applied to a norm that is reported", seeded=False
)
def norm_ignores_the_clip(stack: Any, case: Rollout) -> Measure:
    """Compare the reported norm under a clip at a third of it with that under a clip that is never reached."""
    stack.reset()
    free = stack.update(case.rows, max_grad_norm=1e9)
    stack.reset()
    clipped = stack.update(case.rows, max_grad_norm=free / 3)
    stack.reset()
    return Measure(
        error=abs(clipped - free) / max(free, 1e-12),
        bound=NORM_BOUND,
        what=f"gradient norm reported {clipped:.6g} with a clip, {free:.6g} without, relative difference",
    )


@UPDATE.law(
    "norm before clipping",
    "norm after clipping, of a shard, of averaged gradients, of the last micro-batch",
    excluded=_offers_no_gradients,
)
def norm_is_that_of_the_gradient(stack: Any, case: Rollout) -> Measure:
    """Compare the reported norm with that of the raw gradient before clipping."""
    stack.reset()
    gradients = stack.gradients(case.rows, [list(range(len(case.rows)))]).gradients
    expected = math.sqrt(math.fsum(float(value.double().square().sum()) for value in gradients.values()))
    given = stack.update(case.rows, max_grad_norm=expected / 3)
    stack.reset()
    return Measure(
        error=abs(given - expected) / max(expected, 1e-12),
        bound=NORM_BOUND,
        what=f"gradient norm reported {given:.6g}, before clipping it is {expected:.6g}, relative difference",
    )


@UPDATE.law(
    "updates repeat",
    "gradients left over, optimizer state not reset, hidden randomness such as dropout",
    seeded=False,
)
def updates_repeat(stack: Any, case: Rollout) -> Measure:
    """Check that two updates from one start end in the same weights when repeated."""
    ends = []
    for _ in range(2):
        stack.reset()
        stack.update(case.rows)
        stack.update(case.rows)
        ends.append(dict(stack.parameters()))
    stack.reset()
    return Measure.count(
        sorted(_changed(*ends)), "tensors that differ after two updates from one start, repeated"
    )
