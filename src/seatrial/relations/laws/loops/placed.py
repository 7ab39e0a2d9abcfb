"""R30.placed: a model that is listed, prepared, saved, loaded or offloaded stays the same model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import torch

from seatrial.relations.contracts.placed import ModelTrait, PlacedPlan, Placing
from seatrial.relations.law import Measure, Relation
from seatrial.relations.tensors import largest_difference

EXACT = 1e-6
"""The same float32 operations on the same weights."""
HALF = 2e-2
"""Outputs of a forward pass in bfloat16, against float32."""


def plan(placing: Placing, trait: ModelTrait) -> Callable[[Any, int, bool], PlacedPlan]:
    """Return a function that makes the plan."""

    def made(stack: Any, seed: int, tidy: bool) -> PlacedPlan:
        return PlacedPlan(placing=placing, trait="plain" if tidy else trait, seed=seed)

    return made


PLACED = Relation(
    id="R30.placed",
    name="placed-model-is-the-model",
    component="placed_models",
    statement="A model computes the same, and has the same state, after it is listed, prepared, saved and loaded, or "
    "offloaded.",
    cost="CPU, a tenth of a second",
    cases=plan("listed", "plain"),
    seeded=False,
)
PLACINGS: tuple[Placing, ...] = (
    "listed",
    "prepared",
    "saved",
    "saved in parts",
    "saved in parts without safetensors",
    "made empty and loaded",
    "loaded half to disk",
    "offloaded",
    "offloaded to disk",
    "offloaded and brought back",
)
TRAITS: tuple[ModelTrait, ...] = get_args(ModelTrait)
LOST = (
    "a buffer that leaves the state, a tied weight that is loaded or moved once, a parameter of the model itself that "
    "no hook moves, a part of the file that is not read, a cast"
)


def stays_the_same_model(stack: Any, case: PlacedPlan, bound: float = EXACT) -> Measure:
    """Compare outputs, and names, dtypes and values of the state, with those of the plain model."""
    found = stack.placed(case)
    difference = largest_difference(found.outputs.double(), found.plain_outputs.double())
    wrong = [(difference, f"outputs of a model with {case.trait}")]
    for name in sorted(found.tensors.keys() ^ found.plain_tensors.keys()):
        where = (
            "not in the state"
            if name in found.plain_tensors
            else "in the state, and not in that of the model"
        )
        wrong.append((float("inf"), f"{name}, which is {where}"))
    for name in sorted(found.tensors.keys() & found.plain_tensors.keys()):
        one, other = found.tensors[name], found.plain_tensors[name]
        if one.dtype != other.dtype or one.shape != other.shape or not torch.equal(one, other):
            wrong.append((float("inf"), f"{name}: {one.dtype}, {list(one.shape)}, other values"))
    return Measure.largest(wrong, bound, f"model that is {case.placing} against the plain one")


for _placing in PLACINGS:
    for _trait in TRAITS:
        PLACED.law(f"{_placing}: {_trait}", LOST, cases=plan(_placing, _trait))(stays_the_same_model)
PLACED.law(
    "buffers added later", "a state that was listed before", cases=plan("buffers added later", "buffers")
)(stays_the_same_model)
PLACED.law(
    "prepared twice", "a model that a checkpoint holds twice", cases=plan("prepared twice", "buffers")
)(stays_the_same_model)
PLACED.law(
    "prepared in bfloat16",
    "weights that are cast, outputs in half precision",
    cases=plan("prepared in bfloat16", "buffers"),
    bound=HALF,
)(stays_the_same_model)
