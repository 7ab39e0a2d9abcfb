"""R29.adapted: a model with an adapter computes what the adapter's definition says, and the base without it."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case, ids_of, move
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.adapters import adapted_weights
from seatrial.relations.tensors import largest_difference

BOUND = 2e-4
"""Float32 through a model of two layers with enlarged weights, against float64."""
START_ROUNDING = 1e-6
STANDARD_ERRORS = 7.0
"""Of all layers' values; some types have each of them twice, which makes them appear 1.4 times as many."""

ADAPTED = Relation(
    id="R29.adapted",
    name="adapted-model-is-base-plus-adapter",
    component="adapters",
    statement="An adapted model starts as its base, computes with weights changed as the definition says, and is the "
    "base while the adapter is disabled.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
)


def _starts_elsewhere(stack: Any) -> str | None:
    return None if stack.adapter_spec.starts_as_base else "adapter_spec.starts_as_base=False"


def changes_base(stack: Any) -> str | None:
    """Return the declaration by which there are no base weights left to compare with, or None."""
    return "adapter_spec.changes_base=True" if stack.adapter_spec.changes_base else None


def refuses(*what: str) -> Callable[[Any], str | None]:
    """Return a function that names what a stack declares that it refuses of these, or returns None."""

    def declared(stack: Any) -> str | None:
        found = [one for one in what if one in stack.adapter_spec.refuses]
        return f"adapter_spec.refuses={found}" if found else None

    return declared


def _has_no_closed_form(stack: Any) -> str | None:
    return None if stack.adapter_spec.closed_form else "adapter_spec.closed_form=False"


def _takes_no_dropout(stack: Any) -> str | None:
    return None if stack.adapter_spec.takes_dropout else "adapter_spec.takes_dropout=False"


def _keeps_biases(stack: Any) -> str | None:
    return changes_base(stack) or (
        None if stack.adapter_spec.disables_all else "adapter_spec.disables_all=False"
    )


@ADAPTED.law(
    "starts as the base",
    "a decomposition of the weight in its transposed layout, a scale that is applied once too often",
    excluded=_starts_elsewhere,
)
def starts_as_base(stack: Any, case: AdapterCase) -> Measure:
    """Compare the outputs of a new adapter with those of the plain base."""
    ids_BS = ids_of(stack, case)
    base_BSV = stack.plain_outputs(ids_BS, stack.plain_weights(dtype="float32"))
    model = stack.adapted(seed=case.seed, dtype="float32")
    return Measure(
        error=largest_difference(model.outputs(ids_BS), base_BSV),
        bound=stack.adapter_spec.start_bound,
        what="outputs of a new adapter against the base, relative difference",
    )


@ADAPTED.law(
    "spread of its start",
    "a deviation for the inverse of the rank, a bound of the wrong side of a factor, a constant of another option",
)
def starts_with_its_spread(stack: Any, case: AdapterCase) -> Measure:
    """Compare mean and deviation of the values of a new adapter, over all layers, with the type's description."""
    starts = getattr(stack, "starts", None)
    if starts is None:
        raise NotServed("the stack describes no start")
    model = stack.adapted(seed=case.seed, dtype="float32")
    values, drawn, wrong = model.tensors(), defaultdict(list), []
    for name, spread in starts(model).items():
        if spread.deviation:
            part = re.sub(r"\d+", "*", name)
            drawn[part].append((values[name].double().flatten() - spread.mean) / spread.deviation)
        elif bool((values[name] - spread.mean).abs().max() > START_ROUNDING):
            wrong.append(f"{name} is not {spread.mean:g}")
    for part, found in drawn.items():
        all_of_it = torch.cat(found)
        errors = math.sqrt(len(all_of_it))
        if abs(float(all_of_it.mean())) * errors > STANDARD_ERRORS:
            wrong.append(f"{part} has a mean of {float(all_of_it.mean()):.3g} deviations")
        # The squares of a normal draw have a deviation of the root of two.
        square = float(all_of_it.pow(2).mean())
        if abs(square - 1) * errors / math.sqrt(2) > STANDARD_ERRORS:
            wrong.append(f"{part} has {math.sqrt(square):.3g} times the deviation")
    return Measure.count(wrong, "tensors of a new adapter that do not start as described")


@ADAPTED.law(
    "float64 oracle",
    "alpha / r for alpha / sqrt(r), a pattern of ranks ignored, a transposed factor, the norm of the wrong axis",
    excluded=_has_no_closed_form,
)
def equals_oracle(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs after some training with those of plain weights that the definition gives."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    updates = model.updates("first") or ()
    right_BSV = stack.plain_outputs(ids_BS, adapted_weights(model.base_weights(), updates))
    return Measure(
        error=largest_difference(model.outputs(ids_BS).double(), right_BSV),
        bound=BOUND,
        what=f"outputs against the float64 oracle of {len(updates)} weights, relative difference",
    )


@ADAPTED.law(
    "the adapter has an effect",
    "an adapter that is not in use, a forward pass that leaves it out, tensors of another one",
)
def has_an_effect(stack: Any, case: AdapterCase) -> Measure:
    """Count trainable tensors whose change does not reach the outputs."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    before_BSV = model.outputs(ids_BS)
    move(model, case.seed + 1)
    unchanged = torch.equal(model.outputs(ids_BS), before_BSV)
    return Measure(
        error=float(unchanged), bound=0, what="outputs that stay when every trainable tensor changes"
    )


@ADAPTED.law(
    "disabled is the base",
    "a bias or a whole module that stays trained, an adapter of another component that stays in use",
    excluded=_keeps_biases,
)
def disabled_is_base(stack: Any, case: AdapterCase) -> Measure:
    """Compare the outputs while the adapter is disabled with those of the plain base, after some training."""
    ids_BS = ids_of(stack, case)
    base_BSV = stack.plain_outputs(ids_BS, stack.plain_weights(dtype="float32"))
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    with model.disabled():
        found_BSV = model.outputs(ids_BS)
    return Measure(
        error=largest_difference(found_BSV, base_BSV),
        bound=1e-6,
        what="outputs of the disabled adapter against the base",
    )


@ADAPTED.law(
    "nothing of the base trains while disabled", "a module in whose place a copy is trained, not frozen"
)
def base_is_frozen_while_disabled(stack: Any, case: AdapterCase) -> Measure:
    """Check that what trains in a block without the adapter trains outside of it too."""
    model = stack.adapted(seed=case.seed, dtype="float32")
    trainable = model.trainable()
    with model.disabled():
        wrong = [f"{name} trains" for name in sorted(model.trainable() - trainable)]
    return Measure.count(wrong, "tensors that train while the adapter is disabled alone")


@ADAPTED.law("after it was disabled", "a flag that is not put back, tensors frozen on the way out")
def disabling_leaves_no_trace(stack: Any, case: AdapterCase) -> Measure:
    """Check that outputs and trainable tensors are as before after a block without the adapter."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    before_BSV, trainable = model.outputs(ids_BS), model.trainable()
    with model.disabled():
        model.outputs(ids_BS)
    wrong = [f"{name} trains no more" for name in sorted(trainable - model.trainable())]
    wrong += [f"{name} trains now" for name in sorted(model.trainable() - trainable)]
    if not torch.equal(model.outputs(ids_BS), before_BSV):
        wrong.append("other outputs")
    return Measure.count(wrong, "what a block without the adapter left behind")


@ADAPTED.law(
    "dropout",
    "dropout that is on in evaluation, or that scales what it keeps there",
    excluded=_takes_no_dropout,
    dropout=0.5,
)
def evaluates_without_dropout(stack: Any, case: AdapterCase, dropout: float) -> Measure:
    """Compare outputs in evaluation mode of the same adapter with and without dropout."""
    ids_BS = ids_of(stack, case)
    found = []
    for rate in (0.0, dropout):
        model = stack.adapted(seed=case.seed, dtype="float32", dropout=rate)
        move(model, case.seed)
        found.append(model.outputs(ids_BS))
    return Measure(
        error=largest_difference(found[1], found[0]),
        bound=BOUND,
        what=f"outputs in evaluation mode with dropout {dropout} against none",
    )
