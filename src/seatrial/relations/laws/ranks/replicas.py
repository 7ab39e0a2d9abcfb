"""R2 and R25 of rows laid over ranks: what the ranks have made of their shares is what the whole batch is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

from seatrial.relations.cases import rollout_for
from seatrial.relations.cases.examples import Example, make_examples
from seatrial.relations.facts import bound_of, needs_masked_rows, needs_unequal_micro_batches
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.loss.objectives import GRADIENT_BOUND, LOSS_BOUND, depends_on_mates
from seatrial.relations.oracles import objectives as objective_oracles
from seatrial.relations.ranked_cases import RankedExamples, RankedRollout
from seatrial.relations.tensors import (
    counts_of,
    gradient_of,
    inputs_of,
    largest_difference,
    largest_gradient_difference,
    loss_oracle,
)
from seatrial.relations.worst import is_worse, largest

METRIC_BOUND = 1e-3
"""What trainers log they round to four digits."""
EXACT = 1e-9
"""Rounding of one float64 sum over a few hundred terms."""


def _length(example: Example) -> int:
    return len(example.completion_ids) + len(example.rejected_ids or ())


def _make_examples(
    lengths: Literal["equal", "unequal"] = "equal", num_examples: int = 4, num_micro_batches: int = 1
) -> Callable[[Any, int, bool], RankedExamples]:
    def make(stack: Any, seed: int, tidy: bool) -> RankedExamples:
        """Return examples sorted by length, so that the first rank has the fewest tokens; tidy ones have one length."""
        batch = make_examples(
            seed,
            ordinary_ids=stack.ordinary_ids,
            eos_id=stack.eos_id,
            pairs=stack.objective_spec.of_pairs,
            labels=stack.objective_spec.of_labels,
            lengths="equal" if tidy else lengths,
            num_examples=4 if tidy else num_examples,
        )
        ordered = tuple(sorted(batch.examples, key=_length))
        return RankedExamples(
            batch=replace(batch, examples=ordered), num_micro_batches=1 if tidy else num_micro_batches
        )

    return make


def _fewest_tokens(case: RankedExamples) -> float:
    return float(
        min(sum(_length(case.examples[row]) for part in rank for row in part) for rank in case.layout)
    )


def _gradient_equals_oracle(stack: Any, case: RankedExamples) -> Measure:
    oracle = objective_oracles.objective(stack, case.examples)
    worst, where = 0.0, "no rank"
    for rank, step in enumerate(stack.objective_on_ranks(case.examples, case.layout)):
        error, name = largest_gradient_difference(step.gradients, oracle.gradients)
        if is_worse(error, worst):
            worst, where = error, f"{name} on rank {rank}"
    return Measure(
        error=worst,
        bound=bound_of(stack, GRADIENT_BOUND, smallest_count=_fewest_tokens(case)),
        what=f"gradient of {where}, examples laid as {case.layout}, against the oracle, relative difference",
    )


def _loss_equals_oracle(stack: Any, case: RankedExamples) -> Measure:
    """The first rank logs, and whoever else does logs the same."""
    oracle = objective_oracles.objective(stack, case.examples)
    first, *others = [step.loss for step in stack.objective_on_ranks(case.examples, case.layout)]
    logged = [first, *(loss for loss in others if not math.isnan(loss))]
    return Measure(
        error=largest(abs(loss - oracle.loss) / max(abs(oracle.loss), 1e-1) for loss in logged),
        bound=bound_of(stack, LOSS_BOUND, smallest_count=_fewest_tokens(case)),
        what=f"losses logged on ranks {[round(loss, 6) for loss in logged]}, the oracle's {oracle.loss:.6g}, relative",
    )


def _metrics_equal_one_rank(stack: Any, case: RankedExamples) -> Measure | None:
    (alone,) = stack.objective_on_ranks(case.examples, replace(case, num_ranks=1).layout)
    first = stack.objective_on_ranks(case.examples, case.layout)[0]
    if not alone.metrics:
        return None
    worst, what = 0.0, "no metric"
    for name in sorted(alone.metrics.keys() | first.metrics.keys()):
        right, given = alone.metrics.get(name, math.nan), first.metrics.get(name, math.nan)
        error = abs(given - right) / max(1.0, abs(right))
        if is_worse(error, worst):
            worst, what = error, f"{name} {given:.6g} on {case.num_ranks} ranks and {right:.6g} on one"
    return Measure(
        error=worst,
        bound=bound_of(stack, METRIC_BOUND, smallest_count=_fewest_tokens(case)),
        what=f"logged {what}, relative difference",
    )


def _ranks_agree(stack: Any, case: RankedExamples) -> Measure:
    first, *others = stack.objective_on_ranks(case.examples, case.layout)
    wrong = [
        f"{name} on rank {rank}"
        for rank, step in enumerate(others, start=1)
        for name in first.gradients.keys() | step.gradients.keys()
        if name not in first.gradients
        or name not in step.gradients
        or not torch.equal(first.gradients[name], step.gradients[name])
    ]
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"gradients that differ from those of rank 0 ({wrong[:3] or 'none'})",
    )


def _make_rollout(
    num_micro_batches: int = 1, num_rows: int = 8, empty_rank: bool = False
) -> Callable[[Any, int, bool], RankedRollout]:
    def make(stack: Any, seed: int, tidy: bool) -> RankedRollout:
        """Return rows sorted by length, so that the first rank has the fewest tokens, or none."""
        rollout = rollout_for(stack, seed, tidy, masked_row=False)
        rows = sorted(rollout.rows[: 8 if tidy else num_rows], key=lambda row: sum(row.completion_mask))
        if empty_rank and not tidy:
            rows[: num_rows // 2] = [
                replace(row, completion_mask=(0,) * len(row.completion_mask)) for row in rows[: num_rows // 2]
            ]
        return RankedRollout(
            rollout=replace(rollout, rows=tuple(rows)), num_micro_batches=1 if tidy else num_micro_batches
        )

    return make


def _reduced(stack: Any, case: RankedRollout) -> tuple[float, dict[int, torch.Tensor]]:
    """Return the loss and each row's gradient, after what the stack makes of its ranks."""
    rows, counts = case.rollout.rows, counts_of(case.rollout.rows)
    ranks = [
        [inputs_of(case.rollout, [rows[row] for row in part], counts=counts) for part in rank]
        for rank in case.layout
    ]
    scale = 1 / case.num_ranks if stack.ranks_reduce == "mean" else 1.0
    total = 0.0
    gradients: dict[int, torch.Tensor] = {}
    for places, inputs, losses in zip(case.layout, ranks, stack.ranked_losses(ranks), strict=True):
        for part, given, loss in zip(places, inputs, losses, strict=True):
            total += scale * float(loss.detach())
            gradients |= dict(zip(part, scale * gradient_of(loss, given), strict=True))
    return total, gradients


def _ranked_loss_equals_oracle(stack: Any, case: RankedRollout) -> Measure:
    inputs = inputs_of(case.rollout)
    oracle = loss_oracle(inputs, stack.loss_spec)
    loss, gradients = _reduced(stack, case)
    wanted_BT = torch.tensor(oracle.gradient_BT, dtype=torch.float64)
    T = wanted_BT.shape[1]
    given_BT = torch.stack(
        [
            torch.nn.functional.pad(gradients[row], (0, T - len(gradients[row])))
            for row in range(len(wanted_BT))
        ]
    )
    fewest = min(
        counts_of([case.rollout.rows[row] for part in rank for row in part])[0] for rank in case.layout
    )
    return Measure(
        error=largest(
            (abs(loss - oracle.loss) / max(abs(oracle.loss), 1e-3), largest_difference(given_BT, wanted_BT))
        ),
        bound=bound_of(stack, EXACT, smallest_count=fewest),
        what=f"{stack.ranks_reduce} over ranks of loss or gradient, rows laid as {case.layout}, against the oracle for "
        f"{stack.loss_spec}, relative difference",
    )


OWN_COUNTS = "each rank divides by its own tokens or rows, and the ranks are averaged: a mean of means"
SCALE = (
    "gradients summed where they are averaged, or a global count that the average divides again by the ranks"
)
ACCUMULATED = (
    "a mean over micro-batches beside one over ranks, the count of one micro-batch taken for the batch's"
)

RELATIONS = (
    Relation(
        id="R2.ranks",
        name="ranks-change-nothing",
        component="ranks",
        statement="Examples laid over ranks give the raw gradient, the logged loss and the metrics of the whole batch.",
        catalogue=("SB175", "SB182", "SB185", "SB187", "SB196", "SB199", "SB213", "SB215", "SB367", "SB372"),
        cost="CPU, seconds: one start of two processes for all laws",
        laws=(
            Law(
                name="gradient, ranks alike",
                make=_make_examples(),
                measure=_gradient_equals_oracle,
                excluded=depends_on_mates,
                suspects=SCALE,
            ),
            Law(
                name="gradient, ranks of unequal numbers of tokens",
                make=_make_examples("unequal"),
                measure=_gradient_equals_oracle,
                excluded=depends_on_mates,
                suspects=OWN_COUNTS,
            ),
            Law(
                name="gradient, two micro-batches on each rank",
                make=_make_examples(num_micro_batches=2),
                measure=_gradient_equals_oracle,
                excluded=depends_on_mates,
                suspects=ACCUMULATED,
            ),
            Law(
                name="gradient, ranks of unequal numbers of examples",
                make=_make_examples(num_examples=5),
                measure=_gradient_equals_oracle,
                excluded=lambda stack: needs_unequal_micro_batches(stack) or depends_on_mates(stack),
                suspects=OWN_COUNTS,
            ),
            Law(
                name="logged loss, ranks of unequal numbers of tokens",
                make=_make_examples("unequal"),
                measure=_loss_equals_oracle,
                excluded=depends_on_mates,
                suspects="the loss of the first rank alone, a mean of the ranks' means, a sum over ranks",
            ),
            Law(
                name="logged metrics, ranks of unequal numbers of tokens",
                make=_make_examples("unequal"),
                measure=_metrics_equal_one_rank,
                suspects="a metric of one rank, a mean of means, a total counted once for each rank",
            ),
        ),
    ),
    Relation(
        id="R25.ranks",
        name="ranks-have-one-gradient",
        component="ranks",
        statement="After they have averaged, all ranks have the same gradient, bit for bit.",
        catalogue=("SB230", "SB325", "SB329", "SB337"),
        cost="CPU, seconds: the processes of R2.ranks",
        laws=(
            Law(
                name="gradients of all ranks",
                make=_make_examples("unequal"),
                measure=_ranks_agree,
                suspects="a tensor that no rank exchanges, a gradient that is added after the exchange",
            ),
        ),
    ),
    Relation(
        id="R2.ranked_loss",
        name="loss-ignores-ranks",
        component="ranked_loss",
        statement="Policy losses of the ranks, reduced as the stack reduces gradients, are that of the whole batch.",
        catalogue=("SB175", "SB182", "SB185", "SB187", "SB196", "SB199", "SB213", "SB215"),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="ranks of unequal numbers of tokens",
                make=_make_rollout(),
                measure=_ranked_loss_equals_oracle,
                suspects=f"{OWN_COUNTS}; {SCALE}",
            ),
            Law(
                name="two micro-batches on each rank",
                make=_make_rollout(num_micro_batches=2),
                measure=_ranked_loss_equals_oracle,
                suspects=ACCUMULATED,
            ),
            Law(
                name="ranks of unequal numbers of rows",
                make=_make_rollout(num_rows=7),
                measure=_ranked_loss_equals_oracle,
                excluded=needs_unequal_micro_batches,
                suspects=OWN_COUNTS,
            ),
            Law(
                name="a rank without a training token",
                make=_make_rollout(empty_rank=True),
                measure=_ranked_loss_equals_oracle,
                excluded=needs_masked_rows,
                suspects="0 / 0 on that rank, which the average spreads over all",
            ),
        ),
    ),
)
