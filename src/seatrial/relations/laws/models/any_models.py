"""R5.base: a base model of any kind gives a row the same outputs in every form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from seatrial.relations.cases.case import AsItIs, as_it_is
from seatrial.relations.contracts.any_models import AnyForm
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed

BOUND = 1e-3
"""Float32 through a few layers with enlarged weights, relative to the root of the mean square of an output."""

BASE = Relation(
    id="R5.base",
    name="a-base-model-is-one-in-every-form",
    component="any_model",
    statement="Outputs of a base model do not depend on neighbours, their order, earlier calls, a copy, a reload, the "
    "kind of attention, a cache, masks that hide nothing, further outputs, padding or training mode; gradients do not "
    "depend on activations computed again; a call changes neither its inputs nor the model's options.",
    cost="CPU, half a second a kind",
    cases=as_it_is,
    seeded=False,
)


def largest_difference(found: Mapping[str, Tensor], right: Mapping[str, Tensor], bound: float) -> Measure:
    """Return the largest difference of tensors by name, relative to each tensor's size.

    Raises:
        NotServed: no name is in both.
    """
    both = [name for name in right if name in found]
    if not both:
        raise NotServed("no output to compare")
    other = [name for name in both if found[name].shape != right[name].shape]
    if other:
        shapes = [f"{name}: {[*found[name].shape]} and {[*right[name].shape]}" for name in other]
        return Measure.count(shapes, "outputs of another shape")
    errors = []
    for name in both:
        one, due = found[name].double(), right[name].double()
        if not due.numel():
            continue
        size = max(float(due.square().mean().sqrt()), 1e-6)
        error = float((one - due).abs().nan_to_num(nan=math.inf).max()) / size
        errors.append((error, name))
    return Measure.largest(errors, bound, "outputs, relative difference")


@BASE.law("rows by themselves", "a mean, a mask or a length that neighbours share", form="alone")
@BASE.law("rows in reverse", "an output that depends on the place in the batch", form="reversed")
@BASE.law("after other calls", "a state, a size or a mask kept from an earlier call", form="again")
@BASE.law("a copy", "a tensor that the copy shares or loses", form="copied")
@BASE.law("saved and loaded", "tensors or options that are left out, or made again", form="loaded")
@BASE.law("scaled dot-product attention", "another mask or scale", form="sdpa")
@BASE.law("outputs as a tuple", "another order of outputs, one left out", form="tuple")
@BASE.law("further outputs", "states that are changed in place", form="asked")
@BASE.law("embeddings in place of ids", "a scale that ids alone get", form="embedded")
@BASE.law("a mask of ones", "a mask with the wrong sign or shape", form="mask of ones")
@BASE.law("marks that replace nothing", "marks with the wrong sign", form="nothing masked")
@BASE.law(
    "positions of the same size", "positions cut or turned when they are interpolated", form="interpolated"
)
@BASE.law("ids padded on the right", "padding that is attended to", form="padded")
@BASE.law("more embeddings", "weights of old ids that a resize changes, ties that it loses", form="resized")
@BASE.law("training mode", "noise that no option turns off, a branch for training alone", form="training")
@BASE.law("float64", "a cast, a constant or a mask of float32 that rounds", form="float64")
@BASE.law("another layout in memory", "a view that reads another order", form="channels last")
@BASE.law("without a cache", "keys and values that a layer gets from the cache alone", form="uncached")
@BASE.law("rows without a mask", "positions that are taken for the beginnings of rows", form="unmasked")
def outputs_are_those_of_the_batch(stack: Any, case: AsItIs, *, form: AnyForm) -> Measure:
    """Compare the outputs in a form with those of one batch."""
    return largest_difference(stack.any_outputs(form), stack.any_outputs("together"), BOUND)


@BASE.law(
    "gradients of activations computed again",
    "a random number, a cache or an input that the second pass does not have",
)
def gradients_are_the_same(stack: Any, case: AsItIs) -> Measure:
    """Compare gradients with activations computed again with those without."""
    return largest_difference(
        stack.any_gradients(checkpointed=True), stack.any_gradients(checkpointed=False), BOUND
    )


@BASE.law("inputs and options stay", "a tensor or a configuration that is changed in place")
def nothing_is_changed(stack: Any, case: AsItIs) -> Measure:
    """Check that making, calling and training a model leave its inputs and its options as they are."""
    return Measure.count(stack.any_changes(), "inputs and options that are other ones")


@BASE.law(
    "one seed, two models", "weights drawn before the seed, or without it, a tensor that two models share"
)
def seed_decides(stack: Any, case: AsItIs) -> Measure:
    """Check that two models of one seed begin with the same weights, and share none."""
    return Measure.count(stack.any_missing(), "weights that are other ones, or shared")
