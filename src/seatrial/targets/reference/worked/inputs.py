"""Worked examples over odd but legal inputs: scores, supports, groups, counts and cadences against loops over lists."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import Batch, make_batch
from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.kept_ids import KeptIds, gather_kept_ids
from refrl.algorithms.microbatches import split_by_rows
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.packing import compute_logprobs_packed, pack_batch
from refrl.algorithms.reductions import check_count, reduce_tokens
from refrl.config import AdvantageConfig
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked import tiles
from seatrial.targets.reference.worked.made import (
    PAD,
    batch,
    for_all,
    made_tensor,
    mask_of_any_kind,
    refused,
    sample,
)

V = 7
"""Entries of the vocabulary."""


def examples() -> Iterator[WorkedExample]:
    """Yield an example of each property, and of each refusal."""
    yield from for_all(PROPERTIES)
    yield from _refusals()
    yield from tiles.examples()


def _distribution(logits: Tensor, kept: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the kept ids (all if there are none; others -inf), and the entropy."""
    ids = [*kept] or [*range(V)]
    total = logits[ids].exp().sum().log()
    entropy = -sum(((one - total).exp() * (one - total) for one in logits[ids]), torch.zeros(()).double())
    logprobs = [logits[one] - total if one in ids else torch.tensor(-math.inf).double() for one in range(V)]
    return torch.stack(logprobs), entropy


def _scores(stream: random.Random) -> bool:
    """Padded, packed and in tiles, with gradients: masked places hold any id and NaN, and get 0."""
    made = [
        replace(sample([1] * stream.randint(1, 3), [1] * stream.randint(1, 3)), completion_mask=None)
        for _ in range(stream.randint(1, 3))
    ]
    rows = make_batch(made, pad_token_id=0)
    B, T = rows.completion_ids_BT.shape
    S, D = rows.input_ids_BS.shape[1], 3
    own = rows.mask_BT.bool().tolist()
    mask = [[int(on and stream.random() < 0.8) for on in row] for row in own]
    without = all(all(row) for row in mask) and stream.random() < 0.5
    ids = [[stream.randrange(V) if on else stream.choice((-1, V, 99)) for on in row] for row in mask]
    kept: list[list[tuple[int, ...]]] = [
        [
            tuple(dict.fromkeys((*stream.sample(range(V), stream.randrange(V)), token)))
            if on and stream.random() < 0.6
            else ()
            for token, on in zip(*pair, strict=True)
        ]
        for pair in zip(ids, mask, strict=True)
    ]
    filtered = stream.random() < 0.6
    temperature = stream.choice((0.5, 1.0, 2.5))
    hidden = made_tensor(stream, (B, S, D), torch.float64) / 8
    head = made_tensor(stream, (V, D), torch.float64) / 8
    weights = made_tensor(stream, (2, B, T), torch.float64)
    entropies_too = stream.random() < 0.6
    lens = rows.prompt_lens_B
    options: dict[str, Any] = {
        "temperature": temperature,
        "mask_BT": None if without else mask_of_any_kind(stream, mask),
        "kept_ids": gather_kept_ids(kept, T) if filtered else None,
    }
    given = (torch.tensor(ids), lens)

    def right(states: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.zeros(2, B, T, dtype=torch.float64)
        for row, place in ((row, place) for row in range(B) for place in range(T) if mask[row][place]):
            logits = table @ states[row, int(lens[row]) - 1 + place] / temperature
            logprobs, entropy = _distribution(logits, kept[row][place] if filtered else ())
            found[0, row, place], found[1, row, place] = logprobs[ids[row][place]], entropy
        return found[0], found[1]

    def tiled(states: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        return compute_logprobs_chunked(
            states,
            table,
            *given,
            vocab_chunk=stream.randint(1, V + 1),
            row_chunk=stream.randint(1, 4),
            keep_bytes=stream.choice((0, 40, 2**20)),
            **options,
        )

    def padded(states: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        return compute_logprobs(states @ table.T, *given, **options)

    def packed(states: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        packs = pack_batch(rows, pack_length=S + stream.randrange(4), pad_token_id=0)
        flat = states.new_full((packs.input_ids_PS.numel(), D), math.nan)
        for row, (first, length) in enumerate(
            zip(packs.first_B.tolist(), packs.lengths_B.tolist(), strict=True)
        ):
            flat[first : first + length] = states[row, :length]
        shape = (*packs.input_ids_PS.shape, D)
        return compute_logprobs_packed(flat.reshape(shape) @ table.T, packs, given[0], **options)

    def measured(score: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], blank: float) -> list[Tensor]:
        used = torch.zeros(B, S, dtype=torch.bool)
        for row, place in ((row, place) for row in range(B) for place in range(T) if mask[row][place]):
            used[row, int(lens[row]) - 1 + place] = True
        states = torch.where(used[:, :, None], hidden, blank).requires_grad_()
        table = head.clone().requires_grad_()
        logprobs, entropies = score(states, table)
        if not any(map(any, mask)):
            return [logprobs.detach(), entropies.detach()]
        total = (logprobs * weights[0]).sum()
        if entropies_too:
            total = total + (entropies * weights[1]).sum()
        grads = torch.autograd.grad(total, [states] if score in (padded, packed) else [states, table])
        grads = (torch.where(used[:, :, None], grads[0], 0.0), *grads[1:])
        return [logprobs.detach(), entropies.detach(), *grads]

    due = measured(right, 0.0)
    # Products with the head are made here for two of them: its gradient there is NaN where states are.
    return all(
        torch.allclose(one, other, rtol=1e-9, atol=1e-9)
        for score, blank in ((tiled, math.nan), (padded, math.nan), (packed, 0.0))
        for one, other in zip(measured(score, blank), due, strict=False)
    )


def _supports(stream: random.Random) -> bool:
    """Kept ids of chosen rows, of the first tokens and of a tile are those of lists."""
    B, T = stream.randint(1, 4), stream.randint(1, 4)
    kept = [
        [tuple(stream.sample(range(V), stream.choice((0, 0, 1, 3, V)))) for _ in range(stream.randint(0, T))]
        for _ in range(B)
    ]
    full = [[*row, *[()] * (T - len(row))] for row in kept]
    made = gather_kept_ids(kept, T)

    def is_(found: KeptIds, right: Sequence[Sequence[tuple[int, ...]]]) -> bool:
        flat = [one for row in right for place in row for one in place]
        counts = [[len(place) for place in row] for row in right]
        return (
            found.ids_M.tolist() == flat
            and found.ids_M.dtype == torch.int32
            and found.counts_BT.tolist() == counts
        )

    order = [stream.randrange(B) for _ in range(stream.randint(1, 4))]
    cut = slice(stream.randrange(B), None)
    num = stream.randint(1, T)
    valid = [[stream.random() < 0.6 for _ in range(T)] for _ in range(B)]
    places = [full[row][place] for row in range(B) for place in range(T) if valid[row][place]]
    support = made.at(torch.tensor(valid))
    first, start = stream.randrange(V), stream.randrange(len(places) + 1)
    right = [
        [bool(place) and one not in place for one in range(first, min(first + 3, V))]
        for place in places[start : start + 2]
    ]
    tile = slice(start, min(start + 2, len(places))), slice(first, min(first + 3, V))
    return (
        is_(made, full)
        and is_(made.rows(torch.tensor(order)), [full[row] for row in order])
        and is_(made.rows(cut), full[cut])
        and is_(made.trimmed(num), [row[:num] for row in full])
        and is_(made.rows(torch.tensor(order)).trimmed(num), [full[row][:num] for row in order])
        and support.excluded(*tile).tolist() == right
    )


def _masks_of_packs(stream: random.Random) -> bool:
    """A token of a pack looks at itself and at what is before it in its own sequence; padding at padding."""
    made = [
        sample([1] * stream.randint(1, 2), [2] * stream.randint(1, 2)) for _ in range(stream.randint(1, 4))
    ]
    packs = pack_batch(make_batch(made, pad_token_id=PAD), pack_length=stream.randint(4, 9), pad_token_id=PAD)
    dtype = stream.choice((torch.float32, torch.bfloat16, torch.float64))
    found = packs.attention_mask_P1SS(dtype)
    lowest = torch.finfo(dtype).min
    S = packs.input_ids_PS.shape[1]
    right = [
        [
            [
                [0.0 if there <= here and own[there] == own[here] else lowest for there in range(S)]
                for here in range(S)
            ]
        ]
        for own in packs.segment_ids_PS.tolist()
    ]
    return found.dtype == dtype and found.tolist() == right


def _scored(ids: Any, lens: Any, **options: Any) -> Any:
    return compute_logprobs(torch.zeros(2, 4, V), torch.tensor(ids), torch.tensor(lens), **options)


def _tiled(**options: Any) -> Any:
    width = options.pop("width", 3)
    ids, lens = torch.tensor([[1]]), torch.tensor([1])
    return compute_logprobs_chunked(torch.zeros(1, 2, 3), torch.zeros(V, width), ids, lens, **options)


def _advantages(rewards: Sequence[float], groups: Sequence[int]) -> Any:
    return compute_advantages(torch.tensor(rewards), torch.tensor(groups), AdvantageConfig())


def _refusals() -> Iterator[WorkedExample]:
    """Yield inputs one step outside of what is legal."""
    legal: tuple[Any, Any] = ([[1, 2], [0, 6]], [1, 3])
    wrong: Mapping[str, tuple[Any, Any, dict[str, Any]]] = {
        "id 7 is outside": ([[1, 2], [0, 7]], [1, 3], {}),
        "id -1 is outside": ([[-1, 2], [0, 6]], [1, 3], {}),
        "row 1: prompt length 0": (legal[0], [1, 0], {}),
        "row 1: a prompt of 4 and 2 completion tokens pass the 4 positions": (legal[0], [3, 4], {}),
        "temperature is 0": (*legal, {"temperature": 0.0}),
        "temperature is nan": (*legal, {"temperature": math.nan}),
        "temperature is inf": (*legal, {"temperature": math.inf}),
        "must have one shape": (*legal, {"mask_BT": torch.ones(2, 1)}),
        "id 9 is outside": (*legal, {"kept_ids": gather_kept_ids([[(1, 9)], []], 2)}),
        "2 rows of logits": ([[1, 2]], [1], {}),
        "prompt lengths (1,)": (legal[0], [1], {}),
    }
    for words, (ids, lens, options) in wrong.items():
        yield refused(words, f"scores: {words}", _scored, ids, lens, **options)
    tiles: Mapping[str, dict[str, Any]] = {
        "vocab_chunk=0": {"vocab_chunk": 0},
        "row_chunk=0": {"row_chunk": 0},
        "keep_bytes=-1": {"keep_bytes": -1},
        "a head of width 2": {"width": 2},
        "temperature is -1": {"temperature": -1.0},
    }
    for words, tile in tiles.items():
        yield refused(words, f"tiles: {words}", _tiled, **tile)
    for words, given in {
        "rows [1] are not finite": ([0.0, math.inf], [1, 1]),
        "must both be (B,) with B > 0": ([], []),
        "group ids (1,)": ([0.0, 1.0], [1]),
    }.items():
        yield refused(words, f"rewards: {words}", _advantages, *given)
    for count in (0.0, -1.0, math.nan):
        yield refused("no tokens or rows", f"a count of {count}", check_count, count, "tokens")
    for kind, length in (("fixed_length", None), ("fixed_length", 0), ("mean", 3)):
        yield refused(
            f"fixed_length={length}", f"{kind} of {length}", reduce_tokens, torch.zeros(1, 1), torch.ones(1, 1), kind,
            global_valid_tokens=1.0, global_valid_seqs=1.0, fixed_length=length,
        )  # fmt: skip
    for num, size in ((0, 1), (1, 0)):
        yield refused("must be positive", f"{num} rows by {size}", split_by_rows, num, size)
    yield refused("does not fit 3 positions", "unpacked too short", _unpacked, batch())


def _unpacked(rows: Batch) -> Any:
    packs = pack_batch(rows, pack_length=8, pad_token_id=PAD)
    return packs.unpack(torch.zeros(*packs.input_ids_PS.shape, 1), 3)


PROPERTIES: Mapping[str, tuple[Callable[[random.Random], bool], int]] = {
    "scores and gradients are those of single tokens": (_scores, 24),
    "kept ids are chosen as lists are": (_supports, 16),
    "tokens of packs see their own sequence": (_masks_of_packs, 6),
}
"""By name: whether a property holds for the random inputs of a stream, and how many streams are tried."""
