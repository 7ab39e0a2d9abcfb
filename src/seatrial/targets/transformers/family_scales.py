"""Scales and windows of a family's tiny model by their definitions: embeddings, attention, logits."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.model_calls import CallForm
from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.small_models import text_config

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
    "output_logit_soft_cap": 2.0,
    "logits_mup_width_multiplier": 3.0,
}
"""Of a configuration that has an option of the name."""
OLD_NAMES = ("rope_local_base_freq", "attn_rotary_emb")
"""Options of rotary embeddings that Gemma 3 and Bamba had before 5."""
MULTIPLIED = ("hyperclovax",)
"""Families whose `logits_scaling` multiplies logits; it divides those of others."""
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
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
    config = text_config(family.model())
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


def _scaled(family: Any) -> Any:
    """Return the model with other scales of its embeddings, its attention and its logits."""
    known = text_config(family.model()).to_dict()
    given = {name: value for name, value in SCALED.items() if name in known}
    return family.made("eager", **given) if given else family.model()


def _head_scale(family: Any, rows: Rows) -> Pairs:
    model = _scaled(family)
    config, head = text_config(model), model.get_output_embeddings()
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
        divisor = divisor * (getattr(config, "logits_mup_width_multiplier", None) or 1.0)
        due = due * divisor if config.model_type in MULTIPLIED else due / divisor
        caps = (getattr(config, name, None) for name in CAPS)
        if cap := next(filter(None, caps), None):
            due = cap * torch.tanh(due / cap)
        pairs.append((model(input_ids=ids, **family._uncached()).logits[0], due))
    return pairs


def _first_state(family: Any, rows: Rows) -> Pairs:
    model = _scaled(family)
    config = text_config(model)
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


Watch = Callable[[Tensor, Mapping[str, Any]], None]
"""(queries [1, H, S, D], named arguments) of each call of attention."""


def _watched(family: Any, model: Any, row: Sequence[int], watch: Watch) -> None:
    """Call a model and watch its eager attention, a function of the module that defines the model.

    Raises:
        NotServed: there is no such function, or it is not called.
    """
    module: Any = sys.modules[type(model).__module__]
    plain, calls = getattr(module, "eager_attention_forward", None), []
    if plain is None:
        raise NotServed("no function of eager attention")

    def called(layer: Any, query: Tensor, *others: Any, **words: Any) -> Any:
        calls.append(query)
        watch(query, words)
        return plain(layer, query, *others, **words)

    module.eager_attention_forward = called
    try:
        model(input_ids=torch.tensor([list(row)]), **family._uncached())
    finally:
        module.eager_attention_forward = plain
    if not calls:
        raise NotServed("the function of eager attention is not called")


def _attention_scale(family: Any, rows: Rows) -> Pairs:
    model = _scaled(family)
    config = text_config(model)
    found, due = [], []

    def watch(query: Tensor, words: Mapping[str, Any]) -> None:
        size = query.shape[-1]
        scalar = getattr(config, "query_pre_attn_scalar", None) or size
        due.append(getattr(config, "attention_multiplier", None) or scalar**-0.5)
        given = words.get("scaling")
        found.append(size**-0.5 if given is None else float(given))

    _watched(family, model, rows[0], watch)
    return [(torch.tensor(found)[:, None], torch.tensor(due)[:, None])]


def _rotary_options(config: Any) -> tuple[float, float]:
    """Return the base and the part of a head that is turned, of the first layer.

    Raises:
        NotServed: frequencies are scaled, or there are no rotary embeddings in the first layer.
    """
    given = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if any(hasattr(config, name) for name in OLD_NAMES):
        raise NotServed("frequencies by options of an older release")
    kinds = getattr(config, "layer_types", None) or getattr(config, "block_types", None)
    kind = kinds[0] if kinds else "full_attention"
    if not kind.endswith("attention") or kind == "linear_attention":
        raise NotServed("the first layer has no attention")
    given = given.get(kind, given)
    base = given.get("rope_theta") or getattr(config, "rope_theta", None)
    if not isinstance(base, (int, float)) or given.get("rope_type", "default") != "default":
        raise NotServed("no rotary embeddings, or scaled ones")
    part = given.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    return float(base), float(part)


def turned_queries(first_HD: Tensor, length: int, base: float, *, start: int, size: int) -> list[Tensor]:
    """Return [S, H, D] queries of places after the first one, whose pairs are halves or neighbours.

    Args:
        first_HD: of place 0.
        length: of the row.
        base: of the frequencies, `base ** (-2 i / size)` (Su et al. 2021).
        start: of the dimensions that are turned.
        size: their number.
    """
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles_SR = torch.arange(length, dtype=torch.float64)[:, None] * rates
    numbers = torch.arange(size) + start
    found = []
    for one, other in ((numbers[: size // 2], numbers[size // 2 :]), (numbers[::2], numbers[1::2])):
        turned_SHD = first_HD.double().expand(length, -1, -1).clone()
        cosines, sines = angles_SR.cos()[:, None], angles_SR.sin()[:, None]
        left, right = turned_SHD[..., one].clone(), turned_SHD[..., other].clone()
        turned_SHD[..., one] = left * cosines - right * sines
        turned_SHD[..., other] = right * cosines + left * sines
        found.append(turned_SHD)
    return found


def _turned(family: Any, rows: Rows) -> Pairs:
    model = family.model()
    config = text_config(model)
    base, part = _rotary_options(config)
    seen: list[Tensor] = []
    # Rows of one id: what a layer is given is the same at every place.
    _watched(family, model, [rows[0][0]] * LONG, lambda query, words: seen.append(query[0]))
    query_SHD = seen[0].transpose(0, 1).double()
    D = query_SHD.shape[2]
    size = getattr(config, "qk_rope_head_dim", None)
    start, size = (D - size, size) if size else (0, int(D * part))
    possible = turned_queries(query_SHD[0], LONG, base, start=start, size=size)
    right = min(possible, key=lambda one: float((one - query_SHD).abs().max()))
    return [(query_SHD.flatten(1), right.flatten(1))]


SCALE_FORMS: Mapping[CallForm, Callable[[Any, Rows], Pairs]] = {
    "places in a window": _window,
    "head by definition": _head_scale,
    "the first state": _first_state,
    "scale of attention": _attention_scale,
    "turned queries": _turned,
}
