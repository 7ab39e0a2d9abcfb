"""Micro-batches through a Megatron-core model: inputs, log-probabilities, and its forward and backward schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn
from torch.nn import functional

from refrl.algorithms.batching import Batch
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.packing import compute_logprobs_packed, pack_batch
from refrl.policy.megatron.context import positions_of_context, whole_context
from refrl.policy.megatron.parallel import Parallel


@dataclass(frozen=True)
class Inputs:
    """One micro-batch as the model takes it, and what becomes of its logits."""

    input_ids_BS: Tensor
    """This rank's tokens: under context parallelism a part of each row."""
    attention_mask: Tensor | None
    """Added to the scores, [B, 1, S, S]; None lets every token see those before it."""
    score: Callable[[Tensor], tuple[Tensor, Tensor]]
    """(logits of this rank's tokens) -> (logprobs_BT, entropy_BT), 0 where the mask is 0."""


@dataclass(frozen=True)
class Scorer:
    """How micro-batches go through the model."""

    parallel: Parallel
    vocab_size: int
    temperature: float
    packs: bool
    """Rows are laid end to end, without seeing one another."""
    dtype: torch.dtype

    def inputs(self, batch: Batch) -> Inputs:
        """Return a micro-batch (on its device) as the model takes it."""
        return self._packed(batch) if self.packs else self._padded(batch)

    def _padded(self, batch: Batch) -> Inputs:
        # Rows are left-aligned: no token sees the padding behind it.
        ids_BS = self._lengthened(batch.input_ids_BS)

        def score(logits_BSV: Tensor) -> tuple[Tensor, Tensor]:
            return compute_logprobs(
                self._whole(logits_BSV),
                batch.completion_ids_BT,
                batch.prompt_lens_B,
                temperature=self.temperature,
                mask_BT=batch.mask_BT,
                kept_ids=batch.kept_ids,
            )

        return Inputs(self._own(ids_BS), None, score)

    def _packed(self, batch: Batch) -> Inputs:
        packed = pack_batch(
            batch, pack_length=self._length(int(batch.attention_mask_BS.sum())), pad_token_id=0
        )
        mask_P1SS = packed.attention_mask_P1SS(self.dtype)

        def score(logits_PSV: Tensor) -> tuple[Tensor, Tensor]:
            return compute_logprobs_packed(
                self._whole(logits_PSV),
                packed,
                batch.completion_ids_BT,
                temperature=self.temperature,
                mask_BT=batch.mask_BT,
                kept_ids=batch.kept_ids,
            )

        # Rotary embeddings encode distances: a row may begin anywhere in its pack.
        return Inputs(self._own(packed.input_ids_PS), self._own(mask_P1SS, dim=2), score)

    def _length(self, num_tokens: int) -> int:
        multiple = self.parallel.sequence_multiple
        return math.ceil(num_tokens / multiple) * multiple

    def _lengthened(self, ids_BS: Tensor) -> Tensor:
        return functional.pad(ids_BS, (0, self._length(ids_BS.shape[1]) - ids_BS.shape[1]))

    def _own(self, values: Tensor, dim: int = 1) -> Tensor:
        """Return this rank's part of values of all tokens."""
        group = self.parallel.context
        if group.size() == 1:
            return values
        places = positions_of_context(values.shape[dim], group.rank(), group.size(), values.device)
        return values.index_select(dim, places)

    def _whole(self, logits_BSV: Tensor) -> Tensor:
        """Return the logits of all tokens, without the padding of the vocabulary."""
        if self.parallel.context.size() > 1:
            logits_SBV = whole_context(logits_BSV.transpose(0, 1), self.parallel.context)
            logits_BSV = logits_SBV.transpose(0, 1)
        return logits_BSV[..., : self.vocab_size]


Loss = Callable[[Tensor, Tensor, Batch], tuple[Tensor, Any]]
"""(logprobs_BT, entropy_BT, micro-batch) -> (share of the loss, what is kept of it)."""


def score_passes(module: nn.Module, scorer: Scorer, micro_batches: Sequence[Batch]) -> list[Tensor]:
    """Return logprobs_BT of each micro-batch; empty on ranks without the head."""

    def keep(scored: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        del batch
        return scored[0]

    with torch.no_grad():
        return _run(module, scorer, micro_batches, keep, forward_only=True)


def train_passes(module: nn.Module, scorer: Scorer, micro_batches: Sequence[Batch], loss: Loss) -> list[Any]:
    """Add up gradients over micro-batches and ranks in every parameter's `main_grad`; return what the loss kept.

    It is called on ranks with the head alone; others get nothing back.
    """

    def share(scored: tuple[Tensor, Tensor], batch: Batch) -> tuple[Tensor, Tensor, Any]:
        value, kept = loss(*scored, batch)
        # The middle one is a count that Megatron-core would divide by; the loss has divided already.
        return value, torch.zeros((), dtype=torch.int), kept

    with _recomputing(module):
        return _run(module, scorer, micro_batches, share, forward_only=False)


@contextmanager
def _recomputing(module: nn.Module) -> Iterator[None]:
    """Let Megatron-core compute layers again where it is configured to: it does so in training mode only.

    Nothing else depends on the mode: there is no dropout.
    """
    config: Any = module.config
    if config.recompute_granularity is None:
        yield
        return
    module.train()
    try:
        yield
    finally:
        module.eval()


def sum_gradients(model: list[nn.Module], num_tokens: Any = None, **options: Any) -> None:
    """Add up gradients over the ranks that share them; Megatron-core calls this after the last backward pass."""
    del num_tokens
    finalize_model_grads(model, None, **options)


def _run(
    module: nn.Module,
    scorer: Scorer,
    micro_batches: Sequence[Batch],
    then: Callable[[tuple[Tensor, Tensor], Batch], Any],
    *,
    forward_only: bool,
) -> list[Any]:
    def forward_step(batches: Any, model: nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        batch = next(batches)
        inputs = scorer.inputs(batch)
        output = model(inputs.input_ids_BS, None, inputs.attention_mask)

        def finish(logits: Tensor, non_loss_data: bool = False) -> Any:
            del non_loss_data
            return then(inputs.score(logits), batch)

        return output, finish

    kept: list[Any] = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=iter(micro_batches),
        model=[module],
        num_microbatches=len(micro_batches),
        # Shapes travel with the tensors between stages: neither number below is used.
        seq_length=1,
        micro_batch_size=1,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )
    return kept


def even_passes(micro_batches: list[Batch], parallel: Parallel) -> list[Batch]:
    """Return as many micro-batches on all ranks that share experts: the first again, without its loss.

    Experts exchange any number of tokens, so that each micro-batch keeps its shape and its limit.
    """
    if parallel.expert.size() == 1:
        return micro_batches
    most = torch.tensor(len(micro_batches))
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=parallel.expert)
    return micro_batches + [_silent(micro_batches[0])] * (int(most) - len(micro_batches))


def _silent(batch: Batch) -> Batch:
    return replace(batch, mask_BT=torch.zeros_like(batch.mask_BT))
