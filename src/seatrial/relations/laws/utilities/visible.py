"""R31.visible: which keys a query sees, and which keys a cache keeps, are those of a loop over places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

VISIBLE = relation_of(
    "visible",
    "keys-that-are-seen-and-kept",
    "Masks of every kind show a query the keys of its row that are before it, in its window, chunk or pack, and no "
    "padding; caches return the keys that were given, in their order, after every operation.",
)
WINDOW = 4


def _padding(gaps: Sequence[int], width: int, side: str) -> list[list[int]]:
    return [
        [0] * gap + [1] * (width - gap) if side == "left" else [1] * (width - gap) + [0] * gap for gap in gaps
    ]


def _mask_cases(case: Numbers) -> Iterator[Arguments]:
    """Yield a kind of mask, its padding, the number of keys in the cache, lengths of packed rows, the attention."""
    for kind in ("causal", "sliding", "chunked", "bidirectional"):
        for attention in ("eager", "sdpa"):
            yield kind, None, 9, 0, None, attention
            if kind != "chunked":
                yield kind, _padding((0, 3, 7), 9, "left"), 9, 0, None, attention
            yield kind, _padding((0, 3, 7), 9, "right"), 9, 0, None, attention
            yield kind, _padding((0, 0), 9, "right"), 9, 0, None, attention
            yield kind, None, 1, 0, None, attention
    for kind in ("causal", "sliding"):
        for attention in ("eager", "sdpa"):
            yield kind, None, 1, 6, None, attention
            yield kind, None, 3, 2, None, attention
            yield kind, None, 3, 6, None, attention
            yield kind, _padding((0, 4), 9, "left"), 3, 6, None, attention
            yield kind, _padding((0, 2), 3, "left"), 1, 2, None, attention
            yield kind, None, 9, 0, (4, 2, 3), attention
            yield kind, None, 9, 0, (1, 8), attention
    for attention in ("eager", "sdpa"):
        yield "bidirectional sliding", None, 9, 0, None, attention
        yield "bidirectional sliding", _padding((0, 4), 9, "right"), 9, 0, None, attention
        yield "bidirectional", None, 3, 6, None, attention
        yield "bidirectional", _padding((0, 4), 9, "left"), 3, 6, None, attention
        yield "bidirectional sliding", None, 4, WINDOW - 1, None, attention
        for kind in ("causal", "sliding", "bidirectional", "bidirectional sliding"):
            for how in ("joined", "cut"):
                yield f"{kind}, {how}", None, 9, 0, None, attention
                yield f"{kind}, {how}", _padding((0, 3), 9, "right"), 9, 0, None, attention


def pairs_of(place: int) -> tuple[int, int]:
    """Return two numbers of a place; the caller's own rule lets a query see the keys with the same two."""
    return place // 3 % 2, place // 6


def attended(
    kind: str,
    padding: Sequence[Sequence[int]] | None,
    num_queries: int,
    num_past: int,
    packed: Sequence[int] | None,
    attention: str,
) -> Tensor:
    """Return whether each query sees each key [B, Q, past + Q]; a query that is padding sees none.

    Masks that are joined also show the keys that the caller's rule does (`pairs_of`); those that are cut only these.
    """
    total = num_past + num_queries
    rows = padding or [[1] * total]
    packs = [number for number, size in enumerate(packed or [total]) for _ in range(size)]
    found = torch.zeros(len(rows), num_queries, total, dtype=torch.bool)
    for b, row in enumerate(rows):
        for q in range(num_queries):
            place = q + num_past
            for k in range(total):
                sees = packs[k] == packs[place]
                if "bidirectional" not in kind:
                    sees = sees and k <= place
                if kind.startswith("sliding"):
                    sees = sees and k > place - WINDOW
                if kind.startswith("bidirectional sliding"):
                    sees = abs(k - place) <= WINDOW
                if kind == "chunked":
                    sees = sees and k // WINDOW == place // WINDOW
                if kind.endswith("joined"):
                    sees = sees or pairs_of(k) == pairs_of(place)
                if kind.endswith("cut"):
                    sees = sees and pairs_of(k) == pairs_of(place)
                found[b, q, k] = sees and bool(row[k] and row[place])
    return found


Step = tuple[str, Any]
STEPS: Mapping[str, Sequence[Step]] = {
    "one by one": [("add", 3), ("add", 1), ("add", 1), ("add", 1), ("add", 1)],
    "in chunks": [("add", 2), ("add", 3), ("add", 5), ("add", 1)],
    "a long prompt": [("add", 9), ("add", 1), ("add", 2)],
    "rows in another order": [("add", 3), ("order", [1, 0]), ("add", 1), ("order", [0, 0]), ("add", 1)],
    "begun again": [("add", 6), ("add", 1), ("reset", None), ("add", 2), ("add", 3)],
    "a window that is just full": [("add", WINDOW - 1), ("add", 1), ("add", 1)],
    "a window at once": [("add", WINDOW), ("add", 1)],
}
OF_DYNAMIC: Mapping[str, Sequence[Step]] = {
    "cut": [("add", 5), ("cut", 3), ("add", 2), ("cut", 4), ("add", 1)],
    "rows repeated": [("add", 3), ("repeat", 2), ("add", 1)],
    "rows chosen": [("add", 3), ("choose", [1]), ("add", 2)],
}
RECORDED: Mapping[str, Sequence[Step]] = {
    "candidates taken back": [
        ("add", 3),
        ("add", 3),
        ("cut", 4),
        ("add", 2),
        ("cut", 5),
        ("add", 1),
        ("cut", 6),
    ],
    "several additions before a cut": [
        ("add", 9),
        ("add", 1),
        ("add", 2),
        ("cut", 10),
        ("add", 3),
        ("cut", 12),
    ],
    "cut before the window is full": [("add", 2), ("add", 1), ("cut", 1), ("add", 4), ("cut", 3), ("add", 2)],
}
"""Of sliding caches that keep what a cut may bring back."""


def _cache_cases(case: Numbers) -> Iterator[Arguments]:
    for steps in STEPS.values():
        for kind in ("dynamic", "static", "sliding", "static sliding"):
            yield kind, steps
    for steps in OF_DYNAMIC.values():
        yield "dynamic", steps
    for steps in RECORDED.values():
        yield "sliding, recorded", steps


def cached(kind: str, steps: Sequence[Step]) -> list[list[list[int]]]:
    """Return the keys that each addition to a cache of two rows gives attention, and at the end how many were added.

    Keys are numbered in the order of their addition, each row's from its own hundred on.
    """
    kept: list[list[int]] = [[100], [200]]
    kept = [[], []]
    rows, count, length, found = [100, 200], 0, 0, []
    for step, value in steps:
        if step == "add":
            kept = [
                own + [row + count + place for place in range(value)]
                for own, row in zip(kept, rows, strict=True)
            ]
            count, length = count + value, length + value
            seen = max(WINDOW - 1 + value, WINDOW) if "sliding" in kind else count
            found.append([own[-seen:] for own in kept])
            if "sliding" in kind and "recorded" not in kind:
                kept = [own[-(WINDOW - 1) :] for own in kept]
        elif step == "order" or step == "choose":
            kept = [kept[row] for row in value]
            rows = [100 * (row + 1) for row in range(len(kept))]
        elif step == "repeat":
            kept = [own for own in kept for _ in range(value)]
            rows = [100 * (row + 1) for row in range(len(kept))]
        elif step == "cut":
            kept, length = [own[: len(own) - (length - value)] for own in kept], value
            if "sliding" in kind:
                kept = [own[-(WINDOW - 1) :] for own in kept]
        else:
            kept, length = [[] for _ in kept], 0
    return [*found, [[length]]]


VISIBLE_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="attended",
        law="keys that a query sees",
        suspects="a window off by one, padding that is seen, keys of a neighbour, a query's place in the cache",
        cases=_mask_cases,
        right=attended,
    ),
    Plain(
        name="cached",
        law="keys that a cache keeps",
        suspects="keys lost at the end of a window, rows in another order, a cache that does not begin again",
        cases=_cache_cases,
        right=cached,
    ),
)
add_laws(VISIBLE, VISIBLE_FUNCTIONS)
