"""R10: gradients reach exactly what trains, and an update moves exactly that."""

from __future__ import annotations

import math
from typing import Any

import torch

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.law import Law, Measure, Relation

NORM_BOUND = 1e-4


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, vocab_size=stack.vocab_size, num_prompts=3, num_generations=2)


def _every_tensor_has_a_gradient(stack: Any, case: Rollout) -> Measure | None:
    """At once, and row by row, so that one micro-batch holds nothing to train on (not when tidy)."""
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
    return Measure(
        error=float(len(dead)),
        bound=0,
        what=f"losses not finite, tensors whose gradient is zero or not finite ({', '.join(dead[:3]) or 'none'})",
    )


def _changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def _only_trainable_moves(stack: Any, case: Rollout) -> Measure:
    stack.reset()
    before = dict(stack.parameters())
    stack.update(case.rows)
    moved = _changed(before, dict(stack.parameters()))
    stack.reset()
    wrong = moved ^ set(stack.trainable())
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"tensors that moved and should not, or the reverse ({sorted(wrong)[:3]})",
    )


def _zero_rate_moves_nothing(stack: Any, case: Rollout) -> Measure:
    stack.reset()
    before = dict(stack.parameters())
    stack.update(case.rows, lr=0.0)
    moved = _changed(before, dict(stack.parameters()))
    stack.reset()
    return Measure(
        error=float(len(moved)), bound=0, what=f"tensors moved by learning rate 0 ({sorted(moved)[:3]})"
    )


def _norm_ignores_the_clip(stack: Any, case: Rollout) -> Measure:
    """The norm returned under a clip at a third of it is the norm returned under one that is never reached."""
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


def _offers_no_gradients(stack: Any) -> str | None:
    return None if hasattr(stack, "gradients") else "it offers no train_step"


def _norm_is_that_of_the_gradient(stack: Any, case: Rollout) -> Measure:
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


def _updates_repeat(stack: Any, case: Rollout) -> Measure:
    ends = []
    for _ in range(2):
        stack.reset()
        stack.update(case.rows)
        stack.update(case.rows)
        ends.append(dict(stack.parameters()))
    stack.reset()
    return Measure(
        error=float(len(_changed(*ends))),
        bound=0,
        what="tensors that differ after two updates from one start, repeated",
    )


RELATIONS = (
    Relation(
        id="R10.step",
        name="gradient-reaches-every-tensor",
        component="train_step",
        statement="The loss is finite, and every trainable tensor gets a finite gradient that is not zero.",
        catalogue=("SB091", "SB162", "SB169", "SB183", "SB190", "SB191", "SB205", "SB351", "SB352", "SB353"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="no dead tensor",
                make=_make,
                measure=_every_tensor_has_a_gradient,
                suspects="a detach too much, a tensor computed under no_grad, an adapter that is not in the path",
            ),
        ),
    ),
    Relation(
        id="R10.update",
        name="update-moves-what-trains",
        component="optimizer_step",
        statement="An update moves exactly the trainable tensors, none at rate 0; the norm is that before clipping.",
        catalogue=(
            "SB221",
            "SB222",
            "SB228",
            "SB229",
            "SB231",
            "SB233",
            "SB271",
            "SB313",
            "SB316",
            "SB341",
            "SB345",
        ),
        cost="CPU, seconds",
        laws=(
            Law(
                name="exactly the trainable set",
                make=_make,
                measure=_only_trainable_moves,
                suspects="parameters missing from the optimizer, frozen ones in it, copies updated instead",
            ),
            Law(
                name="rate 0",
                make=_make,
                measure=_zero_rate_moves_nothing,
                suspects="weight decay or a schedule that ignores the rate, buffers that train",
            ),
            Law(
                name="norm whatever the clip",
                make=_make,
                measure=_norm_ignores_the_clip,
                suspects="norm after clipping, the clip applied to a norm that is reported",
            ),
            Law(
                name="norm before clipping",
                make=_make,
                measure=_norm_is_that_of_the_gradient,
                excluded=_offers_no_gradients,
                suspects="norm after clipping, of a shard, of averaged gradients, of the last micro-batch",
            ),
            Law(
                name="updates repeat",
                make=_make,
                measure=_updates_repeat,
                suspects="gradients left over, optimizer state not reset, hidden randomness such as dropout",
            ),
        ),
    ),
)
