"""verl's policy loss, KL estimators and advantages, whichever release is installed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.values import ValueInputs, ValueSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import AdvantageSpec, LossInputs, LossSpec
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, between, since
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.registries import CORE, penalties

GROUP_OF_ONE = KnownFailure(
    "a group of one row has no baseline: its reward is its advantage, as the code says",
    finding="verl: a group of one row",
)
NOTHING_TRAINS = KnownFailure(
    "a micro-batch without a training token is divided by 0 where it is given no count of the batch",
    finding="verl: a micro-batch without a training token",
    releases=since("verl", "0.7"),
)
MULTIPLIED = KnownFailure(
    "the loss is multiplied by the mask: NaN in padding comes through",
    finding="verl: NaN in padding and means over sequences",
)
LEFT_OUT = KnownFailure(
    "not refused: left out of the mean over rows", finding="verl: rows without a training token left out"
)
DIVIDED = KnownFailure(
    "a row without a training token is divided by 0 and makes the loss NaN",
    finding="verl: rows without a training token left out",
    releases=before("verl", "0.6.1"),
).of("R18.facts/masked rows leave the loss a number")
SLOPE = KnownFailure(
    "padding is taken out of the loss after its square: NaN there gives a finite loss and a gradient of NaN",
    finding="verl: NaN in padding and the gradient of the value loss",
)


def by_its_mask(compute: Any) -> Any:
    """Return a function that takes its mask as `response_mask`, which was `eos_mask` before 0.3."""
    if "eos_mask" not in inspect.signature(compute).parameters:
        return compute
    return lambda *, response_mask, **more: compute(eos_mask=response_mask, **more)


class VerlLoss(KnowsFailures):
    """`compute_policy_loss` with the mean over tokens.

    It gives the mean over a micro-batch; the adapter weights that by the micro-batch's part of all tokens.
    """

    facts = StackFacts(epsilon=1e-8)
    loss_spec = LossSpec(ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=3.0)

    mode = "token-mean"
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        NOTHING_TRAINS.of("R1.loss/losses add up, in micro-batches of one row"),
    )

    def __init__(self) -> None:
        """Find the loss."""
        self.compute = find_name(
            "verl", [f"{CORE}:compute_policy_loss", f"{CORE}:compute_policy_loss_vanilla"]
        )
        self.has_one_bound = "cliprange_low" not in inspect.signature(self.compute).parameters
        if self.has_one_bound:
            if self.mode != "token-mean":
                raise Gone(f"the loss of verl {release('verl')} is a mean over tokens alone")
            self.loss_spec = replace(self.loss_spec, ratio_clip_max=0.2, ratio_clip_c=None)
        self.compute = by_its_mask(self.compute)

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        mask = inputs.mask_BT
        T = mask.shape[1]
        more: dict[str, Any] = {
            "cliprange_low": self.loss_spec.ratio_clip_min,
            "cliprange_high": self.loss_spec.ratio_clip_max,
            "clip_ratio_c": self.loss_spec.ratio_clip_c,
            "loss_agg_mode": self.mode,
        }
        loss: Tensor = self.compute(
            old_log_prob=inputs.old_logprobs_BT,
            log_prob=inputs.logprobs_BT,
            advantages=inputs.advantages_B.unsqueeze(1).expand(-1, T),
            response_mask=mask,
            cliprange=0.2,
            **({} if self.has_one_bound else more),
        )[0]
        return loss * self._share(inputs)

    def _share(self, inputs: LossInputs) -> float:
        """Return the part of the batch's mean that a micro-batch's own mean is."""
        return float(inputs.mask_BT.sum()) / inputs.global_valid_tokens


class VerlSequenceLoss(VerlLoss):
    """`compute_policy_loss` with the mean over rows of the mean over a row's tokens."""

    facts = StackFacts(masked_rows=False, epsilon=1e-8)
    loss_spec = LossSpec(ratio_clip_min=0.2, ratio_clip_max=0.28, ratio_clip_c=3.0, reduction="sequence")
    mode = "seq-mean-token-mean"
    known_failures = (
        MULTIPLIED.of("R3.loss/content of masked positions"),
        LEFT_OUT.of("R18.facts/masked rows are refused"),
        DIVIDED,
    )

    def _share(self, inputs: LossInputs) -> float:
        return inputs.mask_BT.shape[0] / inputs.global_valid_seqs


class VerlValueLoss(KnowsFailures):
    """`compute_value_loss`; see `VerlLoss` for the weight of a micro-batch."""

    facts = StackFacts(epsilon=1e-8)
    value_spec = ValueSpec(clip=0.2)
    known_failures: ClassVar[Sequence[KnownFailure]] = (SLOPE.of("R3.value/content of masked positions"),)

    def __init__(self) -> None:
        """Find the loss."""
        self.compute = by_its_mask(find_name("verl", [f"{CORE}:compute_value_loss"]))

    def value_loss(self, inputs: ValueInputs) -> Tensor:
        loss: Tensor = self.compute(
            vpreds=inputs.values_BT,
            returns=inputs.returns_BT,
            values=inputs.old_values_BT,
            response_mask=inputs.mask_BT,
            cliprange_value=self.value_spec.clip,
        )[0]
        return loss * float(inputs.mask_BT.sum()) / inputs.global_valid_tokens


KL_KINDS: Mapping[str, str] = {
    "kl": "k1",
    "k1": "k1",
    "abs": "abs",
    "mse": "k2",
    "k2": "k2",
    "low_var_kl": "k3",
    "k3": "k3",
}
"""What each kind of `kl_penalty` estimates with; a `+` at its end takes the gradient of k2."""
NOT_STRIPPED = KnownFailure(
    "a kind with `+` at its end raises NotImplementedError",
    finding="verl: KL estimates with the gradient of k2",
    releases=between("verl", "0.6", "0.8"),
)


class VerlKL(KnowsFailures):
    """`kl_penalty`."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        NOT_STRIPPED.of("R12.kl/value and gradient by the stack's own names"),
    )

    def __init__(self) -> None:
        """Find the estimators, and the kinds that the release has."""
        self.compute = find_name("verl", [f"{CORE}:kl_penalty"])
        kinds = {name: KL_KINDS[name] for name in penalties() if name in KL_KINDS}
        self.kl_names = {name: (kind, kind) for name, kind in kinds.items()}
        if hasattr(find_name("verl", ["verl.trainer.ppo:core_algos"]), "kl_penalty_forward"):
            self.kl_names |= {f"{name}+": (kind, "k2") for name, kind in kinds.items()}

    def kl_estimate(self, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: str) -> Tensor:
        own = kind if kind in self.kl_names else {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}[kind]
        estimate: Tensor = self.compute(logprobs_BT, ref_logprobs_BT, own)
        return estimate


class VerlAdvantages(KnowsFailures):
    """`compute_grpo_outcome_advantage`."""

    advantage_spec = AdvantageSpec(epsilon=1e-6)
    function = "compute_grpo_outcome_advantage"
    known_failures: ClassVar[Sequence[KnownFailure]] = (GROUP_OF_ONE.of("R17.advantages"),)

    def __init__(self) -> None:
        """Find the estimator."""
        self.compute = by_its_mask(find_name("verl", [f"{CORE}:{self.function}"]))

    def advantages(self, rewards_B: Tensor, prompt_ids_B: Tensor) -> Tensor:
        """Give each row its reward at one token, in a row of two."""
        rewards_BT = torch.stack([torch.zeros_like(rewards_B), rewards_B], dim=1)
        given: tuple[Any, ...] = self.compute(
            token_level_rewards=rewards_BT,
            response_mask=torch.ones_like(rewards_BT),
            index=prompt_ids_B.numpy().astype(object),
            epsilon=self.advantage_spec.epsilon,
        )
        advantages_B: Tensor = given[0][:, 1]
        return advantages_B


class VerlRLOO(VerlAdvantages):
    """`compute_rloo_outcome_advantage`."""

    advantage_spec = AdvantageSpec(estimator="rloo", scale="none")
    function = "compute_rloo_outcome_advantage"


ADAPTERS: dict[str, type[Any]] = {
    "policy-loss": VerlLoss,
    "policy-loss-of-rows": VerlSequenceLoss,
    "value-loss": VerlValueLoss,
    "kl": VerlKL,
    "grpo-advantages": VerlAdvantages,
    "rloo-advantages": VerlRLOO,
}
