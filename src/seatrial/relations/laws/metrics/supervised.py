"""R23.supervised: an evaluation is of every row once: its loss, and the outputs that a metric is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from seatrial.relations.contracts.supervised import EvaluatedPlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.supervised import balances, item_loss
from seatrial.relations.worst import relative_error

BOUND = 1e-4


def plan(**options: Any) -> Callable[[Any, int, bool], EvaluatedPlan]:
    """Return a law's `cases`: a plan with these options; in a tidy one all batches have one size."""
    made = EvaluatedPlan(**options)
    return lambda stack, seed, tidy: EvaluatedPlan(num_examples=6) if tidy else made


def _gives_none(stack: Any) -> str | None:
    return None if stack.gives_items else "gives_items=False"


EVALUATION = Relation(
    id="R23.supervised",
    name="evaluations-are-of-every-row",
    component="supervised_evaluation",
    statement="The loss of an evaluation is the mean over its items, and a metric is given each row once, in order.",
    cost="CPU, seconds",
    cases=plan(),
    seeded=False,
)


@EVALUATION.law(
    "loss, one batch", "training mode, padding in the mean", cases=plan(batch_size=8), excluded=balances
)
@EVALUATION.law(
    "loss, several batches",
    "a mean of the batches' means, a last batch with more weight or none",
    excluded=balances,
)
@EVALUATION.law("loss alone", "a loss of other batches", cases=plan(loss_alone=True), excluded=balances)
def loss_is_the_mean(stack: Any, case: EvaluatedPlan) -> Measure:
    """Compare the loss with the mean over all items in float64, each row by itself."""
    model, spec = stack.supervised_model().eval(), stack.supervised_spec
    with torch.no_grad():
        losses = [
            item_loss(outputs_V.double(), target, spec)
            for example in range(case.num_examples)
            for outputs_V, target in zip(*stack.supervised_logits(model, example), strict=True)
        ]
    right, loss = float(torch.stack(losses).mean()), stack.supervised_evaluation(case).loss
    return Measure(
        error=relative_error(loss, right, 1e-3),
        bound=BOUND,
        what=f"loss {loss:.6g} of an evaluation, {right:.6g} of its items, relative difference",
    )


@EVALUATION.law("outputs", "rows that are left out, repeated or in another order", excluded=_gives_none)
@EVALUATION.law(
    "outputs, gathered in parts",
    "rows of the first or last part",
    cases=plan(in_parts=2),
    excluded=_gives_none,
)
def metric_is_given_every_row(stack: Any, case: EvaluatedPlan) -> Measure:
    """Compare the outputs and targets that a metric is given with those of each row by itself."""
    found = stack.supervised_evaluation(case)
    model = stack.supervised_model().eval()
    errors = [(0.0, "no row")]
    if len(found.outputs) != case.num_examples:
        errors.append((float("inf"), f"{len(found.outputs)} rows of {case.num_examples}"))
    for example, (outputs, targets) in enumerate(zip(found.outputs, found.targets, strict=True)):
        with torch.no_grad():
            right, due = stack.supervised_logits(model, example)
        if list(targets) != list(due) or outputs.shape != right.shape:
            errors.append((float("inf"), f"row {example} has the targets {list(targets)}, due {list(due)}"))
            continue
        errors.append((float((outputs - right).abs().max() / right.abs().max()), f"row {example}"))
    return Measure.largest(errors, BOUND, "outputs of rows against those of each by itself, relative")
