"""What goes into a Megatron-core model for one micro-batch, and log-probabilities from what comes out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
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
