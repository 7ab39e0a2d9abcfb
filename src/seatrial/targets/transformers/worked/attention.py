"""Worked examples of Transformers' attention functions, activations, initial values and checkpointed layers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def attention(
    query: Tensor, key: Tensor, value: Tensor, added: Any, scale: float, sinks: Any = None, cap: Any = None
) -> Tensor:
    """Return softmax(query key / sqrt(D)) value [B, Q, H, D] in float64; heads share keys in turn.

    Args:
        query: [B, H, Q, D].
        key: [B, K, S, D], with fewer heads.
        value: the same.
        added: to the scores, [B or 1, H or 1, Q, S]; None for nothing.
        scale: of the scores.
        sinks: [H], scores of a key without a value.
        cap: scores are that times the hyperbolic tangent of themselves over it.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (one.double().repeat_interleave(groups, dim=1) for one in (key, value))
    scores = query.double() @ key.transpose(2, 3) * scale
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    scores = scores if added is None else scores + added.double()
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        return (torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1] @ value).transpose(1, 2)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def _lower(queries: int, keys: int) -> Tensor:
    return torch.full((queries, keys), -torch.inf).triu(1)


def _module(groups: int, **more: Any) -> nn.Module:
    found = nn.Module()
    for name, value in {"num_key_value_groups": groups, "training": False, **more}.items():
        setattr(found, name, value)
    return found.eval()


def _masks(queries: int, keys: int) -> Mapping[str, Tensor | None]:
    seen = drawn(2, 1, queries, keys) > -0.5
    seen[..., 0] = True
    added = torch.where(seen, 0.0, -1e4)
    by_head = drawn(2, 4, queries, keys, seed=2)
    return {"none": None, "of truth values": seen, "added": added, "of each head": by_head}


def _sdpa(function: Any) -> list[str]:
    """Return where attention differs from its definition: groups, masks, causality, scales, and keys of a cache."""
    wrong = []
    for groups, queries, keys, scale in product((1, 2, 4), (1, 3), (3, 5), (None, 0.3)):
        query, key, value = (
            drawn(2, 4, queries, 6),
            *(drawn(2, 4 // groups, keys, 6, seed=s) for s in (1, 2)),
        )
        for name, mask in _masks(queries, keys).items():
            for causal, own in ((None, None), (None, False), (True, None), (False, None), (False, True)):
                more = {} if own is None else {"is_causal": own}
                found, weights = function(
                    _module(groups, **more), query, key, value, mask, scaling=scale, is_causal=causal
                )
                decides = causal if causal is not None else True if own is None else own
                added: Tensor | None = None
                if mask is not None:
                    added = torch.where(mask, 0.0, -torch.inf) if mask.dtype is torch.bool else mask
                elif decides and queries > 1:
                    added = _lower(queries, keys)
                right = attention(query, key, value, added, scale or 1 / math.sqrt(6))
                error = (found.double() - right).abs().max() if found.shape == right.shape else torch.inf
                if weights is not None or not error <= 1e-5:
                    wrong.append(f"{groups=}, {queries=}, {keys=}, {scale=}, mask {name}, {causal=}, {own=}")
    return wrong[:4]


def _biased(function: Any) -> list[str]:
    """Return where a bias of places is not added to what is seen."""
    if "position_bias" not in inspect.signature(function).parameters:
        raise NotServed("attention of this release takes no bias of places")
    wrong = []
    for groups, (queries, keys), causal in product((1, 2), ((1, 3), (3, 3), (3, 5)), (True, False)):
        query, key, value = (
            drawn(2, 4, queries, 6),
            *(drawn(2, 4 // groups, keys, 6, seed=s) for s in (1, 2)),
        )
        bias = drawn(1, 4, queries, keys, seed=3)
        for name, mask in _masks(queries, keys).items():
            found, _ = function(
                _module(groups), query, key, value, mask, scaling=0.5, is_causal=causal, position_bias=bias
            )
            if mask is not None:
                added = torch.where(mask, 0.0, -torch.inf) if mask.dtype is torch.bool else mask
            else:
                added = _lower(queries, keys) if causal and queries > 1 else torch.zeros(queries, keys)
            right = attention(query, key, value, added + bias, 0.5)
            if not (found.double() - right).abs().max() <= 1e-5:
                wrong.append(f"{groups=}, {queries=}, {keys=}, mask {name}, {causal=}")
    return wrong[:4]


def _paged(function: Any) -> list[str]:
    """Return where attention over pages differs from its definition: groups, a mask, sinks, and its weights."""
    wrong = []
    for groups, masked, sunk in product((1, 2), (True, False), (True, False)):
        query, key, value = drawn(1, 4, 3, 6), *(drawn(1, 4 // groups, 5, 6, seed=s) for s in (1, 2))
        mask = drawn(1, 1, 3, 5, seed=4) if masked else None
        sinks = drawn(4, seed=9) if sunk else None
        module = _module(groups, **({"sinks": sinks} if sunk else {}))
        arguments = inspect.signature(function).parameters
        if "cache" in arguments and arguments["cache"].default is inspect.Parameter.empty:
            raise NotServed("attention of this release takes a cache")
        found, weights = function(module, query, key, value, mask, 0.7)
        right = attention(query, key, value, mask, 0.7, sinks)
        if not (found.double() - right).abs().max() <= 1e-5 or weights.shape != (1, 4, 3, 5):
            wrong.append(f"{groups=}, {masked=}, {sunk=}")
    return wrong


EAGER = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "phi3",
    "olmo2",
    "cohere",
    "gemma",
    "mixtral",
    "granite",
    "starcoder2",
)


def _eager(function: Any) -> list[str]:
    """Return where eager attention of a family differs from its definition, or its weights are not those of rows."""
    wrong = []
    for family in EAGER:
        place = f"transformers.models.{family}.modeling_{family}:eager_attention_forward"
        one = find_name("transformers", [place])
        for groups, masked in product((1, 2), (True, False)):
            query, key, value = drawn(2, 4, 3, 6), *(drawn(2, 4 // groups, 5, 6, seed=s) for s in (1, 2))
            mask = torch.where(drawn(2, 1, 3, 5) > 0.5, -1e4, 0.0) if masked else None
            found, weights = one(_module(groups), query, key, value, mask, scaling=0.7)
            right = attention(query, key, value, mask, 0.7)
            if not (found.double() - right).abs().max() <= 1e-5:
                wrong.append(f"{family}, {groups=}, {masked=}")
            if weights.shape != (2, 4, 3, 5) or not torch.allclose(weights.sum(-1), torch.ones(2, 4, 3)):
                wrong.append(f"{family}, {groups=}, {masked=}: weights")
        low = [drawn(1, 4, 3, 64, seed=s).bfloat16() for s in range(3)]
        found, weights = one(_module(1), *low, None, scaling=3.0)
        right = (low[0] @ low[1].transpose(2, 3) * 3.0).float().softmax(-1)
        if not torch.equal(weights, right.bfloat16()):
            wrong.append(f"{family}: the softmax is not of float32")
    return wrong[:4]


def _flex(function: Any) -> list[str]:
    """Return where flex attention is given other scores than its definition: a mask, a cap, a bias, heads in groups."""
    wrong = []
    module = "transformers.integrations.flex_attention.compile_friendly_flex_attention"

    def dense(query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        if groups > 1 and not more["enable_gqa"]:
            raise AssertionError("heads in groups without the option")
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.transpose(2, 3) * more["scale"]
        places = torch.cartesian_prod(*[torch.arange(size) for size in scores.shape])
        flat = [
            more["score_mod"](score, *place) for score, place in zip(scores.flatten(), places, strict=True)
        ]
        return torch.stack(flat).reshape(scores.shape).softmax(-1) @ value

    takes = inspect.signature(function).parameters
    for heads, masked, cap, biased in product((4, 6), (True, False), (None, 0.8), (True, False)):
        query, key, value = drawn(2, heads, 3, 4), *(drawn(2, heads // 2, 5, 4, seed=s) for s in (1, 2))
        mask = drawn(2, 1, 3, 7, seed=4) if masked else None
        bias = drawn(1, heads, 3, 5, seed=5).expand(2, -1, -1, -1) if biased else None
        more = {"position_bias": bias} if biased else {}
        if "position_bias" not in takes and biased:
            continue
        with patch(module, dense):
            found, _ = function(_module(2), query, key, value, mask, scaling=0.5, softcap=cap, **more)
        added = None if mask is None else mask[..., :5]
        added = bias if added is None else added if bias is None else added + bias
        right = attention(query, key, value, added, 0.5, cap=cap)
        if not (found.double() - right).abs().max() <= 1e-5:
            wrong.append(f"{heads=}, {masked=}, {cap=}, {biased=}")
    return wrong[:4]


def _refused(function: Any) -> str:
    states = drawn(1, 1, 2, 4)
    try:
        function(_module(1), states, states, states, None, softcap=3.0)
    except ValueError as error:
        return "softcap" if "softcap" in str(error) else str(error)
    return "taken"


SDPA = "transformers.integrations.sdpa_attention:sdpa_attention_forward"
# Sources: scaled dot-product attention (Vaswani et al. 2017), papers of activations, documentation of functions.
ATTENTION_ROWS: Sequence[Row] = (
    Row("formulas", SDPA, "groups, masks, scales and causality", _sdpa, [], since="5"),
    Row("formulas", SDPA, "a bias of places", _biased, [], since="4.57"),
    Row("formulas", SDPA, "a cap of scores", _refused, "softcap", since="5.20"),
    Row(
        "formulas",
        "transformers.integrations.eager_paged:eager_paged_attention_forward",
        "sinks, groups and masks",
        _paged,
        [],
        since="5.24",
    ),
    Row(
        "formulas",
        "transformers.models.llama.modeling_llama:eager_attention_forward",
        "of any family",
        _eager,
        [],
        since="4.57",
    ),
    Row(
        "formulas",
        "transformers.integrations.flex_attention:flex_attention_forward",
        "scores that are given on",
        _flex,
        [],
        since="4.57",
    ),
)
