"""What `chunked._ChunkedScore` does with a tile of logits, as one pass over the tile in Triton.

In plain torch a tile is read and written about ten times in float32; here it is read once, in the model's own type.

Shapes: N tokens of a tile, C its entries of the vocabulary.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def fold_tile(
    product_NC: Tensor,
    ids_N: Tensor,
    first: int,
    temperature: float,
    largest_N: Tensor,
    sums_N: Tensor,
    weighted_N: Tensor,
    target_N: Tensor,
) -> None:
    """Fold a tile into the running sums, in place (see `chunked._fold`), and add the logits of the ids it holds.

    Args:
        product_NC: logits before the temperature, contiguous.
        ids_N: ids to score.
        first: entry of the vocabulary that the tile begins with.
        temperature: that of sampling.
        largest_N: largest logit m so far, contiguous like the others.
        sums_N: sum of exp(l - m).
        weighted_N: sum of exp(l - m) (l - m).
        target_N: logit of each id.
    """
    num_tokens, num_entries = product_NC.shape
    _fold_kernel[(num_tokens,)](
        product_NC,
        ids_N,
        largest_N,
        sums_N,
        weighted_N,
        target_N,
        first,
        num_entries,
        1.0 / temperature,
        BLOCK=BLOCK,
        num_warps=8,
    )


def grad_tile(
    product_NC: Tensor,
    ids_N: Tensor,
    first: int,
    temperature: float,
    lse_N: Tensor,
    mean_N: Tensor,
    logprob_grad_N: Tensor,
    entropy_grad_N: Tensor | None,
) -> Tensor:
    """Return the gradient of a tile of logits in the type of the tile (see `chunked._logits_grad`)."""
    num_tokens, num_entries = product_NC.shape
    grad_NC = torch.empty_like(product_NC)
    _grad_kernel[(num_tokens, triton.cdiv(num_entries, BLOCK))](
        product_NC,
        grad_NC,
        ids_N,
        lse_N,
        mean_N,
        logprob_grad_N,
        logprob_grad_N if entropy_grad_N is None else entropy_grad_N,
        first,
        num_entries,
        1.0 / temperature,
        HAS_ENTROPY=entropy_grad_N is not None,
        BLOCK=BLOCK,
        num_warps=8,
    )
    return grad_NC


@triton.jit
def _fold_kernel(
    product,
    ids,
    largest,
    sums,
    weighted,
    target,
    first,
    num_entries,
    scale,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    start = product + row.to(tl.int64) * num_entries
    most = tl.load(largest + row)
    total = tl.load(sums + row)
    moment = tl.load(weighted + row)
    for offset in range(0, num_entries, BLOCK):
        columns = offset + tl.arange(0, BLOCK)
        inside = columns < num_entries
        logits = tl.load(start + columns, mask=inside, other=-float("inf")).to(tl.float32) * scale
        new = tl.maximum(most, tl.max(logits, 0))
        # Before the first block the largest is -inf and the sums are 0.
        shift = tl.where(most == -float("inf"), 0.0, most - new)
        centred = tl.where(inside, logits - new, 0.0)
        exps = tl.where(inside, tl.exp(centred), 0.0)
        decay = tl.exp(shift)
        moment = (moment + shift * total) * decay + tl.sum(exps * centred, 0)
        total = total * decay + tl.sum(exps, 0)
        most = new
    tl.store(largest + row, most)
    tl.store(sums + row, total)
    tl.store(weighted + row, moment)
    column = tl.load(ids + row) - first
    if (column >= 0) & (column < num_entries):
        tl.store(target + row, tl.load(start + column).to(tl.float32) * scale)


@triton.jit
def _grad_kernel(
    product,
    grad,
    ids,
    lse,
    mean,
    logprob_grad,
    entropy_grad,
    first,
    num_entries,
    scale,
    HAS_ENTROPY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_entries
    place = row.to(tl.int64) * num_entries + columns
    logits = tl.load(product + place, mask=inside, other=0.0).to(tl.float32) * scale
    probs = tl.exp(logits - tl.load(lse + row))
    # Both gradients come divided by the temperature.
    weight = tl.load(logprob_grad + row)
    inner = weight
    if HAS_ENTROPY:
        inner = weight + (logits - tl.load(mean + row)) * tl.load(entropy_grad + row)
    out = -probs * inner + tl.where(columns == tl.load(ids + row) - first, weight, 0.0)
    tl.store(grad + place, out.to(grad.dtype.element_ty), mask=inside)
