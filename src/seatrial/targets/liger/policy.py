"""Liger's chunked policy losses; see `contracts.PolicyLoss`.

The loss takes hidden states and a head. The adapter makes them of log-probabilities: a head of two ids that copies a
hidden state of width two, whose logit of the chosen id gives the log-probability.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import LossInputs, LossSpec
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release

ROW_LENGTH = 8
"""By which `dr_grpo` divides each row."""
MULTIPLIED = KnownFailure(
    "the loss is multiplied by the mask: NaN in padding comes through",
    finding="Liger: NaN in padding and the policy losses",
)


class LigerPolicyLoss(KnowsFailures):
    """`LigerFusedLinearGRPOLoss` as DAPO: the mean over the tokens of the whole batch."""

    facts = StackFacts(dtype="float32")
    loss_spec = LossSpec(ratio_clip_min=0.2, ratio_clip_max=0.28, kl_penalty=0.1)
    options: ClassVar[Mapping[str, Any]] = {"loss_type": "dapo"}
    known_failures: ClassVar[Sequence[KnownFailure]] = (MULTIPLIED.of("R3.loss/content of masked positions"),)

    def __init__(self) -> None:
        """Find the loss, and whether it has the options."""
        self.loss_class = find_name("liger-kernel", ["liger_kernel.chunked_loss:LigerFusedLinearGRPOLoss"])
        known = inspect.signature(self.loss_class.__init__).parameters
        missing = sorted(set(self.options) - set(known))
        if missing:
            raise Gone(f"the loss of liger-kernel {release('liger-kernel')} has no {', '.join(missing)}")
        takes_counts = "num_items_in_batch" in inspect.signature(self.loss_class.forward).parameters
        if self.counts_tokens and not takes_counts:
            raise Gone(f"the loss of liger-kernel {release('liger-kernel')} takes no count of the batch")

    @property
    def counts_tokens(self) -> bool:
        """Whether the loss is divided by the tokens of the whole batch."""
        return self.loss_spec.reduction == "token"

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        spec = self.loss_spec
        # A model's hidden states are finite where nothing trains too.
        logprobs_BT = torch.where(inputs.mask_BT.bool(), inputs.logprobs_BT, -1.0)
        if (logprobs_BT >= 0).any():
            raise NotServed("no hidden state gives such a log-probability")
        logits_BT = logprobs_BT - torch.log1p(-logprobs_BT.exp())
        hidden_BT2 = torch.stack([logits_BT, torch.zeros_like(logits_BT)], dim=-1)
        made = self.loss_class(
            beta=spec.kl_penalty,
            compiled=False,
            use_ref_model=True,
            **{"epsilon_low": spec.ratio_clip_min, "epsilon_high": spec.ratio_clip_max, **self.options},
        )
        found = made(
            hidden_BT2,
            torch.eye(2, dtype=hidden_BT2.dtype),
            torch.zeros_like(inputs.mask_BT, dtype=torch.long),
            inputs.mask_BT,
            inputs.advantages_B,
            ref_per_token_logps=inputs.ref_logprobs_BT,
            old_per_token_logps=inputs.old_logprobs_BT,
            **(
                {"num_items_in_batch": torch.tensor(inputs.global_valid_tokens)} if self.counts_tokens else {}
            ),
        )
        loss: Tensor = found[0] if isinstance(found, tuple) else found
        return loss if self.counts_tokens else loss * len(inputs.mask_BT) / inputs.global_valid_seqs


class LigerGRPO(LigerPolicyLoss):
    """The mean over rows of the mean over a row's tokens."""

    loss_spec = LossSpec(ratio_clip_min=0.2, ratio_clip_max=0.28, kl_penalty=0.1, reduction="sequence")
    options: ClassVar[Mapping[str, Any]] = {"loss_type": "grpo"}


class LigerDrGRPO(LigerPolicyLoss):
    """The mean over rows of the sum over a row's tokens, divided by a fixed length."""

    loss_spec = LossSpec(
        ratio_clip_min=0.2, ratio_clip_max=0.28, reduction="fixed_length", fixed_length=ROW_LENGTH
    )
    options: ClassVar[Mapping[str, Any]] = {"loss_type": "dr_grpo", "max_completion_length": ROW_LENGTH}


class LigerGSPO(LigerPolicyLoss):
    """Ratios of whole rows."""

    loss_spec = LossSpec(kind="gspo", ratio_clip_min=0.2, ratio_clip_max=0.28, reduction="sequence")
    options: ClassVar[Mapping[str, Any]] = {"loss_type": "grpo", "importance_sampling_level": "sequence"}


class LigerCISPO(LigerPolicyLoss):
    """Ratios of at most 1.5 as weights."""

    loss_spec = LossSpec(kind="cispo", ratio_clip_min=1.0, ratio_clip_max=0.5)
    options: ClassVar[Mapping[str, Any]] = {"loss_type": "cispo", "epsilon_high": 1.5}


class LigerSAPO(LigerPolicyLoss):
    """Ratios behind a soft gate."""

    loss_spec = LossSpec(
        kind="sapo", parameters={"tau_positive": 1.0, "tau_negative": 1.4}, reduction="sequence"
    )
    options: ClassVar[Mapping[str, Any]] = {
        "loss_type": "sapo",
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.4,
    }


ADAPTERS: dict[str, type[Any]] = {
    "policy-dapo": LigerPolicyLoss,
    "policy-grpo": LigerGRPO,
    "policy-dr-grpo": LigerDrGRPO,
    "policy-gspo": LigerGSPO,
    "policy-cispo": LigerCISPO,
    "policy-sapo": LigerSAPO,
}
