"""Worked examples of Transformers' masks: caches of each kind, packed rows, blocks, other rows of keys, every form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.attending import MAKERS

MODULE = "transformers.masking_utils"
WINDOW, LONGEST, DIM = 4, 12, 2
SEES = Callable[[int, int, int], bool]


def sees_of(kind: str, starts: Sequence[int] = (0, 0)) -> SEES:
    """Return whether a query sees a key, by the row and both places; chunks begin where a row does."""
    rules: Mapping[str, SEES] = {
        "causal": lambda b, q, k: k <= q,
        "sliding": lambda b, q, k: q - WINDOW < k <= q,
        "chunked": lambda b, q, k: k <= q and (k - starts[b]) // WINDOW == (q - starts[b]) // WINDOW,
        "bidirectional": lambda b, q, k: True,
        "bidirectional sliding": lambda b, q, k: abs(q - k) <= WINDOW,
    }
    return rules[kind]


def config_of(kinds: Sequence[str] = ("causal",), attention: str = "eager", **more: Any) -> Any:
    """Return a configuration of one layer a kind."""
    made: Any = find_name("transformers", ["transformers:Qwen2Config"])
    names = ["sliding_attention" if "sliding" in kind else "full_attention" for kind in kinds]
    config = made(
        hidden_size=DIM, num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=len(kinds),
        layer_types=names, use_sliding_window=True, max_window_layers=0,
    )  # fmt: skip
    config._attn_implementation = attention
    config.sliding_window = WINDOW if any("sliding" in kind for kind in kinds) else None
    if any("chunked" in kind for kind in kinds):
        config.attention_chunk_size = WINDOW
    for name, value in more.items():
        setattr(config, name, value)
    return config


def cache_of(config: Any, past: int, static: bool = False, rows: int = 2) -> Any:
    """Return a cache of a configuration's layers with a number of tokens in it."""
    kind = "StaticCache" if static else "DynamicCache"
    made = find_name("transformers", [f"transformers.cache_utils:{kind}"])
    if "config" not in inspect.signature(made).parameters:
        raise NotServed("caches of this release do not know the configuration")
    cache = made(config=config, **({"max_cache_len": LONGEST} if static else {}))
    for layer in range(config.num_hidden_layers if past else 0):
        cache.update(*[torch.zeros(rows, 1, past, DIM)] * 2, layer, {"cache_position": torch.arange(past)})
    return cache


def made(kind: str, config: Any, queries: int, past: int = 0, rows: int = 2, **given: Any) -> Any:
    """Return what a maker gives: the mask, or None."""
    make = find_name("transformers", [f"{MODULE}:{MAKERS[kind]}"])
    takes = inspect.signature(make).parameters
    more: dict[str, Any] = {"config": config, "attention_mask": None, **given}
    embeds = more.pop("embeds", torch.zeros(rows, queries, DIM))
    more["inputs_embeds" if "inputs_embeds" in takes else "input_embeds"] = embeds
    if "cache_position" in takes:
        more.setdefault("cache_position", torch.arange(past, past + queries))
    cache = more.pop("cache", None)
    if "bidirectional" not in kind or cache is not None:
        more["cache" if "cache" in takes else "past_key_values"] = cache
    missing = sorted({*more} - {*takes})
    if missing:
        raise NotServed(f"{MAKERS[kind]} of this release takes no {', '.join(missing)}")
    return make(**more)


def shown(found: Any, rows: int, queries: int, keys: int, causal: bool) -> Tensor:
    """Return whether each query sees each key; of none, what the kernel shows by itself."""
    if found is None:
        whole = torch.ones(rows, queries, keys, dtype=torch.bool)
        return whole.tril() if causal and queries > 1 else whole
    seen: Tensor = found[:, 0] if found.dtype is torch.bool else found[:, 0] == 0
    return seen.expand(rows, -1, -1)


def differences(
    what: str, seen: Tensor, sees: SEES, past: int = 0, offset: int = 0, padding: Tensor | None = None
) -> list[str]:
    """Return where a mask is not by a rule; queries that are padding may see anything.

    Args:
        what: words of the message.
        seen: the mask [B, Q, K].
        sees: the rule, by the row and places of query and key.
        past: the place of the first query.
        offset: the place of the first key.
        padding: [B, ...], 0 where a place is padding; places behind it are.
    """
    for b, q, k in torch.cartesian_prod(*[torch.arange(size) for size in seen.shape]).tolist():
        query, key = past + q, offset + k
        real = padding is None or (key < padding.shape[1] and bool(padding[b, key]))
        if padding is not None and not (query < padding.shape[1] and padding[b, query]):
            continue
        if bool(seen[b, q, k]) != (sees(b, query, key) and real):
            return [f"{what}: row {b}, query {query}, key {key} is {bool(seen[b, q, k])}"]
    return []


FORMS = ("eager", "sdpa")
LEFT, RIGHT = torch.tensor([[1] * 9, [0] * 3 + [1] * 6]), torch.tensor([[1] * 9, [1] * 6 + [0] * 3])


def _with_static(maker: Any) -> list[str]:
    """Return where masks over a static cache, which is longer than the row, are not those of the row."""
    wrong = []
    for form in FORMS:
        config = config_of(attention=form)
        for past, queries in ((0, 9), (6, 3), (8, 1)):
            for name, mask in (("none", None), ("left", LEFT), ("right", RIGHT)):
                cache = cache_of(config, past, static=True)
                found = made("causal", config, queries, past, cache=cache, attention_mask=mask)
                seen = shown(found, 2, queries, LONGEST, causal=True)
                if found is None and (past or mask is not None):
                    wrong.append(f"{form}, {past} + {queries}, padding {name}: no mask")
                wrong += differences(
                    f"{form}, {past} + {queries}, padding {name}", seen, sees_of("causal"), past, 0, mask
                )
    return wrong[:4]


def _of_each_layer(maker: Any) -> list[str]:
    """Return where layers with a window and layers without one have masks of other lengths or rules than their own."""
    wrong = []
    for form in FORMS:
        for kinds in (("sliding", "causal"), ("causal", "sliding")):
            config = config_of(kinds, form)
            for past, queries in ((0, 9), (2, 7), (6, 3), (8, 1)):
                for name, mask in (("none", None), ("left", LEFT)):
                    for kind in kinds:
                        cache = cache_of(config, past)
                        found = made(kind, config, queries, past, cache=cache, attention_mask=mask)
                        keys = queries + (past if kind == "causal" else min(past, WINDOW - 1))
                        what = f"{form}, {kinds}, {kind}, {past} + {queries}, padding {name}"
                        if found is not None and found.shape[-1] != keys:
                            wrong.append(f"{what}: {found.shape[-1]} keys, {keys} are due")
                            continue
                        seen = shown(found, 2, queries, keys, causal=True)
                        wrong += differences(what, seen, sees_of(kind), past, past + queries - keys, mask)
    return wrong[:4]


PACKS: Mapping[str, Sequence[Sequence[int]]] = {
    "two rows": [[0, 1, 2, 3, 4, 5, 0, 1, 2], [0, 1, 0, 1, 2, 3, 4, 5, 6]],
    "begun in the middle": [[5, 6, 7, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7, 8]],
    "the same place twice": [[0, 1, 2, 3, 3, 4, 5, 6, 7], [2, 2, 2, 3, 4, 5, 6, 7, 8]],
    "for all rows": [[0, 1, 2, 3, 4, 5, 0, 1, 2]],
}


def _packed(kinds: Sequence[str], maker: Any) -> list[str]:
    """Return where rows laid end to end see one another, or windows and chunks do not begin again with each."""
    wrong = []
    for form in FORMS:
        for kind in kinds:
            for name, places in PACKS.items():
                own = [list(places[row % len(places)]) for row in range(2)]
                numbers = [
                    [sum(one[i] != one[i - 1] + 1 for i in range(1, at + 1)) for at in range(9)]
                    for one in own
                ]
                rule = sees_of(kind)

                def sees(
                    b: int, q: int, k: int, own: Any = own, numbers: Any = numbers, rule: SEES = rule
                ) -> bool:
                    return numbers[b][q] == numbers[b][k] and rule(b, own[b][q], own[b][k])

                found = made(kind, config_of([kind], form), 9, position_ids=torch.tensor(places))
                wrong += differences(f"{form}, {kind}, {name}", shown(found, 2, 9, 9, causal=True), sees)
    return wrong[:4]


BLOCKS = torch.tensor([[-1, 0, 0, 0, 0, 0, 0, -1, 1], [-1, -1, -1, 3, 3, -1, 7, 7, 7]])


def _blocks(maker: Any) -> list[str]:
    """Return where tokens of a block do not see one another both ways, in addition to what they see anyway."""
    wrong, groups = [], BLOCKS.tolist()
    for form in FORMS:
        for kind in ("causal", "sliding", "chunked"):
            for name, mask in (("none", None), ("left", LEFT), ("right", RIGHT)):
                for static in (False, True):
                    starts = (0, 3) if name == "left" else (0, 0)
                    rule = sees_of(kind, starts)

                    def sees(b: int, q: int, k: int, rule: SEES = rule) -> bool:
                        one = groups[b][q] if q < 9 else -1
                        return rule(b, q, k) or (k < 9 and one >= 0 and one == groups[b][k])

                    config = config_of([kind], form)
                    if static and kind != "causal":
                        continue
                    cache = cache_of(config, 0, static=True) if static else None
                    found = made(kind, config, 9, cache=cache, attention_mask=mask, block_sequence_ids=BLOCKS)
                    keys = LONGEST if static else 9
                    what = f"{form}, {kind}, padding {name}, {static=}"
                    wrong += differences(what, shown(found, 2, 9, keys, True), sees, 0, 0, mask)
    return wrong[:4]


def _chunks(maker: Any) -> list[str]:
    """Return where chunks do not begin with the first token of a row that is padded on the left."""
    wrong = []
    for form in FORMS:
        for name, mask, starts in (("left", LEFT, (0, 3)), ("right", RIGHT, (0, 0)), ("none", None, (0, 0))):
            found = made("chunked", config_of(["chunked"], form), 9, attention_mask=mask)
            seen = shown(found, 2, 9, 9, True)
            wrong += differences(f"{form}, padding {name}", seen, sees_of("chunked", starts), 0, 0, mask)
    return wrong[:4]


LATER = "Transformers: small functions of later releases"
CAUSAL = f"{MODULE}:create_causal_mask"
# Sources: the documentation of each maker: what a query sees, and when there is no mask.
MASK_ROWS: Sequence[Row] = (
    Row("batches", CAUSAL, "static caches", _with_static, [], since="4.56"),
    Row("batches", CAUSAL, "layers of two kinds", _of_each_layer, [], since="4.56"),
    Row("batches", CAUSAL, "rows laid end to end", partial(_packed, ["causal", "sliding"]), [], since="4.56"),
    Row(
        "batches",
        CAUSAL,
        "chunks of rows laid end to end",
        partial(_packed, ["chunked"]),
        [],
        since="4.56",
        known=KnownFailure(
            "chunks do not begin again with each row", finding=LATER, releases=before("transformers", "5.23")
        ),
    ),
    Row("batches", CAUSAL, "blocks that see both ways", _blocks, [], since="4.56"),
    Row("batches", CAUSAL, "chunks of padded rows", _chunks, [], since="4.56"),
)
