"""Log-probabilities straight from hidden states, a tile of tokens and vocabulary at a time.

At a vocabulary of 152k and 8,192 tokens the logits alone take 5 GB in float32, and log-softmax, entropy and their
gradients several times that. Here a tile is computed, folded into running sums, and dropped, or kept as far as a
budget goes; backward computes the dropped ones again. Equal to `ops.compute_logprobs(hidden @ head.T, ...)` in value
and gradient. Models that cap or scale their logits after the head (Gemma 2, Granite), or add a bias, need the plain
form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from refrl.algorithms.kept_ids import KeptIds, Support
from refrl.algorithms.ops import (
    check_temperature,
    checked_ids,
    predictor_index,
    scatter,
    support_at,
    valid_positions,
)

HOST_CHUNKS = (8192, 512)
"""Entries and tokens of a tile on a CPU: 16 MiB, near its caches."""
DEVICE_CHUNKS = (32768, 4096)
"""On a GPU: 512 MiB, above which starting the kernels costs nothing against running them."""


def compute_logprobs_chunked(
    hidden_BSD: Tensor,
    head_VD: Tensor,
    completion_ids_BT: Tensor,
    prompt_lens_B: Tensor,
    *,
    temperature: float = 1.0,
    vocab_chunk: int | None = None,
    row_chunk: int | None = None,
    keep_bytes: int = 3 * 2**30,
    mask_BT: Tensor | None = None,
    kept_ids: KeptIds | None = None,
) -> tuple[Tensor, Tensor]:
    """Score completion tokens like `ops.compute_logprobs`, given the last hidden states and the output head.

    Args:
        hidden_BSD: hidden states after the model's final norm.
        head_VD: weight of the output head, without a bias.
        completion_ids_BT: ids to score.
        prompt_lens_B: position of each row's first completion token.
        temperature: that of sampling.
        vocab_chunk: entries of the vocabulary per tile; the last slice is narrower, never padded. None takes what
            suits the device.
        row_chunk: tokens per tile, likewise. Peak memory is a few tiles of vocab_chunk * row_chunk numbers.
        keep_bytes: budget for logits kept from forward to backward. What does not fit is computed again, which costs
            up to a third more in matrix products; 0 takes the least memory.
        mask_BT: where it is 0 both results are 0 and the hidden states are not read.
        kept_ids: what the filter of sampling kept; as there, the distributions are restricted to these ids.

    Returns:
        (logprobs_BT, entropy_BT).

    Raises:
        ValueError: as `ops.compute_logprobs`; a chunk that is not positive, a negative budget; widths that
            disagree.
    """
    check_temperature(temperature)
    B, S, D = hidden_BSD.shape
    V = head_VD.shape[0]
    if head_VD.shape[1] != D:
        raise ValueError(f"hidden states of width {D} and a head of width {head_VD.shape[1]}")
    default_vocab_chunk, default_row_chunk = DEVICE_CHUNKS if hidden_BSD.is_cuda else HOST_CHUNKS
    vocab_chunk = default_vocab_chunk if vocab_chunk is None else vocab_chunk
    row_chunk = default_row_chunk if row_chunk is None else row_chunk
    if vocab_chunk < 1 or row_chunk < 1:
        raise ValueError(f"vocab_chunk={vocab_chunk} and row_chunk={row_chunk} must be positive")
    if keep_bytes < 0:
        raise ValueError(f"keep_bytes={keep_bytes} must not be negative")
    index_BT = predictor_index(prompt_lens_B, completion_ids_BT, B, S)
    valid_BT = valid_positions(completion_ids_BT, mask_BT)
    ids_N = checked_ids(completion_ids_BT[valid_BT], V)
    hidden_ND = hidden_BSD.reshape(B * S, D)[index_BT[valid_BT]]
    tiling = Tiling(temperature, vocab_chunk, row_chunk, keep_bytes if torch.is_grad_enabled() else 0)
    support = support_at(kept_ids, valid_BT, V)
    logprobs_N, entropy_N = _ChunkedScore.apply(hidden_ND, head_VD, ids_N, tiling, support)
    return scatter(logprobs_N, valid_BT), scatter(entropy_N, valid_BT)


@dataclass(frozen=True)
class Tiling:
    """How `_ChunkedScore` cuts its work."""

    temperature: float
    vocab_chunk: int
    row_chunk: int
    keep_bytes: int

    def tiles(self, vocab_size: int, num_rows: int) -> Iterator[tuple[slice, slice]]:
        """Yield (entries, rows) of every tile, all rows of a slice of the vocabulary before the next slice."""
        for first in range(0, vocab_size, self.vocab_chunk):
            for start in range(0, num_rows, self.row_chunk):
                yield (
                    slice(first, min(first + self.vocab_chunk, vocab_size)),
                    slice(start, min(start + self.row_chunk, num_rows)),
                )


class _ChunkedScore(torch.autograd.Function):
    """`ops.score` of `hidden @ head.T`, a tile at a time.

    With logits l, lse = log sum exp l, p = exp(l - lse) and mean = sum p l: logprob = l[id] - lse,
    entropy = lse - mean, d logprob / d l = onehot(id) - p, d entropy / d l = -p (l - mean). With a support the sums run
    over its ids, and the gradients of other logits are 0.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, head_VD: Tensor, ids_N: Tensor, tiling: Tiling, support: Support | None
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden_ND.dtype, torch.float32)
        largest_N = torch.full(ids_N.shape, -torch.inf, dtype=dtype, device=hidden_ND.device)
        sums_N, weighted_N, target_N = (torch.zeros_like(largest_N) for _ in range(3))
        tiles = list(tiling.tiles(len(head_VD), len(hidden_ND)))
        kernels = _fused_kernels(hidden_ND, support)
        kept: dict[int, Tensor] = {}
        free = tiling.keep_bytes
        for number, (entries, rows) in enumerate(tiles):
            product = hidden_ND[rows] @ head_VD[entries].T
            if product.nbytes <= free:
                kept[number] = product
                free -= product.nbytes
            if kernels is not None:
                sums = (largest_N[rows], sums_N[rows], weighted_N[rows], target_N[rows])
                kernels.fold_tile(product, ids_N[rows], entries.start, tiling.temperature, *sums)
                continue
            logits = _logits(product, tiling.temperature, dtype)
            excluded = None if support is None else support.excluded(rows, entries)
            if excluded is not None:
                logits.masked_fill_(excluded, -torch.inf)
            inside, column = _targets(ids_N[rows], entries)
            target_N[rows] += torch.where(inside, logits.gather(1, column).squeeze(1), 0.0)
            _fold(largest_N[rows], sums_N[rows], weighted_N[rows], logits, excluded)
        lse_N, centre_N = largest_N + sums_N.log(), weighted_N / sums_N
        ctx.save_for_backward(hidden_ND, head_VD, ids_N, lse_N, largest_N + centre_N)
        ctx.tiling, ctx.tiles, ctx.kept, ctx.support = tiling, tiles, kept, support
        ctx.set_materialize_grads(False)
        return target_N - lse_N, sums_N.log() - centre_N

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, logprob_grad_N: Tensor | None, entropy_grad_N: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden_ND, head_VD, ids_N, lse_N, mean_N = ctx.saved_tensors
        tiling, dtype = ctx.tiling, lse_N.dtype
        # Gradients accumulate over tiles in float32, regardless of the model's dtype.
        hidden_grad_ND = torch.zeros_like(hidden_ND, dtype=dtype) if ctx.needs_input_grad[0] else None
        head_grad_VD = torch.zeros_like(head_VD, dtype=dtype) if ctx.needs_input_grad[1] else None
        # d logits / d product = 1 / temperature.
        logprob_grad_N = (
            torch.zeros_like(lse_N) if logprob_grad_N is None else logprob_grad_N / tiling.temperature
        )
        if entropy_grad_N is not None:
            entropy_grad_N = entropy_grad_N / tiling.temperature
        kernels = _fused_kernels(hidden_ND, ctx.support)
        for number, (entries, rows) in enumerate(ctx.tiles):
            hidden, head = hidden_ND[rows], head_VD[entries]
            product = ctx.kept[number] if number in ctx.kept else hidden @ head.T
            entropy_grad = None if entropy_grad_N is None else entropy_grad_N[rows]
            sums = (lse_N[rows], mean_N[rows])
            if kernels is not None:
                place = (ids_N[rows], entries.start, tiling.temperature)
                grad = kernels.grad_tile(product, *place, *sums, logprob_grad_N[rows], entropy_grad)
            else:
                logits = _logits(product, tiling.temperature, dtype)
                targets = _targets(ids_N[rows], entries)
                grad = _logits_grad(logits, *sums, targets, logprob_grad_N[rows], entropy_grad)
                if ctx.support is not None:
                    grad.masked_fill_(ctx.support.excluded(rows, entries), 0.0)
                grad = grad.to(hidden.dtype)
            if hidden_grad_ND is not None:
                _add_product(hidden_grad_ND[rows], grad, head)
            if head_grad_VD is not None:
                _add_product(head_grad_VD[entries], grad.T, hidden)
        return (
            None if hidden_grad_ND is None else hidden_grad_ND.to(hidden_ND.dtype),
            None if head_grad_VD is None else head_grad_VD.to(head_VD.dtype),
            None,
            None,
            None,
        )


def _fused_kernels(hidden: Tensor, support: Support | None) -> ModuleType | None:
    """Return the kernels of a tile; None where torch's own operations do it: on a CPU, or with a filter of sampling."""
    if not hidden.is_cuda or support is not None or hidden.dtype == torch.float64:
        return None
    from refrl.algorithms import chunked_triton

    return chunked_triton


def _logits(product: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """Return a tile of logits in a tensor of its own; a divisor with one dimension promotes in the same pass."""
    return product / torch.full((1,), temperature, dtype=dtype, device=product.device)


def _logits_grad(
    logits: Tensor,
    lse: Tensor,
    mean: Tensor,
    targets: tuple[Tensor, Tensor],
    logprob_grad: Tensor,
    entropy_grad: Tensor | None,
) -> Tensor:
    """Return the gradient of a tile of logits, in their place."""
    inside, column = targets
    if entropy_grad is None:
        probs = logits.sub_(lse.unsqueeze(1)).exp_()
        return probs.scatter_add_(1, column, -inside.to(probs.dtype).unsqueeze(1)).mul_(
            -logprob_grad.unsqueeze(1)
        )
    probs = (logits - lse.unsqueeze(1)).exp_()
    grad = logits.sub_(mean.unsqueeze(1)).mul_(entropy_grad.unsqueeze(1)).add_(logprob_grad.unsqueeze(1))
    grad.mul_(probs).neg_()
    return grad.scatter_add_(1, column, torch.where(inside, logprob_grad, 0.0).unsqueeze(1))


def _targets(ids: Tensor, entries: slice) -> tuple[Tensor, Tensor]:
    """Return which ids lie in the slice of the vocabulary, and every id's column there (clamped into it)."""
    inside = (ids >= entries.start) & (ids < entries.stop)
    return inside, (ids.clamp(entries.start, entries.stop - 1) - entries.start).unsqueeze(1)


def _fold(largest: Tensor, sums: Tensor, weighted: Tensor, logits: Tensor, excluded: Tensor | None) -> None:
    """Fold a tile into the running largest logit m, sum of exp(l - m) and sum of exp(l - m) (l - m).

    Excluded logits are -inf and do not count. Where none has counted yet, m stays -inf and the sums 0.
    """
    new = torch.maximum(largest, logits.amax(1))
    base = new if excluded is None else torch.where(new == -torch.inf, 0.0, new)
    shift = (largest - base).clamp_min(torch.finfo(logits.dtype).min)
    decay = shift.exp()
    centred = logits.sub_(base.unsqueeze(1))
    exps = centred.exp()
    if excluded is not None:
        centred.masked_fill_(excluded, 0.0)
    weighted.add_(shift * sums).mul_(decay).add_(torch.einsum("nv,nv->n", exps, centred))
    sums.mul_(decay).add_(exps.sum(1))
    largest.copy_(new)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to a view, in place."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
