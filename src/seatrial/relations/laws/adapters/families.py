"""R29.families: on every family, a low-rank adapter computes the same merged, saved, disabled or checkpointed."""

from __future__ import annotations

from typing import Any

import torch

from seatrial.relations.contracts.adapted_families import Layers, Use
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.models.families import BOUND, FAMILY, RowsCase, largest_logit_difference

FAMILIES = Relation(
    id="R29.families",
    name="adapters-are-the-same-on-every-family",
    component="adapted_family",
    statement="Merged, unmerged, saved and loaded, next to another and with activations computed again, an adapter "
    "computes what it computed; disabled, it computes nothing; every tensor of it is trained.",
    cost="CPU, a second a family",
    cases=FAMILY.cases,
    seeded=False,
)
USES: dict[Use, str] = {
    "merged": "a weight that the model reads past the adapter, a scale or a transpose of the merge alone",
    "unmerged": "what is added and taken away differs",
    "merged for good": "a weight that the model reads past the adapter, a tensor that stays behind",
    "disabled": "a part of the adapter that stays",
    "saved and loaded": "tensors of the adapter that are left out or renamed",
    "loaded by the model itself": "a name under which the model does not find tensors, which stay as drawn",
    "next to another": "a second adapter that adds to the first, or replaces a part of it",
    "checkpointed": "activations computed again without the adapter",
}
LAYERS: tuple[Layers, ...] = ("linear layers", "experts", "embeddings and head")


def adapter_computes_the_same(stack: Any, case: RowsCase, *, layers: Layers, use: Use) -> Measure:
    """Compare what an adapted model computes in a use of it with what it has to equal."""
    with torch.no_grad():
        pairs = stack.adapted_pairs(case.rows, layers, use)
    return largest_logit_difference([one for one, _ in pairs], [due for _, due in pairs], BOUND)


def every_tensor_trains(stack: Any, case: RowsCase, *, layers: Layers) -> Measure:
    """Check that a step of training gives every tensor of the adapter a gradient."""
    return Measure.count(stack.untrained(case.rows, layers), "tensors without a gradient")


def adapters_are_where_they_are_named(stack: Any, case: RowsCase, *, layers: Layers) -> Measure:
    """Check that every layer that is named has an adapter, and no other one."""
    return Measure.count(stack.misplaced(layers), "layers with an adapter too many or too few")


for _layers in LAYERS:
    for _use, _suspects in USES.items():
        FAMILIES.law(f"{_layers}: {_use}", _suspects, layers=_layers, use=_use)(adapter_computes_the_same)
    FAMILIES.law(
        f"{_layers}: placed",
        "a head that is taken for an inner layer, a name that is found within another one",
        layers=_layers,
        seeded=False,
    )(adapters_are_where_they_are_named)
    FAMILIES.law(
        f"{_layers}: trains",
        "a weight that the model reads past the adapter, a graph that is cut",
        layers=_layers,
    )(every_tensor_trains)
