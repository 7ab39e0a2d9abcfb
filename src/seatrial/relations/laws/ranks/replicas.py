"""R2.ranks, R25.ranks, R2.ranked_loss: what ranks compute of their shares of a batch is that of the whole batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

from seatrial.relations.cases import rollout_for
from seatrial.relations.cases.examples import Example, make_examples
from seatrial.relations.facts import bound_of, needs_masked_rows, needs_unequal_micro_batches
from seatrial.relations.law import Measure, Relation, nothing_excluded
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
from seatrial.relations.worst import largest, relative_error

METRIC_BOUND = 1e-3
"""Trainers round what they log to four digits."""
EXACT = 1e-9
"""Rounding of one float64 sum over a few hundred terms."""


def _length(example: Example) -> int:
    return len(example.completion_ids) + len(example.rejected_ids or ())


def _examples(
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


def _rollout(
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


EXAMPLES = Relation(
    id="R2.ranks",
    name="ranks-change-nothing",
    component="ranks",
    statement="Examples distributed over ranks give the whole batch's raw gradient, logged loss and metrics.",
    catalogue="SB175 SB182 SB185 SB187 SB196 SB199 SB213 SB215 SB367 SB372",
    cost="CPU, seconds: one start of two processes for all laws",
    cases=_examples("unequal"),
    excluded=depends_on_mates,
)
AGREEMENT = Relation(
    id="R25.ranks",
    name="ranks-have-one-gradient",
    component="ranks",
    statement="After they have averaged, all ranks have the same gradient, bit for bit.",
    catalogue="SB230 SB325 SB329 SB337",
    cost="CPU, seconds: the processes of R2.ranks",
    cases=_examples("unequal"),
)
ROLLOUT = Relation(
    id="R2.ranked_loss",
    name="loss-ignores-ranks",
    component="ranked_loss",
    statement="Policy losses of the ranks, reduced as the stack reduces gradients, are that of the whole batch.",
    catalogue="SB175 SB182 SB185 SB187 SB196 SB199 SB213 SB215",
    cost="CPU, milliseconds",
)
OWN_COUNTS = "each rank divides by its own tokens or rows, and the ranks are averaged: a mean of means"
SCALE = (
    "gradients summed where they are averaged, or a global count that the average divides again by the ranks"
)
ACCUMULATED = (
    "a mean over micro-batches next to one over ranks, the count of one micro-batch taken for the batch's"
)


def _fewest_tokens(case: RankedExamples) -> float:
    return float(
        min(sum(_length(case.examples[row]) for part in rank for row in part) for rank in case.layout)
    )


@EXAMPLES.law("gradient, ranks alike", SCALE, cases=_examples())
@EXAMPLES.law("gradient, ranks of unequal numbers of tokens", OWN_COUNTS)
@EXAMPLES.law("gradient, two micro-batches on each rank", ACCUMULATED, cases=_examples(num_micro_batches=2))
@EXAMPLES.law(
    "gradient, ranks of unequal numbers of examples",
    OWN_COUNTS,
    cases=_examples(num_examples=5),
    excluded=lambda stack: needs_unequal_micro_batches(stack) or depends_on_mates(stack),
)
def gradient_equals_oracle(stack: Any, case: RankedExamples) -> Measure:
    """Compare the gradient of every rank with the oracle for the whole batch."""
    oracle = objective_oracles.objective(stack, case.examples)
    found = []
    for rank, step in enumerate(stack.objective_on_ranks(case.examples, case.layout)):
        error, name = largest_gradient_difference(step.gradients, oracle.gradients)
        found.append((error, f"{name} on rank {rank}"))
    return Measure.largest(
        found,
        bound_of(stack, GRADIENT_BOUND, smallest_count=_fewest_tokens(case)),
        f"gradient against the oracle, examples distributed as {case.layout}, relative difference",
    )


@EXAMPLES.law(
    "logged loss, ranks of unequal numbers of tokens",
    "the loss of the first rank alone, a mean of the ranks' means, a sum over ranks",
)
def logged_loss_equals_oracle(stack: Any, case: RankedExamples) -> Measure:
    """Compare the losses of the first rank and of all other ranks that log one with the oracle."""
    oracle = objective_oracles.objective(stack, case.examples)
    first, *others = [step.loss for step in stack.objective_on_ranks(case.examples, case.layout)]
    logged = [first, *(loss for loss in others if not math.isnan(loss))]
    return Measure(
        error=largest(relative_error(loss, oracle.loss, 1e-1) for loss in logged),
        bound=bound_of(stack, LOSS_BOUND, smallest_count=_fewest_tokens(case)),
        what=f"losses logged on ranks {[round(loss, 6) for loss in logged]}, the oracle's {oracle.loss:.6g}, relative",
    )


@EXAMPLES.law(
    "logged metrics, ranks of unequal numbers of tokens",
    "a metric of one rank, a mean of means, a total counted once for each rank",
    excluded=nothing_excluded,
)
def logged_metrics_equal_one_rank(stack: Any, case: RankedExamples) -> Measure | None:
    """Compare the metrics of the first rank with those of one rank that has the whole batch."""
    (alone,) = stack.objective_on_ranks(case.examples, replace(case, num_ranks=1).layout)
    first = stack.objective_on_ranks(case.examples, case.layout)[0]
    if not alone.metrics:
        return None
    found = []
    for name in sorted(alone.metrics.keys() | first.metrics.keys()):
        right, given = alone.metrics.get(name, math.nan), first.metrics.get(name, math.nan)
        place = f"{name} {given:.6g} on {case.num_ranks} ranks and {right:.6g} on one"
        found.append((relative_error(given, right), place))
    return Measure.largest(
        found,
        bound_of(stack, METRIC_BOUND, smallest_count=_fewest_tokens(case)),
        "logged metrics, relative difference",
    )


@AGREEMENT.law(
    "gradients of all ranks",
    "a tensor that no rank exchanges, a gradient that is added after the exchange",
)
def ranks_agree(stack: Any, case: RankedExamples) -> Measure:
    """Compare the gradients of every rank with those of the first, bit for bit."""
    first, *others = stack.objective_on_ranks(case.examples, case.layout)
    wrong = [
        f"{name} on rank {rank}"
        for rank, step in enumerate(others, start=1)
        for name in first.gradients.keys() | step.gradients.keys()
        if name not in first.gradients
        or name not in step.gradients
        or not torch.equal(first.gradients[name], step.gradients[name])
    ]
    return Measure.count(wrong, "gradients that differ from those of rank 0")


def _reduced(stack: Any, case: RankedRollout) -> tuple[float, dict[int, torch.Tensor]]:
    """Return the loss and each row's gradient, after the stack's reduction over ranks."""
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


@ROLLOUT.law("ranks of unequal numbers of tokens", f"{OWN_COUNTS}; {SCALE}", cases=_rollout())
@ROLLOUT.law("two micro-batches on each rank", ACCUMULATED, cases=_rollout(num_micro_batches=2))
@ROLLOUT.law(
    "ranks of unequal numbers of rows",
    OWN_COUNTS,
    cases=_rollout(num_rows=7),
    excluded=needs_unequal_micro_batches,
)
@ROLLOUT.law(
    "a rank without a training token",
    "0 / 0 on that rank, which the average spreads over all",
    cases=_rollout(empty_rank=True),
    excluded=needs_masked_rows,
)
def reduced_loss_equals_oracle(stack: Any, case: RankedRollout) -> Measure:
    """Compare loss and gradient, reduced over ranks, with the oracle for the whole batch."""
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
        error=largest((relative_error(loss, oracle.loss, 1e-3), largest_difference(given_BT, wanted_BT))),
        bound=bound_of(stack, EXACT, smallest_count=fewest),
        what=f"{stack.ranks_reduce} over ranks of loss or gradient, rows distributed as {case.layout}, against the "
        f"oracle for {stack.loss_spec}, relative difference",
    )
