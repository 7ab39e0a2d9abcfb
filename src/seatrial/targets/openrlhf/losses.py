"""OpenRLHF's policy losses, whichever release is installed; its package is not imported whole, which needs a GPU."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal

from torch import Tensor

from seatrial.relations.contracts.values import ValueInputs, ValueSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import LossInputs, LossSpec
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, release


def _takes_no_counts(adapter: Any) -> bool:
    return not adapter.takes_counts


MULTIPLIED = KnownFailure(
    "the loss is multiplied by the mask: NaN in padding comes through",
    finding="OpenRLHF: NaN in padding and the losses",
)
NOTHING_TRAINS = KnownFailure(
    "a micro-batch without a training token is a mean over none: 0 / 0 is NaN",
    finding="OpenRLHF: a micro-batch without a training token",
    releases=_takes_no_counts,
)
EMPTY_ROW = KnownFailure(
    "a row without a training token is divided by 0 and makes the loss NaN",
    finding="OpenRLHF: a row without a training token in GSPO",
    releases=_takes_no_counts,
)


def loss_module() -> Any:
    """Return `openrlhf.models.loss` without what its packages import: flash-attn, deepspeed.

    Raises:
        Gone: the package has no such module.
    """
    found = PathFinder.find_spec("openrlhf")
    if found is None or found.origin is None:
        raise Gone(f"openrlhf {release('openrlhf')} cannot be found")
    root = Path(found.origin).parent
    if not (root / "models" / "loss.py").is_file():
        raise Gone(f"openrlhf {release('openrlhf')} has no openrlhf.models.loss")
    for name, folder in (("openrlhf", root), ("openrlhf.models", root / "models")):
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
    if PathFinder.find_spec("deepspeed") is None:
        # Imported with the losses and used by none of them; Transformers looks up its spec.
        stand_in = ModuleType("deepspeed")
        stand_in.__spec__ = ModuleSpec("deepspeed", None)
        sys.modules.setdefault("deepspeed", stand_in)
    return importlib.import_module("openrlhf.models.loss")


class OpenRLHFLoss(KnowsFailures):
    """`PolicyLoss` of PPO with the mean over tokens.

    It is given the counts of the batch where a release takes them; else a micro-batch's mean is weighted by its part.
    """

    facts = StackFacts()
    loss_spec = LossSpec()
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        NOTHING_TRAINS.of("R1.loss/losses add up, in micro-batches of one row"),
        MULTIPLIED.of("R3.loss/content of masked positions"),
    )
    options: dict[str, Any] = {"policy_loss_type": "ppo", "token_level_loss": True}  # noqa: RUF012  read only
    ranks_reduce: Literal["mean", "sum"] = "mean"

    def __init__(self) -> None:
        """Find the loss, and whether it has the options."""
        self.loss_class = loss_module().PolicyLoss
        missing = sorted(set(self.options) - set(inspect.signature(self.loss_class.__init__).parameters))
        if missing:
            raise Gone(f"PolicyLoss of openrlhf {release('openrlhf')} has no {', '.join(missing)}")
        self.corrects = "is_correction_level" in self.options
        self.takes_counts = "batch_num_tokens" in inspect.signature(self.loss_class.forward).parameters
        if self.takes_counts:
            # Each row's tokens have an epsilon of 1e-8 added: much of a row of few.
            self.facts = StackFacts(epsilon=1e-7 if self.loss_spec.reduction == "sequence" else 1e-8)

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        mask = inputs.mask_BT
        clip = {"clip_eps_low": self.loss_spec.ratio_clip_min, "clip_eps_high": self.loss_spec.ratio_clip_max}
        advantages_BT = inputs.advantages_B.unsqueeze(1).expand_as(mask)
        counts = {
            "batch_num_tokens": inputs.global_valid_tokens,
            "global_batch_size": inputs.global_valid_seqs,
        }
        loss: Tensor = self.loss_class(**clip, **self.options)(
            inputs.logprobs_BT,
            inputs.old_logprobs_BT,
            advantages_BT,
            action_mask=mask,
            **({"rollout_log_probs": inputs.sampling_logprobs_BT} if self.corrects else {}),
            **(counts if self.takes_counts else {}),
        )[0]
        return loss if self.takes_counts else loss * self._share(inputs)

    def ranked_losses(self, ranks: Sequence[Sequence[LossInputs]]) -> list[list[Tensor]]:
        """Multiply by the number of ranks, as the trainer does: DeepSpeed averages gradients over ranks."""
        if not self.takes_counts:
            raise NotServed(f"openrlhf {release('openrlhf')} takes no counts of the whole batch")
        return [[self.policy_loss(part) * len(ranks) for part in rank] for rank in ranks]

    def _share(self, inputs: LossInputs) -> float:
        """Return the part of the batch's mean that a micro-batch's own mean is."""
        if self.loss_spec.reduction == "token":
            return float(inputs.mask_BT.sum()) / inputs.global_valid_tokens
        return inputs.mask_BT.shape[0] / inputs.global_valid_seqs


class OpenRLHFGSPO(OpenRLHFLoss):
    """`PolicyLoss` of GSPO (Zheng et al. 2025, equation 5): the mean over sequences."""

    facts = StackFacts(masked_rows=False)
    known_failures = (
        MULTIPLIED.of("R3.loss/content of masked positions"),
        EMPTY_ROW.of("R18.facts/masked rows are refused", "R18.facts/masked rows leave the loss a number"),
    )
    loss_spec = LossSpec(kind="gspo", reduction="sequence")
    options = {"policy_loss_type": "gspo"}  # noqa: RUF012  read only


class OpenRLHFSequenceLoss(OpenRLHFLoss):
    """`PolicyLoss` of PPO with the mean over rows of the mean over a row's tokens."""

    facts = StackFacts(masked_rows=False)
    known_failures = (
        MULTIPLIED.of("R3.loss/content of masked positions"),
        EMPTY_ROW.of("R18.facts/masked rows are refused", "R18.facts/masked rows leave the loss a number"),
    )
    loss_spec = LossSpec(reduction="sequence")
    options = {"policy_loss_type": "ppo", "token_level_loss": False}  # noqa: RUF012  read only


class OpenRLHFDualClip(OpenRLHFLoss):
    """`PolicyLoss` of PPO with a second clip for negative advantages, and two unequal ones."""

    loss_spec = LossSpec(ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=3.0)
    options = {**OpenRLHFLoss.options, "dual_clip": 3.0}  # noqa: RUF012  read only


class OpenRLHFMaskedTokens(OpenRLHFLoss):
    """With weights between sampler and trainer; tokens left out whose weight is below 0.5 or above 2."""

    loss_spec = LossSpec(
        importance_sampling="masked", importance_sampling_min=0.5, importance_sampling_max=2.0
    )
    options = {  # noqa: RUF012  read only
        **OpenRLHFLoss.options,
        "is_correction_level": "token",
        "is_correction_mode": "mask",
        "is_correction_threshold": (0.5, 2.0),
    }


class OpenRLHFTruncated(OpenRLHFLoss):
    """With weights between sampler and trainer of at most 2."""

    loss_spec = LossSpec(importance_sampling="truncated", importance_sampling_max=2.0)
    options = {  # noqa: RUF012  read only
        **OpenRLHFLoss.options,
        "is_correction_level": "token",
        "is_correction_mode": "clip",
        "is_correction_threshold": (0.0, 2.0),
    }


class OpenRLHFValueLoss(KnowsFailures):
    """`ValueLoss` with the mean over tokens; see `OpenRLHFLoss` for the counts."""

    facts = StackFacts()
    value_spec = ValueSpec(clip=0.2)
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        MULTIPLIED.of("R3.value/content of masked positions"),
    )

    def __init__(self) -> None:
        """Find the loss, and its arguments about the batch."""
        self.loss_class = loss_module().ValueLoss
        self.takes_counts = "batch_num_tokens" in inspect.signature(self.loss_class.forward).parameters
        self.facts = StackFacts(epsilon=1e-8) if self.takes_counts else StackFacts()

    def value_loss(self, inputs: ValueInputs) -> Tensor:
        counts = {
            "batch_num_tokens": inputs.global_valid_tokens,
            "global_batch_size": inputs.global_valid_seqs,
        }
        loss: Tensor = self.loss_class(clip_eps=self.value_spec.clip, token_level_loss=True)(
            inputs.values_BT,
            inputs.old_values_BT,
            inputs.returns_BT,
            action_mask=inputs.mask_BT,
            **(counts if self.takes_counts else {}),
        )
        return loss if self.takes_counts else loss * float(inputs.mask_BT.sum()) / inputs.global_valid_tokens


ADAPTERS: dict[str, type[Any]] = {
    "ppo-loss": OpenRLHFLoss,
    "ppo-loss-of-rows": OpenRLHFSequenceLoss,
    "ppo-loss-dual-clip": OpenRLHFDualClip,
    "ppo-loss-masked": OpenRLHFMaskedTokens,
    "ppo-loss-truncated": OpenRLHFTruncated,
    "gspo-loss": OpenRLHFGSPO,
    "value-loss": OpenRLHFValueLoss,
}
