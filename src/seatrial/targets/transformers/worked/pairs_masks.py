"""Worked examples of masks with every pair of options, against loops over rows, queries and keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.attending import MAKERS
from seatrial.targets.transformers.worked.masks import (
    DIM,
    LATER,
    MODULE,
    WINDOW,
    cache_of,
    config_of,
    differences,
    made,
    sees_of,
    shown,
)

OPTIONS: Mapping[str, Sequence[str]] = {
    "form": ("eager", "sdpa", "flex_attention"),
    "rows": ("2", "1", "3"),
    "queries": ("0 and 9", "6 and 3", "8 and 1", "2 and 7"),
    "cache": ("", "static cache"),
    "padding": ("", "padding left", "padding right", "padding on both sides", "nothing padded", "padding as booleans"),
    "places": ("", "places", "packed", "packed for all rows"),
    "blocks": ("", "blocks"),
    "joins": ("", "joined"),
    "cuts": ("", "cut"),
    "type": ("float32", "bfloat16"),
    "layers": ("one kind", "two kinds", "two kinds in reverse"),
}  # fmt: skip
"""Values of each option, in words; `queries` are the tokens before them, and their number."""
PACKS = ((0, 1, 2, 3, 0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 0, 1, 0), (0, 1, 2, 3, 4, 5, 6, 7, 8))
BLOCKS = ((-1, -1, 0, 0, 0, 0, -1, 1, 1), (0, 0, -1, 2, 2, 2, 2, 2, 2), (-1, 3, 3, -1, -1, 4, 4, 4, -1))
PADDINGS: Mapping[str, Sequence[Sequence[int]]] = {
    "padding left": ([1] * 9, [0] * 3 + [1] * 6, [0] * 5 + [1] * 4),
    "padding right": ([1] * 6 + [0] * 3, [1] * 9, [1] * 2 + [0] * 7),
    "padding on both sides": ([0] * 2 + [1] * 5 + [0] * 2, [1] * 9, [0] + [1] * 8),
    "nothing padded": ([1] * 9,) * 3,
}


def _fitted(kind: str, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return a choice whose options fit one another: those that do not are left out."""
    found = dict(chosen)
    if "bidirectional" in kind:
        found |= {"queries": "0 and 9", "cache": "", "places": "", "blocks": "", "layers": "one kind"}
    if found["queries"] != "0 and 9" or found["cache"]:
        found |= {"places": found["places"].partition("packed")[0], "blocks": ""}
    if found["padding"] and "packed" in found["places"]:
        found["places"] = "places"
    if found["cache"] and not found["padding"]:
        found["joins"] = ""  # it would join places that are not filled yet
    if kind == "chunked":
        found["layers"] = "one kind"
    return found


def cases(kind: str) -> Iterator[dict[str, str]]:
    """Yield choices that together have nearly every pair of values of two options, of a kind of mask."""
    seen = set()
    for row in pairwise({name: len(values) for name, values in OPTIONS.items()}, lambda row: True):
        chosen = _fitted(kind, {name: OPTIONS[name][index] for name, index in row.items()})
        if (key := (*chosen.values(),)) not in seen:
            seen.add(key)
            yield chosen


def _sequences(row: Sequence[int]) -> list[int]:
    return [sum(row[i] != row[i - 1] + 1 for i in range(1, at + 1)) for at in range(len(row))]


def _joins(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q + 2 * k + b) % 5 == 0


def _cuts(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q + k + b) % 3 != 1


def _padding(chosen: Mapping[str, str], rows: int, width: int) -> Tensor | None:
    name = "padding left" if chosen["padding"] == "padding as booleans" else chosen["padding"]
    if not name:
        return None
    found = torch.tensor(PADDINGS[name][:rows])[:, :width]
    return found.bool() if "booleans" in chosen["padding"] else found


def _places(chosen: Mapping[str, str], rows: int, past: int, queries: int) -> Tensor | None:
    if "packed" in chosen["places"]:
        return torch.tensor(PACKS[:1] if "all rows" in chosen["places"] else PACKS[:rows])
    return torch.arange(past, past + queries)[None] if chosen["places"] else None


def _sees(kind: str, chosen: Mapping[str, str], starts: Sequence[int], b: int, q: int, k: int) -> bool:
    """Return whether a query sees a key that is not padding."""
    row = tuple(range(32))
    if "packed" in chosen["places"]:
        row = PACKS[0 if "all rows" in chosen["places"] else b]
    numbers = _sequences(row)
    seen = sees_of(kind, starts)(b, row[q], row[k])
    seen = seen or bool(chosen["joins"] and _joins(b, 0, row[q], row[k]))
    seen = seen and bool(not chosen["cuts"] or _cuts(b, 0, row[q], row[k]))
    if chosen["blocks"] and max(q, k) < 9:
        seen = seen or BLOCKS[b][q] == BLOCKS[b][k] >= 0
    return seen and numbers[q] == numbers[k]


def _dense(found: Any, rows: int, queries: int, keys: int) -> Tensor:
    """Return whether each query sees each key by the rule of a mask of blocks."""
    sizes = ((rows, 1, 1), (1, queries, 1), (1, 1, keys))
    b, q, k = (torch.arange(max(size)).view(size) for size in sizes)
    seen: Tensor = found.mask_mod(b, torch.zeros_like(b), q, k)
    return seen.expand(rows, queries, keys).bool()


def _masked(kind: str, chosen: Mapping[str, str], maker: Any) -> list[str]:
    """Return where a mask is not by the rule of its kind and options."""
    rows = int(chosen["rows"])
    past, queries = (int(one) for one in chosen["queries"].split(" and "))
    kinds = [kind]
    if chosen["layers"] != "one kind":
        other = "causal" if kind == "sliding" else "sliding"
        kinds = [kind, other] if chosen["layers"] == "two kinds" else [other, kind]
    config = config_of(kinds, chosen["form"])
    padding = _padding(chosen, rows, past + queries)
    options: dict[str, Any] = {"attention_mask": padding}
    kept = None if padding is None else padding.clone()
    if (places := _places(chosen, rows, past, queries)) is not None:
        options["position_ids"] = places
    if chosen["blocks"]:
        options["block_sequence_ids"] = torch.tensor(BLOCKS[:rows])
    options |= {"or_mask_function": _joins} if chosen["joins"] else {}
    options |= {"and_mask_function": _cuts} if chosen["cuts"] else {}
    if past or chosen["cache"]:
        options["cache"] = cache_of(config, past, bool(chosen["cache"]), rows)
    embeds = torch.zeros(rows, queries, DIM, dtype=getattr(torch, chosen["type"]))
    with torch.compiler.set_stance("force_eager"):  # masks of blocks are compiled otherwise, in seconds each
        found = made(kind, config, queries, past, rows=rows, embeds=embeds, **options)
    wrong = (
        []
        if kept is None or torch.equal(kept, options["attention_mask"])
        else ["the caller's mask is changed"]
    )
    keys = past + queries
    if found is not None:
        keys = found.shape[-1]
        if chosen["form"] == "eager" and found.dtype is not embeds.dtype:
            wrong.append(f"it is of {found.dtype}")
    elif kind == "sliding" and "sliding" in kinds and not chosen["cache"]:
        keys = queries + min(past, WINDOW - 1)
    block = chosen["form"] == "flex_attention" and found is not None
    seen = (
        _dense(found, rows, queries, keys) if block else shown(found, rows, queries, keys, "bi" not in kind)
    )
    starts = [0] * rows if padding is None else [int(row.int().argmax()) for row in padding]
    sees = partial(_sees, kind, chosen, starts)
    real = None if padding is None else padding.int()
    if padding is None and chosen["cache"]:
        real = torch.ones(rows, past + queries, dtype=torch.int64)  # what is not filled yet is seen by none
    return wrong + differences(kind, seen, sees, past, max(0, past + queries - keys), real)


def _known(kind: str, chosen: Mapping[str, str]) -> KnownFailure | None:
    if kind == "chunked" and "packed" in chosen["places"]:
        what = "chunks do not begin again with each row"
        return KnownFailure(what, finding=LATER, releases=before("transformers", "5.22"))
    return None


def _table() -> Iterator[Row]:
    for kind, maker in MAKERS.items():
        for chosen in cases(kind):
            index = {name: OPTIONS[name].index(value) for name, value in chosen.items()}
            name = f"{kind} masks: {names_of(index, OPTIONS)}"
            call = partial(_masked, kind, chosen)
            # Earlier releases of 5 fail where blocks meet the shape of a static cache.
            first = "5.23" if chosen["form"] == "flex_attention" and chosen["cache"] else "4.56"
            known = _known(kind, chosen)
            yield Row("batches", f"{MODULE}:{maker}", name, call, [], since=first, known=known)


# Sources: the documentation of each maker.
PAIRED_MASK_ROWS: Sequence[Row] = tuple(_table())
