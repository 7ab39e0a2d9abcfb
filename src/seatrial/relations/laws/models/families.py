"""R5.family: a language model gives a row the same logits in every form, and its loss is that of its logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.facts import bound_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.tensors import largest_gradient_difference
from seatrial.relations.worst import relative_error

BOUND = 5e-4
"""Float32, through a few layers with enlarged weights, relative to the largest logit."""
RELOADED = 2e-6
"""A sum of the same numbers, which another place in memory may order otherwise."""
NUM_DECODED = 4


@dataclass(frozen=True, kw_only=True)
class RowsCase(Case):
    """Rows of ids."""

    rows: tuple[tuple[int, ...], ...]

    def smaller(self) -> Iterator[RowsCase]:
        """Yield fewer rows."""
        if len(self.rows) > 2:
            yield replace(self, rows=self.rows[:2])

    def describe(self) -> Mapping[str, Any]:
        """Return the rows."""
        return {"rows": [list(row) for row in self.rows]}


def _make(stack: Any, seed: int, tidy: bool) -> RowsCase:
    rng = np.random.default_rng([seed, 5])
    lengths = [8, 8] if tidy else [13, 6, 10]
    return RowsCase(
        rows=tuple(
            tuple(int(token) for token in rng.integers(3, stack.vocab_size, size=size)) for size in lengths
        )
    )


FAMILY = Relation(
    id="R5.family",
    name="a-model-is-one-in-every-form",
    component="model_family",
    statement="A row's logits do not depend on padding, neighbours, the cache, the kind of attention or a reload; the "
    "loss and its gradient are those of the logits.",
    cost="CPU, a second a family",
    cases=_make,
)
PADDING = "padding that is attended to, positions that count padding, a state that padding changes"
CACHE = "positions or windows that begin again with the cache, a state that is not carried over, another mask"


def _form(**options: Any) -> dict[str, Any]:
    """Return the arguments of a law of a form, which a family may not have."""
    form = ModelForm(**options)
    return {"form": form, "excluded": lambda stack: stack.family_excludes(form)}


@FAMILY.law("a batch padded on the left", PADDING, **_form(together="left"))
@FAMILY.law("a batch padded on the right", PADDING, **_form(together="right"))
@FAMILY.law("scaled dot-product attention", "another mask or scale", **_form(attention="sdpa"))
@FAMILY.law(
    "scaled dot-product attention, padded on the left",
    "another mask or scale, a row of padding that becomes NaN",
    **_form(attention="sdpa", together="left"),
)
@FAMILY.law("decoded from the cache", CACHE, **_form(decoded="from the cache"))
@FAMILY.law(
    "decoded from the cache, padded on the left", CACHE, **_form(decoded="from the cache", together="left")
)
@FAMILY.law(
    "decoded from the cache, scaled dot-product attention",
    CACHE,
    **_form(decoded="from the cache", together="left", attention="sdpa"),
)
@FAMILY.law("decoded from a static cache", CACHE, **_form(decoded="from a static cache", together="left"))
@FAMILY.law("decoded without a cache", CACHE, **_form(decoded="without a cache", together="left"))
@FAMILY.law("decoded after a chunked prompt", CACHE, **_form(decoded="a chunked prompt"))
@FAMILY.law("in two passes", CACHE, **_form(decoded="in two passes"))
@FAMILY.law("in two passes, padded on the left", CACHE, **_form(decoded="in two passes", together="left"))
@FAMILY.law("embeddings in place of ids", "a scale that ids alone get, or both", **_form(embedded=True))
@FAMILY.law("logits of the last places", "the first places, or one too few", **_form(num_last=3))
@FAMILY.law("resized embeddings", "rows that are made again, a head that is not resized", **_form(more_ids=5))
def logits_are_those_of_the_row(stack: Any, case: RowsCase, *, form: ModelForm) -> Measure:
    """Compare the logits of a form with those of each row by itself."""
    form = replace(form, num_last=NUM_DECODED) if form.decoded else form
    with torch.no_grad():
        found = stack.family_logits(case.rows, form)
        right = stack.family_logits(case.rows, ModelForm())
    return largest_logit_difference(found, right, bound_of(stack, BOUND))


@FAMILY.law("saved and loaded", "tensors that are left out, or made again", **_form(reloaded=True))
def reload_changes_nothing(stack: Any, case: RowsCase, *, form: ModelForm) -> Measure:
    """Compare the logits of a model that was saved and loaded with those before, within the last bits."""
    with torch.no_grad():
        found, right = stack.family_logits(case.rows, form), stack.family_logits(case.rows, ModelForm())
    return largest_logit_difference(found, right, RELOADED)


def largest_logit_difference(found: list[Tensor], right: list[Tensor], bound: float) -> Measure:
    """Return the measure of the largest difference of logits from those of the rows' last places."""
    errors = []
    for row, (one, whole) in enumerate(zip(found, right, strict=True)):
        other = whole[len(whole) - len(one) :]
        places = (one.double() - other.double()).abs().amax(1) / other.double().abs().max().clamp(min=1e-6)
        worst = int(places.nan_to_num(float("inf")).argmax())
        errors.append((float(places[worst]), f"row {row}, place {len(whole) - len(one) + worst}"))
    return Measure.largest(errors, bound, "logits against those of each row by itself, relative")


@FAMILY.law("loss", "labels shifted twice or not at all, padding in the mean, a scale of the logits left out")
def loss_is_of_the_logits(stack: Any, case: RowsCase) -> Measure:
    """Compare the model's loss with the mean cross-entropy of each next id, in float64."""
    loss = stack.family_step(case.rows, checkpointed=False).loss
    with torch.no_grad():
        logits = stack.family_logits(case.rows, ModelForm())
    losses = [
        -one[:-1].double().log_softmax(-1).gather(1, torch.tensor(row[1:])[:, None])
        for row, one in zip(case.rows, logits, strict=True)
    ]
    right = float(torch.cat(losses).mean())
    return Measure(
        error=relative_error(loss, right, 1e-3),
        bound=bound_of(stack, BOUND),
        what=f"loss {loss:.6g} against {right:.6g} of the logits, relative difference",
    )


def _takes_no_padding(side: str) -> Any:
    return lambda stack: stack.family_excludes(ModelForm(together=side))  # type: ignore[arg-type]


LAST = "the first padding id taken for the end of a row, a place of the batch in place of the row's last one"


@FAMILY.law("classes of rows padded on the left", LAST, side="left", excluded=_takes_no_padding("left"))
@FAMILY.law("classes of rows padded on the right", LAST, side="right", excluded=_takes_no_padding("right"))
def rows_are_classified_by_their_last_id(stack: Any, case: RowsCase, *, side: str) -> Measure:
    """Compare logits of rows that hold the padding id, in a batch, with the head on each row's own last state."""
    rows = [(*row[:3], stack.padding_id, *row[4:]) for row in case.rows]
    with torch.no_grad():
        found_BC, right_BC = stack.family_classes(rows, side)
    errors = (found_BC.double() - right_BC.double()).abs().amax(1) / right_BC.double().abs().max().clamp(
        min=1e-6
    )
    return Measure.largest(
        [(float(error), f"row {row}") for row, error in enumerate(errors.nan_to_num(float("inf")))],
        bound_of(stack, BOUND),
        "logits of rows' classes against the head on their last states, relative",
    )


def _does_not_checkpoint(stack: Any) -> str | None:
    return None if stack.family_checkpoints else "no gradient checkpointing"


def _does_not_tie(stack: Any) -> str | None:
    return None if stack.family_ties(reloaded=False) else "a head of its own"


@FAMILY.law(
    "checkpointed gradients",
    "random numbers or a cache that differ when activations are computed again",
    excluded=_does_not_checkpoint,
)
def checkpointing_changes_no_gradient(stack: Any, case: RowsCase) -> Measure:
    """Compare gradients with activations computed again with those without."""
    found = stack.family_step(case.rows, checkpointed=True)
    right = stack.family_step(case.rows, checkpointed=False)
    error, name = largest_gradient_difference(found.gradients, right.gradients)
    error = max(error, relative_error(found.loss, right.loss, 1e-3))
    return Measure(
        error=error, bound=bound_of(stack, BOUND), what=f"gradient of {name} or loss, relative difference"
    )


@FAMILY.law(
    "tied head", "a head that is loaded apart from the embeddings", seeded=False, excluded=_does_not_tie
)
def head_stays_tied(stack: Any, case: RowsCase) -> Measure:
    """Check that a head that is tied to the embeddings is so after a reload."""
    wrong = [] if stack.family_ties(reloaded=True) else ["the head has a tensor of its own"]
    return Measure.count(wrong, "after a reload")
