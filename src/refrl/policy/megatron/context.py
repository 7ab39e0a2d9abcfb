"""Tokens spread over context-parallel ranks: each has one chunk from the front and one from the back of the sequence.

A causal token's work grows with its position; one early and one late chunk make the ranks' work equal.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def positions_of_context(num_tokens: int, rank: int, size: int, device: torch.device | str) -> Tensor:
    """Return the positions, in the sequence, of a rank's tokens.

    Raises:
        ValueError: the tokens do not divide into two chunks a rank.
    """
    if num_tokens % (2 * size):
        raise ValueError(f"{num_tokens} tokens do not divide into {2 * size} chunks")
    chunks = torch.arange(num_tokens, device=device).chunk(2 * size)
    return torch.cat([chunks[rank], chunks[2 * size - 1 - rank]])


def gather_context(states: Tensor, group: Any) -> Tensor:
    """Return the tokens of all ranks in the order of the sequence.

    Args:
        states: [own tokens, ...].
        group: the context-parallel ranks. Backward adds up what each of them makes of a token.
    """
    return _Gather.apply(states, group)


def whole_context(states: Tensor, group: Any) -> Tensor:
    """Return the tokens of all ranks in the order of the sequence, for what every rank computes alike.

    Args:
        states: [own tokens, ...].
        group: the context-parallel ranks. Backward takes this rank's part: the others compute theirs.
    """
    return _Whole.apply(states, group)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _gathered(states, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[_places(gradient, ctx.group.rank(), ctx.group)], None


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return _gathered(states, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][_places(gradients[0], ctx.group.rank(), ctx.group)], None


def _gathered(states: Tensor, group: Any) -> Tensor:
    own = states.contiguous()
    shares = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(shares, own, group=group)
    gathered = own.new_empty((own.shape[0] * group.size(), *own.shape[1:]))
    for rank, share in enumerate(shares):
        gathered[_places(gathered, rank, group)] = share
    return gathered


def _places(gathered: Tensor, rank: int, group: Any) -> Tensor:
    return positions_of_context(gathered.shape[0], rank, group.size(), gathered.device)
