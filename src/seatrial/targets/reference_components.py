"""refrl's components, offered to the relations under one cell of its configuration.

The model is a tiny Qwen3 that refrl makes; the components that need none stand in modules of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.losses import policy_loss
from refrl.algorithms.metrics import merge_metrics
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.packing import compute_logprobs_packed, pack_batch
from refrl.generation.base import SamplingParams
from refrl.generation.torch_engine import TorchGenerator
from seatrial.relations.records import Row, Sampled, StepResult
from seatrial.targets.reference_formulas import Cell
from seatrial.targets.reference_knobs import ReferenceKnobs
from seatrial.targets.reference_model import PAD_ID, TEMPERATURE, head_weight, hidden_states, tiny_model
from seatrial.targets.reference_runs import ReferenceRuns
from seatrial.targets.reference_texts import ReferenceTexts
from seatrial.targets.reference_updates import ReferenceUpdates

__all__ = ["TEMPERATURE", "Cell", "ReferenceComponents"]


class ReferenceComponents(ReferenceUpdates, ReferenceTexts, ReferenceRuns, ReferenceKnobs):
    """An adapter in the sense of `seatrial.relations.contracts`."""

    vocab_size = 37

    def gradients(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        """See `contracts.TrainStep`."""
        model = tiny_model()
        model.zero_grad(set_to_none=True)
        lengths = [sum(row.completion_mask) for row in rows]
        tokens, sequences = float(sum(lengths)), float(sum(length > 0 for length in lengths))
        parts = []
        for members in micro_batches:
            batch = self._batch([rows[member] for member in members])
            logprobs_BT, entropy_BT = self._score(batch, TEMPERATURE)
            loss, metrics = policy_loss(
                logprobs_BT,
                batch,
                self.cell.loss,
                global_valid_tokens=tokens,
                global_valid_seqs=sequences,
                entropy_BT=entropy_BT,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            parts.append(metrics)
        gradients = {
            name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
            for name, value in model.named_parameters()
        }
        merged = merge_metrics(parts)
        return StepResult(loss=merged["loss"], gradients=gradients, metrics=merged)

    def score(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        """See `contracts.Policy`: masked tokens are scored too."""
        visible = [replace(row, completion_mask=(1,) * len(row.completion_ids)) for row in rows]
        with torch.no_grad():
            logprobs_BT, _ = self._score(self._batch(visible), temperature)
        return [
            tuple(logprobs_BT[index, : len(row.completion_ids)].tolist()) for index, row in enumerate(rows)
        ]

    def score_packed(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        """See `contracts.Packing`."""
        return self._in_layout("packed").score(rows, temperature)

    def gradients_packed(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        """See `contracts.Packing`."""
        return self._in_layout("packed").gradients(rows, micro_batches)

    def _in_layout(self, layout: Literal["padded", "packed"]) -> ReferenceComponents:
        return ReferenceComponents(replace(self.cell, layout=layout))

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> list[Sampled]:
        """See `contracts.Sampler`."""
        params = SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            stop_token_ids=(1,),
        )
        engine = TorchGenerator(tiny_model(), PAD_ID)
        return [
            Sampled(
                prompt_ids=row.prompt_ids, ids=row.ids, logprobs=row.logprobs, finish_reason=row.finish_reason
            )
            for row in engine.generate(prompts, params, torch.Generator().manual_seed(seed))
        ]

    def _score(self, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
        mask_BT = batch.mask_BT
        if self.cell.layout == "packed":
            longest = int(batch.attention_mask_BS.sum(1).max())
            packed = pack_batch(batch, pack_length=2 * longest, pad_token_id=PAD_ID)
            states_PSD = hidden_states(
                packed.input_ids_PS, packed.attention_mask_P1SS(), packed.position_ids_PS
            )
            if self.cell.scoring == "chunked":
                states_BSD = packed.unpack(states_PSD, batch.input_ids_BS.shape[1])
                return self._score_chunked(states_BSD, batch, batch.prompt_lens_B, temperature)
            logits_PSV = states_PSD @ head_weight().T
            return compute_logprobs_packed(
                logits_PSV, packed, batch.completion_ids_BT, temperature=temperature, mask_BT=mask_BT
            )
        states_BSD = hidden_states(batch.input_ids_BS, batch.attention_mask_BS, batch.position_ids_BS)
        starts_B = batch.completion_starts_B
        if self.cell.scoring == "chunked":
            return self._score_chunked(states_BSD, batch, starts_B, temperature)
        logits_BSV = states_BSD @ head_weight().T
        return compute_logprobs(
            logits_BSV, batch.completion_ids_BT, starts_B, temperature=temperature, mask_BT=mask_BT
        )

    def _score_chunked(
        self, states_BSD: Tensor, batch: Batch, starts_B: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Score with tiles that divide neither the vocabulary nor the tokens."""
        return compute_logprobs_chunked(
            states_BSD,
            head_weight(),
            batch.completion_ids_BT,
            starts_B,
            temperature=temperature,
            vocab_chunk=16,
            row_chunk=5,
            mask_BT=batch.mask_BT,
        )
