"""R31.packed_attention: attention by kernels of rows without padding is that of each row by itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

PACKED_ATTENTION = relation_of(
    "packed_attention",
    "kernels-see-rows-apart",
    "What a kernel of attention is given, of padded rows, of rows by their places or by their lengths, of a prompt or "
    "of one id after it, shows each query the keys of its row that it may see, with its scale, window, cap and sinks.",
)
HEADS, GROUPS, DIM = 4, 2, 6
Options = Mapping[str, Any]
TABLE: Sequence[Options] = (
    {},
    {"is_causal": False},
    {"softmax_scale": 0.7},
    {"sliding_window": 3},
    {"sliding_window": 3, "is_causal": False},
    {"softcap": 0.8},
    {"sinks": True},
)
SIDES: Mapping[str, Sequence[Sequence[int]]] = {
    "left": ((0, 0, 0, 1, 1, 1, 1), (0, 1, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 1, 1)),
    "right": ((1, 1, 1, 1, 0, 0, 0), (1, 1, 1, 1, 1, 1, 0), (1, 1, 1, 1, 1, 1, 1)),
}


def _cases(case: Numbers) -> Iterator[Arguments]:
    """Yield queries [B, Q, H, D], keys and values [B, K, G, D], mask, places, lengths and options."""
    generator = case.generator()

    def drawn(rows: int, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        shapes = ((rows, queries, HEADS, DIM), (rows, keys, GROUPS, DIM), (rows, keys, GROUPS, DIM))
        made = [torch.randn(shape, generator=generator) for shape in shapes]
        return made[0], made[1], made[2]

    for options in TABLE:
        yield *drawn(2, 7, 7), None, None, None, options
        for mask in SIDES.values():
            yield *drawn(3, 7, 7), mask, None, None, options
        for start in (0, 2):
            places = [[start + place for size in (3, 1, 5) for place in range(size)]]
            yield *drawn(1, 9, 9), None, places, None, options
        yield *drawn(1, 9, 9), None, None, (2, 4, 3), options
        yield *drawn(1, 9, 9), None, [list(range(9))], None, options
        if options.get("is_causal", True) and "softcap" not in options:
            yield *drawn(3, 1, 7), SIDES["left"], None, None, options
            yield *drawn(3, 3, 7), SIDES["left"], None, None, options
            yield *drawn(2, 1, 7), None, None, None, options
            yield *drawn(2, 3, 7), None, [list(range(4, 7))] * 2, None, options


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Sequence[Sequence[int]] | None,
    places: Sequence[Sequence[int]] | None,
    lengths: Sequence[int] | None,
    options: Options,
) -> Tensor:
    """Return what each query gets [B, Q, H, D]; a query that is padding gets 0.

    Args:
        queries: of the last Q of K places.
        keys: of every place.
        values: the same.
        mask: which places are no padding.
        places: of the ids within their rows, which are laid end to end in one.
        lengths: of rows that are laid end to end.
        options: of the call.
    """
    B, Q, H, D = queries.shape
    K, share = keys.shape[1], H // keys.shape[2]
    shown = mask or [[1] * K for _ in range(B)]
    rows = [0] * K
    if lengths is not None:
        rows = [number for number, length in enumerate(lengths) for _ in range(length)]
    elif places is not None and B == 1:
        rows = list(itertools.accumulate(int(place == min(places[0])) for place in places[0]))
    window = options.get("sliding_window") or K
    found = torch.zeros(B, Q, H, D, dtype=torch.float64)
    for b, q in itertools.product(range(B), range(Q)):
        place = K - Q + q
        if not shown[b][place]:
            continue
        seen = [
            k
            for k in range(K)
            if shown[b][k]
            and rows[k] == rows[place]
            and (k <= place or not options.get("is_causal", True))
            and abs(k - place) < window
        ]
        own_NHD, values_NHD = (
            one[b, seen].double()[:, [h // share for h in range(H)]] for one in (keys, values)
        )
        scores_NH = (own_NHD * queries[b, q].double()).sum(-1) * options.get("softmax_scale", D**-0.5)
        if "softcap" in options:
            scores_NH = options["softcap"] * torch.tanh(scores_NH / options["softcap"])
        if "sinks" in options:
            scores_NH = torch.cat([scores_NH, sinks(H).double()[None]])
        weights_NH = scores_NH.softmax(0)[: len(seen)]
        found[b, q] = (weights_NH[..., None] * values_NHD).sum(0)
    return found


def sinks(number: int) -> Tensor:
    """Return the sink of each head."""
    return torch.linspace(-1, 1, number)


def _unpadded_cases(case: Numbers) -> Iterator[Arguments]:
    for mask in (*SIDES.values(), [[1, 0, 1, 1], [0, 0, 1, 0]]):
        values = torch.randn(len(mask), len(mask[0]), 3, generator=case.generator())
        yield values, mask


def unpadded(values: Tensor, mask: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return shown values one after the other, where they are, sums of lengths, the longest, all back in place."""
    flat = [(b, s) for b, row in enumerate(mask) for s, one in enumerate(row) if one]
    lengths = [sum(row) for row in mask]
    shown = torch.tensor(mask, dtype=torch.float64)[..., None]
    return {
        "values": torch.stack([values[b, s].double() for b, s in flat]),
        "places": [b * len(mask[0]) + s for b, s in flat],
        "sums": [0, *itertools.accumulate(lengths)],
        "longest": max(lengths),
        "padded again": values.double() * shown,
    }


PACKED_ATTENTION_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="packed attention",
        law="attention of rows",
        suspects="a border of rows off by one, keys of a neighbour, a window, a scale or a cap that is left out",
        cases=_cases,
        right=attention,
        bound=FLOAT32,
    ),
    Plain(
        name="unpadded",
        law="rows without padding",
        suspects="sums without the first, rows that come back elsewhere",
        cases=_unpadded_cases,
        right=unpadded,
    ),
)
add_laws(PACKED_ATTENTION, PACKED_ATTENTION_FUNCTIONS)
