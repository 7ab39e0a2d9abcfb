"""R31.sequence_parallel: packed rows that ranks share by tokens, attention by heads, and what they gather again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

SEQUENCE_PARALLEL = relation_of(
    "sequence_parallel",
    "ranks-share-the-tokens-of-packed-rows",
    "Ranks have equal shares of the padded tokens, all of the tokens for their heads, and gather what one rank has.",
)
VALUES = (0, 7)
"""Of padding."""


def padded(
    ids: Tensor, positions: Tensor | None, ranks: int, value: int
) -> tuple[Tensor, Tensor | None, int]:
    """Return ids and positions whose length `ranks` divides; added positions are those of a row of its own."""
    added = -ids.shape[-1] % ranks
    ids = torch.cat([ids, ids.new_full((1, added), value)], -1)
    if positions is not None:
        more = torch.arange(added).expand(*positions.shape[:-1], added)
        positions = torch.cat([positions, more], -1)
    return ids, positions, added


def shares(
    ids: Tensor, positions: Tensor | None, ranks: int, value: int, whole: bool
) -> list[tuple[Tensor, Tensor | None, int]]:
    """Return the share of each rank; positions stay whole where they are divided elsewhere."""
    ids, positions, added = padded(ids, positions, ranks, value)
    parts = ids.chunk(ranks, -1)
    divided = [positions] * ranks if whole or positions is None else positions.chunk(ranks, -1)
    return [(part, own, added) for part, own in zip(parts, divided, strict=True)]


def _packed(case: Numbers) -> Iterable[tuple[Tensor, Tensor | None, int, int]]:
    stream = case.generator()
    for length in (8, 11):
        ids = torch.randint(2, 90, (1, length), generator=stream)
        positions = torch.cat([torch.arange(5), torch.arange(length - 5)])[None]
        for axes in (None, positions, positions.expand(3, 1, length)):
            for ranks in (2, 4):
                for value in VALUES:
                    yield ids, axes, ranks, value


def slices(values: Tensor, dim: int, ranks: int) -> list[Tensor]:
    """Return equal slices along a dimension, padded with zeros at its end."""
    shape = list(values.shape)
    shape[dim] = -shape[dim] % ranks
    return list(torch.cat([values, values.new_zeros(shape)], dim).chunk(ranks, dim))


def _sliced(case: Numbers) -> list[Arguments]:
    stream = case.generator()
    values = torch.randn(2, 5, 4, generator=stream)
    return [(values, dim, ranks) for dim in (0, 1, 2) for ranks in (2, 3)]


def by_heads(values: Tensor, weights: Tensor, ranks: int, tokens: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return what each rank has: its heads of all tokens; and the gradients of its tokens.

    Args:
        values: [B, S, H, D] of all ranks, in the order of ranks.
        weights: like values; the loss is their product's sum over ranks.
        ranks: their number.
        tokens: without padding.
    """
    shown = values.clone().requires_grad_()
    outputs = [part[:, :tokens] for part in shown.chunk(ranks, 2)]
    parts = weights.chunk(ranks, 2)
    terms = [(output * weight[:, :tokens]).sum() for output, weight in zip(outputs, parts, strict=True)]
    total = torch.stack(terms).sum()
    (gradient,) = torch.autograd.grad(total, shown)
    return [one.detach() for one in outputs], list(gradient.chunk(ranks, 1))


def by_tokens(values: Tensor, weights: Tensor, ranks: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return what each rank has of heads [B, S, H, D]: all heads of its tokens, padded; gradients of its heads."""
    shown = values.clone().requires_grad_()
    outputs = slices(shown, 1, ranks)
    terms = [
        (output * weight).sum() for output, weight in zip(outputs, slices(weights, 1, ranks), strict=True)
    ]
    total = torch.stack(terms).sum()
    (gradient,) = torch.autograd.grad(total, shown)
    return [one.detach() for one in outputs], list(gradient.chunk(ranks, 2))


def gathered(
    values: Tensor, weights: Tensor, ranks: int, dim: int, added: int, scaled: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return what each rank has: all without what was added; and the gradients of its own part.

    Each rank has its own loss, which is that of all, so the gradient is that of one rank, by the number of ranks where
    the average over ranks is taken later.
    """
    kept = values.narrow(dim, 0, values.shape[dim] - added)
    gradient = weights.clone()
    gradient.narrow(dim, values.shape[dim] - added, added).zero_()
    return [kept] * ranks, list((gradient * (ranks if scaled else 1)).chunk(ranks, dim))


def _heads(case: Numbers) -> Iterable[tuple[Tensor, Tensor, int]]:
    stream = case.generator()
    for ranks, length in ((2, 6), (2, 4), (4, 8)):
        yield (
            torch.randn(2, length, 4, 3, generator=stream),
            torch.randn(2, length, 4, 3, generator=stream),
            ranks,
        )


def _gathered(case: Numbers) -> Iterable[Arguments]:
    stream = case.generator()
    for ranks, dim, added in ((2, 0, 0), (2, 0, 1), (3, 1, 2), (2, 1, 0)):
        shape = (6, 6)
        values, weights = (torch.randn(shape, generator=stream) for _ in range(2))
        for scaled in (True, False):
            yield values, weights, ranks, dim, added, scaled


def packed(tokens: Tensor, ends: Sequence[int], longest: int, size: int) -> tuple[Tensor, list[int], int]:
    """Return tokens [N, ...], whose number `size` divides, with a row of what is added, and the longest row."""
    added = -len(tokens) % size
    filled = torch.cat([tokens, tokens.new_zeros(added, *tokens.shape[1:])])
    return filled, [*ends, ends[-1] + added] if added else list(ends), max(longest, added)


SEQUENCE_PARALLEL_FUNCTIONS = (
    Plain(
        name="padded for ranks",
        law="packed rows padded for ranks",
        suspects="zeros for the value of padding, positions that continue, a multiple too many",
        cases=_packed,
        right=padded,
    ),
    Plain(
        name="packed and padded",
        law="packed rows with tokens added",
        suspects="as above, in the copy of it that the engines have",
        cases=lambda case: [
            (ids, positions, -ids.shape[-1] % ranks, value) for ids, positions, ranks, value in _packed(case)
        ],
        right=lambda ids, positions, added, value: padded(ids, positions, ids.shape[-1] + added, value)[:2],
    ),
    Plain(
        name="packed with ends",
        law="packed tokens with the ends of rows",
        suspects="an end that is not added, a longest row that is not the longest",
        cases=lambda case: [
            (torch.randn(7, *more, generator=case.generator()), [0, 3, 7], 4, size)
            for more in ((), (2,))
            for size in (1, 4, 7, 16)
        ],
        right=packed,
    ),
    Plain(
        name="shares of ranks",
        law="tokens of each rank",
        suspects="the share of another rank, shares before padding, positions of all",
        cases=lambda case: [(*one, whole) for one in _packed(case) for whole in (False, True)],
        right=shares,
    ),
    Plain(
        name="slices of ranks",
        law="slices of each rank",
        suspects="another dimension, padding in front",
        cases=_sliced,
        right=slices,
    ),
    Plain(
        name="tokens to heads",
        law="all tokens for the heads of a rank",
        suspects="heads and tokens exchanged, gradients of another rank",
        cases=lambda case: [
            (values, weights, ranks, tokens)
            for values, weights, ranks in _heads(case)
            for tokens in (values.shape[1], values.shape[1] - 1)
        ],
        right=by_heads,
    ),
    Plain(
        name="heads to tokens",
        law="all heads for the tokens of a rank",
        suspects="as above, padding that is kept or in front",
        cases=lambda case: [
            (values[:, :tokens], weights[:, :tokens], ranks)
            for values, weights, ranks in _heads(case)
            for tokens in (values.shape[1], values.shape[1] - 1)
        ],
        right=by_tokens,
    ),
    Plain(
        name="gathered of ranks",
        law="values gathered of all ranks",
        suspects="a gradient that is not scaled, that of another rank, padding that is kept",
        cases=_gathered,
        right=gathered,
    ),
)
add_laws(SEQUENCE_PARALLEL, SEQUENCE_PARALLEL_FUNCTIONS)
