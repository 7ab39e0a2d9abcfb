"""Scales and windows of a family's tiny model by their definitions: embeddings, attention, logits."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.model_calls import CallForm
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name

Rows = Sequence[Sequence[int]]
Pairs = list[tuple[Tensor, Tensor]]
SCALES = ("embedding_multiplier", "embedding_scale", "scale_emb")
"""Names of the scale of embeddings."""
SCALED: Mapping[str, float] = {
    **dict.fromkeys(SCALES, 1.7),
    "logit_scale": 0.4,
    "logits_scaling": 3.0,
    "lm_head_multiplier": 1.7,
    "attention_multiplier": 0.3,
    "query_pre_attn_scalar": 20,
    "final_logit_softcapping": 2.0,
}
"""Of a configuration that has an option of the name."""
MULTIPLIED = ("hyperclovax",)
"""Families whose `logits_scaling` multiplies logits; it divides those of others."""
CAPS = ("final_logit_softcapping", "logits_soft_cap")
LONG = 20
"""Ids of a row that is longer than what the layers see."""


def seen_places(kinds: Sequence[str], length: int, window: int, chunk: int) -> list[int]:
    """Return the places on which the last logits of a row depend.

    Args:
        kinds: of the layers, as `layer_types` has them.
        length: of the row.
        window: places that a layer that slides sees, its own among them.
        chunk: places after which a chunked layer begins again.
    """
    seen = {length - 1}
    for kind in reversed(kinds):
        firsts = {
            place: {
                "full_attention": 0,
                "sliding_attention": max(0, place - window + 1),
                "chunked_attention": place - place % chunk,
            }[kind]
            for place in seen
        }
        seen = {other for place, first in firsts.items() for other in range(first, place + 1)}
    return sorted(seen)


def _window(family: Any, rows: Rows) -> Pairs:
    config = family.model().config
    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    known = {"full_attention", "sliding_attention", "chunked_attention"}
    if not kinds or not {*kinds} <= known or not window:
        raise NotServed("no layers that slide")
    if "inputs_embeds" not in inspect.signature(family.model().forward).parameters:
        raise NotServed("no inputs_embeds")
    chunk = getattr(config, "attention_chunk_size", None) or LONG
    ids = torch.tensor([(list(rows[0]) * 3)[:LONG]])
    pairs = []
    for others in (list(kinds), ["sliding_attention"] * len(kinds)):
        try:
            model = family.made("eager", layer_types=others)
        except Exception:  # noqa: BLE001  the configuration refuses these layers
            continue
        with torch.enable_grad():
            embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
            logits = model(inputs_embeds=embeds, **family._uncached()).logits[0, -1]
            (gradient,) = torch.autograd.grad(logits.square().sum(), embeds)
        found = (gradient[0].abs().amax(1) > 0).double()
        due = torch.zeros(LONG, dtype=torch.float64)
        due[seen_places(others, LONG, window, chunk)] = 1.0
        pairs.append((found[:, None], due[:, None]))
    return pairs


def _scaled(family: Any, attention: str = "eager") -> Any:
    """Return the model with other scales of its embeddings, its attention and its logits."""
    known = family.model().config.to_dict()
    given = {name: value for name, value in SCALED.items() if name in known}
    return family.made(attention, **given) if given else family.model(attention)


def _head_scale(family: Any, rows: Rows) -> Pairs:
    model = _scaled(family)
    config, head = model.config, model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise NotServed("its head is no matrix")
    own = {name.partition(".")[0] for name, _ in model.named_parameters()}
    if len(own - {name for name, module in model.named_children() if module is head}) > 1:
        raise NotServed("a network before its head")
    pairs = []
    for row in rows:
        ids = torch.tensor([list(row)])
        last = getattr(model.base_model(input_ids=ids, **family._uncached()), "last_hidden_state", None)
        if last is None:
            raise NotServed("no hidden states")
        due = head(last[0]).double() * (getattr(config, "logit_scale", None) or 1.0)
        due = due * (getattr(config, "lm_head_multiplier", None) or 1.0)
        base = getattr(config, "dim_model_base", None)
        divisor = config.hidden_size / base if base else getattr(config, "logits_scaling", None) or 1.0
        due = due * divisor if config.model_type in MULTIPLIED else due / divisor
        caps = (getattr(config, name, None) for name in CAPS)
        if cap := next(filter(None, caps), None):
            due = cap * torch.tanh(due / cap)
        pairs.append((model(input_ids=ids, **family._uncached()).logits[0], due))
    return pairs


def _first_state(family: Any, rows: Rows) -> Pairs:
    model = _scaled(family)
    config = model.config
    if not any("Rotary" in type(module).__name__ for module in model.modules()):
        raise NotServed("no rotary embeddings, so that the first state may have places")
    table = model.get_input_embeddings()
    scale = next((value for name in SCALES if (value := getattr(config, name, None))), 1.0)
    if "gemma" in config.model_type:
        scale = math.sqrt(config.hidden_size)
    pairs = []
    for row in rows:
        ids = torch.tensor([list(row)])
        asked = {"output_hidden_states": True, **family._uncached()}
        states = getattr(model(input_ids=ids, **asked), "hidden_states", None)
        if not states:
            raise NotServed("no hidden states")
        weight = table.weight.double()
        pairs.append((states[0][0], weight[ids[0]] * scale))
    return pairs


def _attention_scale(family: Any, rows: Rows) -> Pairs:
    functions: Any = find_name("transformers", ["transformers.modeling_utils:ALL_ATTENTION_FUNCTIONS"])
    if not getattr(family.model(), "_supports_sdpa", False):
        raise NotServed("no scaled dot-product attention")
    model = _scaled(family, "sdpa")
    config = model.config
    plain, found, due = functions["sdpa"], [], []

    def watched(module: Any, query: Tensor, *others: Any, **words: Any) -> Any:
        size = query.shape[-1]
        right = size**-0.5
        if scalar := getattr(config, "query_pre_attn_scalar", None):
            right = scalar**-0.5
        right = getattr(config, "attention_multiplier", None) or right
        given = words.get("scaling")
        found.append(size**-0.5 if given is None else float(given))
        due.append(right)
        return plain(module, query, *others, **words)

    functions["sdpa"] = watched
    try:
        model(input_ids=torch.tensor([list(rows[0])]), **family._uncached())
    finally:
        functions["sdpa"] = plain
    if not found:
        raise NotServed("its attention is not one of the library's functions")
    return [(torch.tensor(found)[:, None], torch.tensor(due)[:, None])]


SCALE_FORMS: Mapping[CallForm, Callable[[Any, Rows], Pairs]] = {
    "places in a window": _window,
    "head by definition": _head_scale,
    "the first state": _first_state,
    "scale of attention": _attention_scale,
}
