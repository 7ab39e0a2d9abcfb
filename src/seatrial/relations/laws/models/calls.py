"""R5.calls: logits do not depend on how a model is called, and options do what others in their place do."""

from __future__ import annotations

from typing import Any

import torch

from seatrial.relations.contracts.model_calls import IGNORED, CallForm
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.models.families import (
    BOUND,
    FAMILY,
    RELOADED,
    RowsCase,
    largest_logit_difference,
)
from seatrial.relations.worst import relative_error

CALLS = Relation(
    id="R5.calls",
    name="a-model-is-one-however-it-is-called",
    component="model_calls",
    statement="Further outputs, tuples, earlier calls, float64 and the order of rows change no logits; scalings of "
    "rotary embeddings equal other places and larger queries; rows longer than a model's original length or choice "
    "are those by themselves; ignored labels train nothing and no input is changed.",
    cost="CPU, half a second a family",
    cases=FAMILY.cases,
    seeded=False,
)
HALF = 0.2
"""Of the median place's logits in half precision, through layers with enlarged weights."""
OTHER = "an option that is ignored, or applied twice"
ALONE = 1e-4
"""Of padding that small layers take in."""
BY_PLACE = "a scale or a choice by the place in the batch in place of the position in the row"


@CALLS.law(
    "further outputs", "states that are changed in place, another kind of attention", form="further outputs"
)
@CALLS.law("outputs as a tuple", "another order of outputs", form="as a tuple", bound=RELOADED)
@CALLS.law(
    "after other calls", "a state, a mask or frequencies kept from an earlier call", form="after other calls"
)
@CALLS.law("float64", "a part that stays in float32, a mask or an epsilon of another type", form="in float64")
@CALLS.law("rows in the reverse order", "rows that see each other", form="no rows of their own")
@CALLS.law("linear scaling by larger places", OTHER, form="places by a factor")
@CALLS.law("scale of attention by larger queries", OTHER, form="yarn by larger queries")
@CALLS.law(
    "the last hidden state",
    "a norm that is applied twice or not at all",
    form="the last state",
    bound=RELOADED,
)
@CALLS.law(
    "masks of other types", "a mask of truth values that is taken for numbers", form="masks of other types"
)
@CALLS.law("ids that are added", "a head that is not resized, or in another order", form="more ids")
@CALLS.law("ids that are taken away", "embeddings that are made again", form="fewer ids")
@CALLS.law(
    "experts by definition",
    "scores that are normed twice or not at all, a group or a bias that is left out, matrices in another order",
    form="experts by definition",
)
@CALLS.law(
    "logits of routers",
    "probabilities in place of logits, a layer that is left out",
    form="logits of routers",
)
@CALLS.law(
    "ways of computing experts",
    "weights of other tokens, a bias that is left out, tokens in another order, a gradient that is lost",
    form="ways of computing experts",
)
@CALLS.law("places in a window", "a window of one place more or fewer", form="places in a window")
@CALLS.law("head by definition", OTHER, form="head by definition")
@CALLS.law("the first hidden state", OTHER, form="the first state")
@CALLS.law("scale of attention", OTHER, form="scale of attention")
@CALLS.law(
    "queries turned by their places",
    "another base, dimensions that are left out, turned the other way",
    form="turned queries",
)
@CALLS.law(
    "a row padded on the left by itself",
    "padding that a state or a convolution takes in where a batch has one row",
    form="a row padded by itself",
    bound=ALONE,
)
@CALLS.law("padded on the left, beyond a length", BY_PLACE, form="padded beyond a length")
@CALLS.law("packed, beyond a length", BY_PLACE, form="packed beyond a length")
@CALLS.law("generated, beyond a length", BY_PLACE, form="generated beyond a length")
@CALLS.law(
    "long and short factors while a row grows",
    "keys of short factors that stay in the cache, or a cache that is dropped with a part of the row",
    form="grown beyond a length",
)
@CALLS.law(
    "places that an index chooses",
    "scores of heads that are added up before their negative part is cut off, a weight that is left out",
    form="places of an index",
)
@CALLS.law("loss of routers", "padding that counts, a layer that is left out", form="routers by argument")
@CALLS.law("loss of routers by configuration", OTHER, form="routers by configuration")
@CALLS.law(
    "bfloat16, padded on the left", "an infinite mask, a part of another type", form="in bfloat16", bound=HALF
)
@CALLS.law("float16, padded on the left", "a mask or a sum that overflows", form="in float16", bound=HALF)
def calls_change_nothing(stack: Any, case: RowsCase, *, form: CallForm, bound: float = BOUND) -> Measure:
    """Compare the logits of a form with those that they have to equal."""
    with torch.no_grad():
        pairs = stack.call_pairs(case.rows, form)
    return largest_logit_difference([one for one, _ in pairs], [due for _, due in pairs], bound)


def _labels(case: RowsCase) -> list[list[int]]:
    return [
        [IGNORED if (place + number) % 3 == 0 else token for place, token in enumerate(row)]
        for number, row in enumerate(case.rows)
    ]


@CALLS.law("loss, labels ignored", "a mean over ignored labels, labels of the row in place of those given")
def ignored_labels_train_nothing(stack: Any, case: RowsCase) -> Measure:
    """Compare the loss, a third of the labels ignored, with that of the logits of the others."""
    labels = _labels(case)
    found, _ = stack.loss_of_labels(case.rows, labels)
    with torch.no_grad():
        losses = [
            -float(row[place].double().log_softmax(0)[label])
            for row, own in zip(stack.row_logits(case.rows), labels, strict=True)
            for place, label in enumerate(own[1:])
            if label != IGNORED
        ]
    right = sum(losses) / len(losses)
    what = f"loss {found:.6g} against {right:.6g} of the labels that train, relative difference"
    return Measure(error=relative_error(found, right, 1e-3), bound=BOUND, what=what)


@CALLS.law("inputs stay", "labels, ids, a mask or places that are changed in place")
def inputs_are_not_changed(stack: Any, case: RowsCase) -> Measure:
    """Check that a step of training leaves its inputs as they are."""
    _, changed = stack.loss_of_labels(case.rows, _labels(case))
    return Measure.count(changed, "inputs that are changed")
