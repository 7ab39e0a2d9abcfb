"""Masks and caches of Transformers, by the names of `contracts.utilities`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.visible import WINDOW, pairs_of
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name

MAKERS = {
    "causal": "create_causal_mask",
    "sliding": "create_sliding_window_causal_mask",
    "chunked": "create_chunked_causal_mask",
    "bidirectional": "create_bidirectional_mask",
    "bidirectional sliding": "create_bidirectional_sliding_window_mask",
}
OWN = {"joined": "or_mask_function", "cut": "and_mask_function"}
HEADS, DIM, LONGEST = 1, 2, 16


def _found(place: str) -> Any:
    try:
        return find_name("transformers", [place])
    except Gone as error:
        raise NotServed(str(error)) from error


def _config(kind: str, attention: str = "eager") -> Any:
    made: Any = _found("transformers:Qwen2Config")
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    layers = "sliding_attention" if "sliding" in kind else "full_attention"
    config = made(
        **sizes, num_hidden_layers=1, layer_types=[layers], use_sliding_window=True, max_window_layers=0
    )
    config._attn_implementation = attention
    config.sliding_window = WINDOW if "sliding" in kind else None
    if kind == "chunked":
        config.attention_chunk_size = WINDOW
    return config


def _dynamic(config: Any) -> Any:
    made = _found("transformers.cache_utils:DynamicCache")
    if "config" not in inspect.signature(made).parameters:
        raise NotServed("caches of this release do not know the configuration")
    return made(config=config)


def _rule(total: int) -> Callable[..., Tensor]:
    """Return a rule of the caller's own; it takes single places, and compares two numbers of each."""
    pairs = torch.tensor([pairs_of(place) for place in range(total)])
    return lambda row, head, query, key: (pairs[query] == pairs[key]).all()


def attended(
    kind: str,
    padding: Sequence[Sequence[int]] | None,
    num_queries: int,
    num_past: int,
    packed: Sequence[int] | None,
    attention: str,
) -> Tensor:
    """Return which keys queries see; those that the cache has dropped are not seen."""
    kind, _, how = kind.partition(", ")
    make = _found(f"transformers.masking_utils:{MAKERS[kind]}")
    config, B, total = _config(kind, attention), len(padding or [0]), num_past + num_queries
    takes = inspect.signature(make).parameters
    mask = None if padding is None else torch.tensor(padding)
    embeds = torch.zeros(B, num_queries, DIM)
    places = torch.arange(num_past, total)
    given: dict[str, Any] = {"config": config, "attention_mask": mask}
    given["inputs_embeds" if "inputs_embeds" in takes else "input_embeds"] = embeds
    if "cache_position" in takes:
        given["cache_position"] = places
    if packed is not None:
        given["position_ids"] = torch.tensor([[place for size in packed for place in range(size)]])
    elif "position_ids" in takes:
        given["position_ids"] = places[None].expand(B, -1)
    if how:
        given[OWN[how]] = _rule(total)
    cache = None
    if "bidirectional" not in kind or num_past:
        if num_past:
            cache = _dynamic(config)
            cache.update(*[torch.zeros(B, HEADS, num_past, DIM)] * 2, 0)
        given["cache" if "cache" in takes else "past_key_values"] = cache
    missing = sorted({*given} - {*takes})
    if missing:
        raise NotServed(f"{MAKERS[kind]} of this release takes no {', '.join(missing)}")
    found = make(**given)
    if found is None:
        found = torch.ones(B, 1, num_queries, total, dtype=torch.bool)
        if "bidirectional" not in kind:
            found = found.tril(num_past)
    shown = found[:, 0] if found.dtype is torch.bool else found[:, 0] == 0
    whole = torch.zeros(B, num_queries, total, dtype=torch.bool)
    whole[:, :, total - shown.shape[-1] :] = shown
    if mask is not None:
        whole &= mask[:, num_past:, None].bool()  # a query that is padding may see anything
    return whole


def _cache(kind: str) -> Any:
    config = _config(kind)
    if "static" not in kind:
        return _dynamic(config)
    made = _found("transformers.cache_utils:StaticCache")
    takes = inspect.signature(made).parameters
    if "max_batch_size" in takes:
        raise NotServed("static caches of this release take the batch at once")
    return made(config=config, max_cache_len=LONGEST)


def cached(kind: str, steps: Sequence[tuple[str, Any]]) -> list[list[list[int]]]:
    """Return the keys that additions to a cache give, and how many were added."""
    cache, count, length, rows, found = _cache(kind), 0, 0, 2, []
    if "recorded" in kind:
        if not hasattr(cache, "activate_past_recording"):
            raise NotServed("caches of this release do not keep what a cut may bring back")
        cache.activate_past_recording()
    for step, value in steps:
        if step == "add":
            numbers = torch.arange(count, count + value)
            keys = (numbers + 100.0 * torch.arange(1, rows + 1)[:, None])[:, None, :, None]
            places = {"cache_position": torch.arange(length, length + value)}
            given, values = cache.update(
                keys.expand(-1, HEADS, -1, DIM), -keys.expand(-1, HEADS, -1, DIM), 0, places
            )
            if not torch.equal(given, -values):
                raise AssertionError("values are those of other keys")
            count, length = count + value, length + value
            found.append([[int(one) for one in row if one] for row in given[:, 0, :, 0].tolist()])
        elif step == "order":
            cache.reorder_cache(torch.tensor(value))
        elif step == "choose":
            cache.batch_select_indices(torch.tensor(value))
            rows = len(value)
        elif step == "repeat":
            cache.batch_repeat_interleave(value)
            rows *= value
        elif step == "cut":
            cache.crop(value - length)  # a negative number is one of those that are removed
            length = value
        else:
            cache.reset()
            length = 0
    return [*found, [[int(cache.get_seq_length())]]]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {"attended": attended, "cached": cached}
