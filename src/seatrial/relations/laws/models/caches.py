"""R5.cached: a cache that is reordered, cut, repeated, copied or passed on gives the logits of the whole row."""

from __future__ import annotations

from typing import Any

import torch

from seatrial.relations.contracts.model_calls import CallForm
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.models.families import BOUND, FAMILY, RowsCase, largest_logit_difference

CACHED = Relation(
    id="R5.cached",
    name="a-cache-is-what-was-read",
    component="model_calls",
    statement="Ids that follow a cache, also one whose rows were reordered, chosen, repeated, copied or cut, have the "
    "logits of the whole row; beams, candidates of the prompt, embeddings and a passed cache change no generated id.",
    cost="CPU, a second a family",
    cases=FAMILY.cases,
    seeded=False,
)
ROWS = "a state that stays with its place in the batch"


@CACHED.law("one by one", "places or windows that begin again with the cache", form="one by one")
@CACHED.law("reordered", ROWS, form="a cache reordered")
@CACHED.law("rows chosen", ROWS, form="rows of a cache chosen")
@CACHED.law("repeated", ROWS, form="a cache repeated")
@CACHED.law("copied", "a state that copies share, or that the model keeps", form="a cache copied")
@CACHED.law("cut", "a window or a state that does not go back", form="a cache cut")
@CACHED.law("beams", "a state that stays with its place in the batch, with and without a cache", form="beams")
@CACHED.law("beams that end, in a batch", "a row that ends by the others' beams", form="beams that end")
@CACHED.law(
    "candidates of the prompt",
    "a rejected candidate that stays in the cache",
    form="candidates of the prompt",
)
@CACHED.law("embeddings that generate", "a scale that ids alone get", form="embeddings that generate")
@CACHED.law(
    "generation that continues",
    "ids that are read again into a state",
    form="generation that continues",
)
def what_follows_is_of_the_row(stack: Any, case: RowsCase, *, form: CallForm) -> Measure:
    """Compare what a model computes from a cache with what it computes of the whole rows."""
    with torch.no_grad():
        pairs = stack.call_pairs(case.rows, form)
    return largest_logit_difference([one for one, _ in pairs], [due for _, due in pairs], BOUND)
