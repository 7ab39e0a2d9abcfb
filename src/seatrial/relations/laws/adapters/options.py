"""R29.options: an option at another value makes another adapter."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.contracts.adapters import AdaptedModel
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case, ids_of, move
from seatrial.relations.not_served import NotServed

OPTIONS = Relation(
    id="R29.options",
    name="options-make-another-adapter",
    component="varied_adapters",
    statement="An adapter with an option at another value differs in its tensors, in what trains, in what it computes "
    "or in its file.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
)


@OPTIONS.law("the option has an effect", "an option that is read and not used, or that another one overrules")
def option_has_an_effect(stack: Any, case: AdapterCase) -> Measure:
    """Look for a difference between the adapter and the one without the option, from equal seeds."""
    with_it, without = (_fingerprint(one, stack, case) for one in (stack, stack.unvaried()))
    same = with_it == without
    return Measure(error=float(same), bound=0, what="adapters that are the same with and without the option")


def _fingerprint(one: Any, stack: Any, case: AdapterCase) -> tuple[Any, ...]:
    """Return what a new adapter has, computes after it moved, and saves; rounded, to compare."""
    ids_BS = ids_of(stack, case)
    try:
        model: AdaptedModel = one.adapted(seed=case.seed, dtype="float32")
    except NotServed:
        return ()
    begun = {name: _rounded(value) for name, value in model.tensors().items()}
    trainable = sorted(model.trainable())
    move(model, case.seed)
    with tempfile.TemporaryDirectory() as folder:
        saved = sorted(model.save(Path(folder), "first"))
    return begun, trainable, _rounded(model.outputs(ids_BS)), saved


def _rounded(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), [round(one, 4) for one in value.detach().double().flatten().tolist()]
