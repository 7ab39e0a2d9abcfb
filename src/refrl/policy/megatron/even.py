"""The same number of passes, of one shape, on every rank: what ranks that share experts need.

Tokens of all these ranks meet in every layer with experts, so that no rank may have fewer passes or smaller ones.
What is added has mask 0: it adds nothing to a loss, and no gradient.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist
from torch.nn import functional

from refrl.algorithms.batching import Batch
from refrl.policy.megatron.parallel import Parallel


def even_passes(micro_batches: list[Batch], parallel: Parallel) -> list[Batch]:
    """Return micro-batches of one number and shape on all ranks that share experts; others are as they were."""
    if parallel.expert.size() == 1:
        return micro_batches
    sizes = [
        len(micro_batches),
        *(max(batch.input_ids_BS.shape[dim] for batch in micro_batches) for dim in (0, 1)),
    ]
    most = torch.tensor(sizes)
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=parallel.expert)
    num_passes, num_rows, num_columns = most.tolist()
    evened = [_widened(batch, num_rows, num_columns) for batch in micro_batches]
    return evened + [_silent(evened[0])] * (num_passes - len(evened))


def _widened(batch: Batch, num_rows: int, num_columns: int) -> Batch:
    """Return a batch with rows of mask 0 and columns of padding added."""
    first = [0] * (num_rows - batch.num_rows)
    grown = batch.rows([*range(batch.num_rows), *first])
    grown.mask_BT[batch.num_rows :] = 0
    missing = num_columns - batch.input_ids_BS.shape[1]
    return replace(
        grown,
        input_ids_BS=functional.pad(grown.input_ids_BS, (0, missing)),
        attention_mask_BS=functional.pad(grown.attention_mask_BS, (0, missing)),
    )


def _silent(batch: Batch) -> Batch:
    return replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))
