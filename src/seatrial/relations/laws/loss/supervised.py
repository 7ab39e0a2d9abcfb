"""R1 and R12 of supervised training of any head: in micro-batches, and against the mean over all items in float64."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.supervised import SupervisedSpec
from seatrial.relations.facts import bound_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.records import StepResult
from seatrial.relations.tensors import largest_gradient_difference

GRADIENT_BOUND = 1e-4
LOSS_BOUND = 1e-4
LOGGED_DIGIT = 1e-4
"""The last digit of logged losses, where they are rounded."""


@dataclass(frozen=True, kw_only=True)
class SupervisedCase(Case):
    """Examples of one optimizer batch, by number, in micro-batches."""

    micro_batches: tuple[tuple[int, ...], ...]

    def smaller(self) -> Iterator[SupervisedCase]:
        """Yield the case of the first micro-batch alone."""
        if len(self.micro_batches) > 1:
            yield SupervisedCase(micro_batches=self.micro_batches[:1])

    def describe(self) -> Mapping[str, Any]:
        """Return the numbers of the examples."""
        return {"micro_batches": [list(part) for part in self.micro_batches]}

    @property
    def examples(self) -> list[int]:
        """The numbers of all examples."""
        return [example for part in self.micro_batches for example in part]


def _make(stack: Any, seed: int, tidy: bool, size: int = 0, unequal: bool = False) -> SupervisedCase:
    """Return examples with items of equal numbers, or all of them, in micro-batches of a size; one for size 0."""
    num = stack.supervised_spec.num_examples
    examples = range(num if unequal and not tidy else num // 2)
    size = size or len(examples)
    return SupervisedCase(
        micro_batches=tuple(tuple(examples[start : start + size]) for start in range(0, len(examples), size))
    )


def balances(stack: Any) -> str | None:
    """Return the declaration of a loss with a balance of routers, which is another one of each batch."""
    return "supervised_spec.balance" if stack.supervised_spec.balance else None


def _has_one_item(stack: Any) -> str | None:
    return "supervised_spec.items='rows'" if stack.supervised_spec.items == "rows" else None


COMMON: Mapping[str, Any] = {
    "component": "supervised_step",
    "cost": "CPU, seconds",
    "catalogue": "SB155 SB156 SB157 SB159 SB199",
    "seeded": False,
}
MICRO_BATCHES = Relation(
    id="R1.supervised",
    name="head-ignores-micro-batches",
    statement="Loss and gradient of an optimizer batch do not depend on its micro-batches, for any head of the model.",
    excluded=balances,
    **COMMON,
)
FORMULA = Relation(
    id="R12.supervised",
    name="head-equals-oracle",
    statement="Loss and gradient equal the mean loss over all items of the batch, in float64.",
    **COMMON,
)
NOT_DIVIDED = (
    "a sum over micro-batches where their mean is due, as where a model takes a count that its loss ignores"
)
MEANS = "a mean of the micro-batches' means, labels that no item has in the divisor"


@MICRO_BATCHES.law("micro-batches of one example", NOT_DIVIDED, cases=partial(_make, size=1))
@MICRO_BATCHES.law("micro-batches of two examples", NOT_DIVIDED, cases=partial(_make, size=2))
def step_ignores_micro_batches(stack: Any, case: SupervisedCase) -> Measure:
    """Compare loss and gradient of a step in micro-batches with those of the same step in one."""
    whole = stack.supervised_step([case.examples])
    return distance(stack, stack.supervised_step(case.micro_batches), whole, "the step in one micro-batch")


@FORMULA.law(
    "loss and gradient", "padding in the mean, labels shifted by one, smoothing ignored", cases=_make
)
@FORMULA.law(
    "loss and gradient, examples of unequal numbers of items",
    "padding in the mean, a mean of the rows' means",
    cases=partial(_make, unequal=True),
    excluded=_has_one_item,
)
@FORMULA.law(
    "loss and gradient, micro-batches of unequal numbers of items",
    MEANS,
    cases=partial(_make, size=2, unequal=True),
    excluded=_has_one_item,
)
def step_equals_oracle(stack: Any, case: SupervisedCase) -> Measure:
    """Compare loss and gradient with the mean over all items, computed in float64 one example at a time."""
    return distance(
        stack, stack.supervised_step(case.micro_batches), oracle(stack, case.micro_batches), "the oracle"
    )


def oracle(stack: Any, micro_batches: Sequence[Sequence[int]]) -> StepResult:
    """Return the mean loss over all items, a balance loss added where the stack has one, and its gradients."""
    spec: SupervisedSpec = stack.supervised_spec
    model = copy.deepcopy(stack.supervised_model()).double().eval()
    losses = [
        item_loss(outputs_V.double(), target, spec)
        for part in micro_batches
        for example in part
        for outputs_V, target in zip(*stack.supervised_logits(model, example), strict=True)
    ]
    loss = torch.stack(losses).mean()
    if spec.balance:
        parts = [stack.supervised_balance(model, part) for part in micro_batches]
        loss = loss + spec.balance * torch.stack(parts).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    return StepResult(loss=float(loss.detach()), gradients=gradients)


def item_loss(outputs_V: Tensor, target: Any, spec: SupervisedSpec) -> Tensor:
    """Return the loss of one item."""
    if spec.loss == "numbers":
        return ((outputs_V - torch.tensor(target, dtype=torch.float64)) ** 2).mean()
    if spec.loss == "labels":
        on_V = torch.tensor(target, dtype=torch.float64)
        return (torch.log1p((-outputs_V.abs()).exp()) + outputs_V.clamp(min=0) - on_V * outputs_V).mean()
    logprobs_V = outputs_V - outputs_V.logsumexp(0)
    return -(1 - spec.smoothing) * logprobs_V[target] - spec.smoothing * logprobs_V.mean()


def distance(stack: Any, given: StepResult, right: StepResult, what: str) -> Measure:
    """Return the measure of the larger of two relative differences: of the gradients, and of the logged losses."""
    error, name = largest_gradient_difference(
        {key: given.gradients[key] for key in given.gradients.keys() & right.gradients.keys()},
        {key: right.gradients[key] for key in given.gradients.keys() & right.gradients.keys()},
    )
    loss = max(abs(given.loss - right.loss) - LOGGED_DIGIT / 2, 0.0) / max(abs(right.loss), 1e-3)
    # Both bounds are of float32 sums; the loss is compared within its printed digits.
    error, place = max((error, f"gradient of {name}"), (loss * GRADIENT_BOUND / LOSS_BOUND, "logged loss"))
    return Measure(
        error=error,
        bound=bound_of(stack, GRADIENT_BOUND),
        what=f"{place} against {what}, logged {given.loss:.5g} for {right.loss:.5g}, relative difference",
    )
