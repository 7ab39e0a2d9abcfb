"""A family's tiny model in half precision, with other embeddings, masks of other types, and the loss of its routers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.contracts.model_calls import IGNORED, CallForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.zoo import balance_loss
from seatrial.targets.transformers.small_models import text_config

Rows = Sequence[Sequence[int]]
Pairs = list[tuple[Tensor, Tensor]]
WEIGHT = 0.5
WEIGHTS = ("router_aux_loss_coef", "aux_loss_coef")
CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k")
"""Names of the number of experts that a token goes to."""
FROM, TO, BEYOND = 7, 63, 66
"""An id of the rows, a new one that gets its weights, and the size that the embeddings get."""
FEWER = 40


def _logits(family: Any, model: Any, row: Sequence[int]) -> Tensor:
    """Return [S, V] logits of a row by itself, whose places the model counts."""
    found: Tensor = model(input_ids=torch.tensor([list(row)]), **family._uncached()).logits[0]
    return found


def _half(dtype: torch.dtype) -> Callable[[Any, Rows], Pairs]:
    """Return a form that compares the median place of a batch padded on the left, and whether all are finite.

    The median, as a few tokens may go to other experts.
    """

    def form(family: Any, rows: Rows) -> Pairs:
        if why := family.family_excludes(ModelForm(together="left")):
            raise NotServed(why)
        model = copy.deepcopy(family.model()).to(dtype)
        inputs, places = family._inputs(rows, "left")
        try:
            logits_BSV = model(**inputs, **family._uncached()).logits.float()
        except (
            RuntimeError
        ) as error:  # a kernel that the processor does not have, or another type of its inputs
            raise NotServed(error_line(error)) from error
        found = torch.cat([logits_BSV[row, place] for row, place in enumerate(places)])
        right = torch.cat(family.family_logits(rows, ModelForm()))
        errors = (found - right).norm(dim=1) / right.norm(dim=1)
        median = errors.median() if found.isfinite().all() else torch.tensor(float("inf"))
        return [(1 + median[None, None], torch.ones(1, 1))]

    return form


def _last_state(family: Any, rows: Rows) -> Pairs:
    model = family.model()
    pairs = []
    for row in rows:
        ids = torch.tensor([list(row)])
        states = model(input_ids=ids, output_hidden_states=True, **family._uncached()).hidden_states
        base = model.base_model(input_ids=ids, **family._uncached())
        last = getattr(base, "last_hidden_state", None)
        if states is None or last is None:
            raise NotServed("no hidden states")
        pairs.append((states[-1][0], last[0]))
    return pairs


def _masks(family: Any, rows: Rows) -> Pairs:
    if why := family.family_excludes(ModelForm(together="left")):
        raise NotServed(why)
    inputs, places = family._inputs(rows, "left")
    if "attention_mask" not in inputs:
        raise NotServed("no attention_mask")
    model, mask = family.model(), inputs["attention_mask"]
    right = model(**inputs, **family._uncached()).logits
    pairs = []
    for dtype in (torch.bool, torch.float32):
        given = {**inputs, "attention_mask": mask.to(dtype)}
        found = model(**given, **family._uncached()).logits
        pairs += [(found[row, place], right[row, place]) for row, place in enumerate(places)]
    return pairs


def _more_ids(family: Any, rows: Rows) -> Pairs:
    model = copy.deepcopy(family.model())
    model.resize_token_embeddings(BEYOND, mean_resizing=False)
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    with torch.no_grad():
        for part in (embeddings, head):
            for name in ("weight", "bias"):
                value = getattr(part, name, None)
                if isinstance(value, Tensor) and len(value) == BEYOND:
                    value[TO] = value[FROM]
    pairs = []
    for row in [*rows, [5, FROM, 9, FROM, 11]]:
        renamed = [TO if token == FROM else token for token in row]
        found, right = _logits(family, model, renamed), _logits(family, family.model(), row)
        pairs += [(found[:, : right.shape[1]], right), (found[:, TO : TO + 1], right[:, FROM : FROM + 1])]
    return pairs


def _fewer_ids(family: Any, rows: Rows) -> Pairs:
    model = copy.deepcopy(family.model())
    model.resize_token_embeddings(FEWER)
    kept = [[3 + token % (FEWER - 3) for token in row] for row in rows]
    return [(_logits(family, model, row), _logits(family, family.model(), row)[:, :FEWER]) for row in kept]


def _routers(*, configured: bool) -> Callable[[Any, Rows], Pairs]:
    """Return a form of the loss of routers, which a batch is given by its configuration or by the caller."""

    def form(family: Any, rows: Rows) -> Pairs:
        config = text_config(family.model())
        weight = next((name for name in WEIGHTS if hasattr(config, name)), None)
        chosen = next((size for name in CHOSEN if (size := getattr(config, name, None))), None)
        if weight is None or chosen is None or not hasattr(config, "output_router_logits"):
            raise NotServed("no loss of routers")
        asked = {"output_router_logits": True}
        model = family.made("eager", **{weight: WEIGHT}, **(asked if configured else {})).train()
        inputs, places = family._inputs(rows, "right")
        labels = torch.full_like(inputs["input_ids"], IGNORED)
        for row, place in enumerate(places):
            labels[row, place] = inputs["input_ids"][row, place]
        batch = {**inputs, "labels": labels, **family._uncached()}
        whole = model(**batch, **({} if configured else asked)).loss
        plain = model(**batch, output_router_logits=False).loss
        alone: list[Any] = [
            getattr(
                model(input_ids=torch.tensor([list(row)]), **asked, **family._uncached()),
                "router_logits",
                None,
            )
            for row in rows
        ]
        if not all(alone):
            raise NotServed("no logits of routers are given")
        logits = [layer.reshape(-1, layer.shape[-1]) for one in alone for layer in one]
        due = WEIGHT * balance_loss(logits, chosen)
        return [((whole - plain)[None, None], due[None, None])]

    return form


PART_FORMS: Mapping[CallForm, Callable[[Any, Rows], Pairs]] = {
    "in bfloat16": _half(torch.bfloat16),
    "in float16": _half(torch.float16),
    "the last state": _last_state,
    "masks of other types": _masks,
    "more ids": _more_ids,
    "fewer ids": _fewer_ids,
    "routers by argument": _routers(configured=False),
    "routers by configuration": _routers(configured=True),
}
