"""R29.routes: dropout in training takes away what the adapter adds, and keeps its mean."""

from __future__ import annotations

import math
from typing import Any

import torch

from seatrial.relations.contracts.adapters import AdaptedModel
from seatrial.relations.law import Measure
from seatrial.relations.laws.adapters.adapted import BOUND
from seatrial.relations.laws.adapters.inputs import AdapterCase, ids_of, move
from seatrial.relations.laws.adapters.routes import ROUTES
from seatrial.relations.tensors import largest_difference

RATE = 0.4
NUM_PASSES, NUM_ROWS = 60, 3
"""Some types draw once for all rows of a forward pass, others for each row."""
SPREAD = 0.003
"""Of the changes of the adapter: small ones, so that the changes of several layers add up."""
ROUNDING = 1e-2
"""Float32 sums in another order, of what is added by small changes."""
FAR = 0.3
"""Bound of the logarithm of a mean: 60 draws of one layer have a standard error of 0.11, those of eight 0.04. What is
not scaled is off by 0.51, and what is divided by the rate for its complement by 0.41."""


def _drops_something_else(stack: Any) -> str | None:
    spec = stack.adapter_spec
    if not spec.takes_dropout:
        return "adapter_spec.takes_dropout=False"
    if not spec.drops_added:
        return "adapter_spec.drops_added=False"
    if spec.also_trains:
        return f"adapter_spec.also_trains={spec.also_trains}"
    return "adapter_spec.refuses 'two at once': rows or modules are replaced" if _is_whole(stack) else None


def _is_whole(stack: Any) -> bool:
    return "two at once" in stack.adapter_spec.refuses


def _drops_a_part(stack: Any) -> str | None:
    return _drops_something_else(stack) or (
        None if stack.adapter_spec.drops_all else "adapter_spec.drops_all=False"
    )


def _moved(stack: Any, case: AdapterCase, rate: float, spread: float) -> AdaptedModel:
    model: AdaptedModel = stack.adapted(seed=case.seed, dtype="float32", dropout=rate)
    move(model, case.seed, spread=spread)
    return model


@ROUTES.law(
    "training with all of it dropped",
    "a rate that is ignored, or that is another option's; a part of the adapter that is not dropped",
    excluded=_drops_a_part,
)
def dropping_all_is_the_base(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs in training at a rate of 1 with those of the disabled adapter."""
    ids_BS = ids_of(stack, case)
    model = _moved(stack, case, 1.0, 0.1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        found_BSV, _ = stack.answered(model, ids_BS, "in training")
    with model.disabled():
        base_BSV = model.outputs(ids_BS)
    return Measure(
        error=largest_difference(found_BSV.detach(), base_BSV),
        bound=BOUND,
        what="outputs in training with dropout 1 against the base, relative difference",
    )


def _has_another_mean(stack: Any) -> str | None:
    return _drops_something_else(stack) or (
        "adapter_spec.rescales_dropout=None" if stack.adapter_spec.rescales_dropout is None else None
    )


@ROUTES.law(
    "training with dropout, on average",
    "a rate that is ignored, what is kept that is not scaled, or is scaled by another rate",
    excluded=_has_another_mean,
    thorough=True,
)
def dropout_keeps_its_mean(stack: Any, case: AdapterCase) -> Measure:
    """Compare what a small adapter adds in training, on average over draws, with what it adds in evaluation."""
    ids_1S = ids_of(stack, case)[:1]
    model = _moved(stack, case, RATE, SPREAD)
    with model.disabled():
        base_1SV = model.outputs(ids_1S).double()
    whole_1SV = model.outputs(ids_1S).double() - base_1SV
    total_1SV, changes = torch.zeros_like(whole_1SV), False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        for _ in range(NUM_PASSES):
            found_BSV = stack.answered(model, ids_1S.repeat(NUM_ROWS, 1), "in training")[0].detach()
            added_BSV = found_BSV.double() - base_1SV
            changes |= largest_difference(added_BSV, whole_1SV.expand_as(added_BSV)) > ROUNDING
            total_1SV += added_BSV.mean(0)
    mean = float((total_1SV * whole_1SV).sum() / whole_1SV.pow(2).sum()) / NUM_PASSES
    due = 1.0 if stack.adapter_spec.rescales_dropout else 1 - RATE
    return Measure(
        error=abs(math.log(mean / due)) if mean > 0 and changes else math.inf,
        bound=FAR,
        what=f"what is added under dropout {RATE} has a mean of {mean:.3g} of that in evaluation, due {due:.3g}"
        f"{'' if changes else ', and no draw differs from it'}, logarithm",
    )
