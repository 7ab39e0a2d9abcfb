"""NeMo RL's `ClippedPGLossFn` with the options that recipes choose among, from whichever checkout is on the path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.values import ValueInputs, ValueSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import LossInputs, LossSpec
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.nemo_rl.parts import part

MULTIPLIED = KnownFailure(
    "masked_mean multiplies by the mask: NaN in padding comes through",
    finding="NeMo RL: NaN in padding and the losses",
)


class ClippedLoss(KnowsFailures):
    """The mean over tokens, clipped at 0.2 and 0.28, and at 3 for negative advantages; without a reference."""

    facts = StackFacts(epsilon=1e-8)
    known_failures: ClassVar[Sequence[KnownFailure]] = (MULTIPLIED.of("R3.loss/content of masked positions"),)
    loss_spec = LossSpec(ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=3.0)
    options: ClassVar[Mapping[str, Any]] = {"ratio_clip_c": 3.0}

    def __init__(self) -> None:
        """Find the loss and its batches."""
        losses = part("algorithms.loss.loss_functions")
        self.batch_class = part("distributed.batched_data_dict").BatchedDataDict
        spec = self.loss_spec
        configured = losses.ClippedPGLossConfig(
            ratio_clip_min=spec.ratio_clip_min,
            ratio_clip_max=spec.ratio_clip_max,
            reference_policy_kl_penalty=spec.kl_penalty,
            kl_input_clamp_value=None,
            kl_output_clamp_value=None,
            **self.options,
        )
        self.compute = losses.ClippedPGLossFn(configured)

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        """Put a column before the first token: the library drops what is never predicted."""
        mask = inputs.mask_BT
        data = {
            "prev_logprobs": inputs.old_logprobs_BT,
            "generation_logprobs": inputs.sampling_logprobs_BT,
            "reference_policy_logprobs": inputs.ref_logprobs_BT,
            "advantages": inputs.advantages_B[:, None].expand_as(mask),
            "token_mask": mask,
        }
        shifted = {name: torch.nn.functional.pad(value, (1, 0)) for name, value in data.items()}
        batch = self.batch_class({**shifted, "sample_mask": (mask.sum(1) > 0).to(mask.dtype)})
        loss: Tensor = self.compute(
            inputs.logprobs_BT,
            batch,
            torch.tensor(inputs.global_valid_seqs, dtype=mask.dtype),
            torch.tensor(inputs.global_valid_tokens, dtype=mask.dtype),
        )[0]
        return loss


class ReferenceLoss(ClippedLoss):
    """With k3 to the reference; its weight of value 1 adds the gradient of sampling, which makes it k2's."""

    loss_spec = LossSpec(ratio_clip_min=0.2, ratio_clip_max=0.28, kl_penalty=0.1, kl_gradient="k2")
    options: ClassVar[Mapping[str, Any]] = {}


class SequenceLoss(ClippedLoss):
    """The mean over rows of the mean over a row's tokens."""

    loss_spec = LossSpec(ratio_clip_min=0.2, ratio_clip_max=0.28, reduction="sequence")
    options: ClassVar[Mapping[str, Any]] = {"token_level_loss": False}


class GSPOLoss(ClippedLoss):
    """Ratios of whole sequences."""

    loss_spec = LossSpec(kind="gspo", ratio_clip_min=0.2, ratio_clip_max=0.28, reduction="sequence")
    options: ClassVar[Mapping[str, Any]] = {
        "token_level_loss": False,
        "sequence_level_importance_ratios": True,
    }


class CISPOLoss(ClippedLoss):
    """Clipped ratios as weights."""

    loss_spec = LossSpec(kind="cispo", ratio_clip_min=0.2, ratio_clip_max=0.28)
    options: ClassVar[Mapping[str, Any]] = {"use_cispo": True}


class TruncatedLoss(ClippedLoss):
    """Importance weights between sampler and trainer, at most 2."""

    loss_spec = LossSpec(importance_sampling="truncated", importance_sampling_max=2.0)
    options: ClassVar[Mapping[str, Any]] = {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_type": "tis",
        "truncated_importance_sampling_ratio": 2.0,
    }


class IcePopLoss(ClippedLoss):
    """Tokens left out whose weight between sampler and trainer is below 0.5 or above 2."""

    loss_spec = LossSpec(
        importance_sampling="masked", importance_sampling_min=0.5, importance_sampling_max=2.0
    )
    options: ClassVar[Mapping[str, Any]] = {
        "use_importance_sampling_correction": True,
        "truncated_importance_sampling_type": "icepop",
        "truncated_importance_sampling_ratio": 2.0,
        "truncated_importance_sampling_ratio_min": 0.5,
    }


class ClippedValueLoss(KnowsFailures):
    """`MseValueLossFn` with PPO's clip."""

    facts = StackFacts(epsilon=1e-8)
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        MULTIPLIED.of("R3.value/content of masked positions"),
    )
    value_spec = ValueSpec(clip=0.2)

    def __init__(self) -> None:
        """Find the loss and its batches."""
        losses = part("algorithms.loss.loss_functions")
        self.batch_class = part("distributed.batched_data_dict").BatchedDataDict
        self.compute = losses.MseValueLossFn(losses.MseValueLossConfig(cliprange=self.value_spec.clip))

    def value_loss(self, inputs: ValueInputs) -> Tensor:
        mask = inputs.mask_BT
        batch = self.batch_class(
            {
                "token_mask": mask,
                "sample_mask": (mask.sum(1) > 0).to(mask.dtype),
                "returns": inputs.returns_BT,
                "values": inputs.old_values_BT,
            }
        )
        loss: Tensor = self.compute(
            inputs.values_BT, batch, inputs.global_valid_seqs, inputs.global_valid_tokens
        )[0]
        return loss
