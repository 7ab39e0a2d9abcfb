"""refrl's components, offered to the relations under one cell of its configuration.

Rows become batches by refrl's own `make_batch`; the model is a tiny Qwen3 that refrl makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.kl import KLKind, kl_estimate
from refrl.algorithms.losses import policy_loss
from refrl.algorithms.metrics import merge_metrics
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.packing import compute_logprobs_packed, pack_batch
from refrl.config import AdvantageConfig, LossConfig
from refrl.generation.base import SamplingParams
from refrl.generation.torch_engine import TorchGenerator
from seatrial.relations.records import (
    AdvantageSpec,
    BuiltBatch,
    LossInputs,
    LossSpec,
    Row,
    Sampled,
    StepResult,
)
from seatrial.targets.reference_model import PAD_ID, head_weight, hidden_states, tiny_model

TEMPERATURE = 0.7


@dataclass(frozen=True)
class Cell:
    """One combination of options."""

    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    layout: Literal["padded", "packed"] = "padded"
    scoring: Literal["plain", "chunked"] = "plain"
    padding_side: Literal["right", "left"] = "right"


class ReferenceComponents:
    """An adapter in the sense of `seatrial.relations.contracts`."""

    vocab_size = 37

    def __init__(self, cell: Cell | None = None) -> None:
        """Choose the cell of the configuration."""
        self.cell = cell or Cell()
        loss, advantage = self.cell.loss, self.cell.advantage
        self.loss_spec = LossSpec(
            kind=loss.kind,
            ratio_clip_min=loss.ratio_clip_min,
            ratio_clip_max=loss.ratio_clip_max,
            ratio_clip_c=loss.ratio_clip_c,
            reduction=loss.reduction,
            fixed_length=loss.fixed_length,
            kl_penalty=loss.reference_policy_kl_penalty if loss.kl_in == "loss" else 0.0,
            kl_type=loss.reference_policy_kl_type,
            kl_gradient=loss.reference_policy_kl_gradient,
            entropy_coefficient=loss.entropy_coefficient,
            importance_sampling=loss.importance_sampling,
            importance_sampling_max=loss.importance_sampling_max,
            importance_sampling_min=loss.importance_sampling_min,
        )
        self.advantage_spec = AdvantageSpec(
            estimator=advantage.estimator,
            scale=advantage.resolved_scale,
            epsilon=advantage.epsilon,
            unbiased=True,
        )

    def advantages(self, rewards_B: Tensor, prompt_ids_B: Tensor) -> Tensor:
        """See `contracts.Advantages`."""
        return compute_advantages(rewards_B, prompt_ids_B, self.cell.advantage)

    def kl_estimate(self, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: KLKind) -> Tensor:
        """See `contracts.KLEstimate`."""
        return kl_estimate(logprobs_BT, ref_logprobs_BT, kind)

    def token_logprobs(
        self, logits_BSV: Tensor, completion_ids_BT: Tensor, prompt_lens_B: Tensor, temperature: float
    ) -> Tensor:
        """See `contracts.TokenLogprobs`; chunked scoring takes the logits as hidden states of an identity head."""
        if self.cell.scoring == "chunked":
            head_VD = torch.eye(logits_BSV.shape[-1])
            return compute_logprobs_chunked(
                logits_BSV,
                head_VD,
                completion_ids_BT,
                prompt_lens_B,
                temperature=temperature,
                vocab_chunk=16,
                row_chunk=3,
            )[0]
        return compute_logprobs(logits_BSV, completion_ids_BT, prompt_lens_B, temperature=temperature)[0]

    def fused_logprobs(
        self,
        hidden_BSD: Tensor,
        head_VD: Tensor,
        completion_ids_BT: Tensor,
        prompt_lens_B: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """See `contracts.FusedLogprobs`; small chunks, so that every edge is met."""
        return compute_logprobs_chunked(
            hidden_BSD,
            head_VD,
            completion_ids_BT,
            prompt_lens_B,
            temperature=temperature,
            vocab_chunk=16,
            row_chunk=3,
            keep_bytes=200,
        )

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        """See `contracts.PolicyLoss`."""
        return self._loss_and_metrics(inputs)[0]

    def metrics(self, inputs: Sequence[LossInputs]) -> Mapping[str, float]:
        """See `contracts.Metrics`."""
        return merge_metrics([self._loss_and_metrics(part)[1] for part in inputs])

    def make_batch(self, rows: Sequence[Row]) -> BuiltBatch:
        """See `contracts.BatchBuilder`."""
        batch = self._batch(rows)
        loss_mask_BS = torch.zeros(batch.input_ids_BS.shape)
        logprobs_BS = torch.zeros(batch.input_ids_BS.shape)
        for row, start in enumerate(batch.completion_starts_B.tolist()):
            width = min(batch.mask_BT.shape[1], loss_mask_BS.shape[1] - start)
            loss_mask_BS[row, start : start + width] = batch.mask_BT[row, :width]
            logprobs_BS[row, start : start + width] = batch.sampling_logprobs_BT[row, :width]
        cut_B = batch.num_truncated_tokens_B
        return BuiltBatch(
            input_ids_BS=batch.input_ids_BS,
            attention_mask_BS=batch.attention_mask_BS,
            loss_mask_BS=loss_mask_BS,
            sampling_logprobs_BS=logprobs_BS,
            rewards_B=batch.rewards_B,
            prompt_ids_B=batch.group_ids_B,
            num_cut_tokens=0 if cut_B is None else int(cut_B.sum()),
        )

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

    def _batch(self, rows: Sequence[Row]) -> Batch:
        batch = make_batch(
            [
                TrainSample(
                    prompt_ids=row.prompt_ids,
                    completion_ids=row.completion_ids,
                    sampling_logprobs=row.sampling_logprobs,
                    reward=row.reward,
                    group_id=row.prompt_id,
                    completion_mask=row.completion_mask,
                    advantage=row.advantage,
                )
                for row in rows
            ],
            pad_token_id=PAD_ID,
            padding_side=self.cell.padding_side,
        )
        T = batch.completion_ids_BT.shape[1]
        batch.old_logprobs_BT = _padded([row.old_logprobs for row in rows], T)
        batch.ref_logprobs_BT = _padded([row.ref_logprobs for row in rows], T)
        return batch

    def _score(self, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
        model = tiny_model()
        mask_BT = batch.mask_BT
        if self.cell.layout == "packed":
            longest = int(batch.attention_mask_BS.sum(1).max())
            packed = pack_batch(batch, pack_length=2 * longest, pad_token_id=PAD_ID)
            logits_PSV = model(
                input_ids=packed.input_ids_PS,
                position_ids=packed.position_ids_PS,
                attention_mask=packed.attention_mask_P1SS(),
                use_cache=False,
            ).logits
            return compute_logprobs_packed(
                logits_PSV, packed, batch.completion_ids_BT, temperature=temperature, mask_BT=mask_BT
            )
        states_BSD = hidden_states(batch.input_ids_BS, batch.attention_mask_BS, batch.position_ids_BS)
        head_VD = head_weight()
        starts_B = batch.completion_starts_B
        if self.cell.scoring == "chunked":
            return compute_logprobs_chunked(
                states_BSD,
                head_VD,
                batch.completion_ids_BT,
                starts_B,
                temperature=temperature,
                vocab_chunk=16,
                row_chunk=5,
                mask_BT=mask_BT,
            )
        logits_BSV = states_BSD @ head_VD.T
        return compute_logprobs(
            logits_BSV, batch.completion_ids_BT, starts_B, temperature=temperature, mask_BT=mask_BT
        )

    def _loss_and_metrics(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        B, T = inputs.mask_BT.shape
        ids_BT = torch.zeros(B, T, dtype=torch.long)
        batch = Batch(
            input_ids_BS=ids_BT,
            attention_mask_BS=torch.ones_like(ids_BT),
            completion_ids_BT=ids_BT,
            mask_BT=inputs.mask_BT,
            prompt_lens_B=torch.ones(B, dtype=torch.long),
            sampling_logprobs_BT=inputs.sampling_logprobs_BT,
            rewards_B=torch.zeros(B),
            group_ids_B=torch.zeros(B, dtype=torch.long),
            advantages_B=inputs.advantages_B,
            old_logprobs_BT=inputs.old_logprobs_BT,
            ref_logprobs_BT=inputs.ref_logprobs_BT,
        )
        return policy_loss(
            inputs.logprobs_BT,
            batch,
            self.cell.loss,
            global_valid_tokens=inputs.global_valid_tokens,
            global_valid_seqs=inputs.global_valid_seqs,
            entropy_BT=inputs.entropy_BT,
        )


def _padded(rows: Sequence[Sequence[float]], T: int) -> Tensor:
    return torch.tensor([[*row, *[0.0] * (T - len(row))] for row in rows])
