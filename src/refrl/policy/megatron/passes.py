"""Micro-batches through Megatron-core's schedules: forward alone, or forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor, nn

from refrl.algorithms.batching import Batch
from refrl.policy.megatron.forward import Scorer

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
