"""refrl's pure formulas, offered to the relations under one cell of its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from refrl.algorithms.advantages import compute_advantages
from refrl.algorithms.batching import Batch
from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.filters import groups_with_spread
from refrl.algorithms.kl import KLKind, kl_estimate
from refrl.algorithms.losses import policy_loss
from refrl.algorithms.metrics import merge_metrics
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.schedule import Schedule, make_schedule
from refrl.config import AdvantageConfig, LossConfig
from seatrial.relations.records import AdvantageSpec, LossInputs, LossSpec


@dataclass(frozen=True)
class Cell:
    """One combination of options."""

    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    layout: Literal["padded", "packed"] = "padded"
    scoring: Literal["plain", "chunked"] = "plain"
    padding_side: Literal["right", "left"] = "right"


class ReferenceFormulas:
    """The components that need neither rows nor a model."""

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

    def keep_rows(self, rewards_B: Tensor, prompt_ids_B: Tensor) -> Tensor:
        """See `contracts_batches.GroupFilter`."""
        return groups_with_spread(rewards_B, prompt_ids_B)

    def make_schedule(
        self,
        *,
        prompts_per_step: int,
        prompts_per_forward_backward: int,
        prompts_per_sync: int | None,
        prompts_per_reference_sync: int | None,
        max_staleness: int,
    ) -> Schedule:
        """See `contracts_batches.StalenessSchedule`."""
        return make_schedule(
            prompts_per_step=prompts_per_step,
            prompts_per_forward_backward=prompts_per_forward_backward,
            prompts_per_sync=prompts_per_sync,
            prompts_per_reference_sync=prompts_per_reference_sync,
            max_staleness=max_staleness,
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
