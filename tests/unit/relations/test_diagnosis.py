"""The first cause that a verdict names is the fault that was planted in a custom loss or in custom advantages."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from seatrial.relations.diagnosis import cause_of
from seatrial.relations.engine import run_relation
from seatrial.relations.records import AdvantageSpec, LossInputs, LossSpec
from seatrial.relations.registry import all_relations
from seatrial.verdict import Outcome, Verdict

LOW, HIGH, DUAL, KL, ENTROPY = 0.2, 0.28, 3.0, 0.05, 0.01


class Own:
    """A loss and advantages as a user writes them; a fault is one line that differs."""

    loss_spec = LossSpec(
        ratio_clip_min=LOW,
        ratio_clip_max=HIGH,
        ratio_clip_c=DUAL,
        kl_penalty=KL,
        entropy_coefficient=ENTROPY,
    )
    advantage_spec = AdvantageSpec(epsilon=1e-6)

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        """Return the clipped loss with KL and entropy, a mean over the tokens of the whole batch."""
        fault, valid_BT = self.fault, inputs.mask_BT.bool()
        if fault == "mask":
            valid_BT = torch.ones_like(valid_BT)
        logprobs_BT = inputs.logprobs_BT.where(valid_BT, 0.0)
        old_BT = inputs.old_logprobs_BT
        if fault == "stale logprobs":
            old_BT = inputs.sampling_logprobs_BT
        if fault == "old ignored":
            old_BT = inputs.logprobs_BT.detach()
        ratio_BT = (logprobs_BT - old_BT.where(valid_BT, 0.0)).exp()
        advantages_B1 = inputs.advantages_B[:, None] * (-1 if fault == "sign of advantages" else 1)
        loss_BT = -self._clipped(ratio_BT, advantages_B1)
        if fault != "missing KL":
            log_ratio_BT = (inputs.ref_logprobs_BT - inputs.logprobs_BT).where(valid_BT, 0.0)
            k3_BT = log_ratio_BT.exp() - 1 - log_ratio_BT
            loss_BT = loss_BT + KL * (-1 if fault == "sign of KL" else 1) * k3_BT
        if fault != "missing entropy":
            loss_BT = loss_BT - ENTROPY * inputs.entropy_BT.where(valid_BT, 0.0)
        loss = self._reduced(loss_BT.where(valid_BT, 0.0), inputs)
        if fault == "half":
            loss = loss / 2
        if fault == "detached":
            loss = loss.detach()
        return -loss if fault == "sign" else loss

    def _clipped(self, ratio_BT: Tensor, advantages_B1: Tensor) -> Tensor:
        low, high = {
            "missing upper clip": (1 - LOW, None),
            "missing lower clip": (None, 1 + HIGH),
            "swapped clips": (1 - HIGH, 1 + LOW),
            "upper clip of 0.1": (1 - LOW, 1.1),
            "lower clip of 0.1": (0.9, 1 + HIGH),
        }.get(self.fault, (1 - LOW, 1 + HIGH))
        if self.fault == "missing clips":
            clipped_BT = ratio_BT
        else:
            clipped_BT = ratio_BT.clamp(low, high)
        surrogate_BT = torch.minimum(ratio_BT * advantages_B1, clipped_BT * advantages_B1)
        if self.fault == "clip without minimum":
            surrogate_BT = clipped_BT * advantages_B1
        if self.fault == "missing dual clip":
            return surrogate_BT
        dual_BT = torch.maximum(surrogate_BT, DUAL * advantages_B1)
        return torch.where(advantages_B1 < 0, dual_BT, surrogate_BT)

    def _reduced(self, loss_BT: Tensor, inputs: LossInputs) -> Tensor:
        lengths_B = inputs.mask_BT.sum(1).clamp(min=1)
        if self.fault == "wrong reduction":
            return (loss_BT.sum(1) / lengths_B).sum() / max(inputs.global_valid_seqs, 1)
        if self.fault == "wrong reduction of the micro-batch":
            return (loss_BT.sum(1) / lengths_B).sum() / (inputs.mask_BT.sum(1) > 0).sum().clamp(min=1)
        if self.fault == "counts of the micro-batch":
            return loss_BT.sum() / inputs.mask_BT.sum().clamp(min=1)
        if self.fault == "mean over padding":
            return loss_BT.mean()
        return loss_BT.sum() / max(inputs.global_valid_tokens, 1)

    def advantages(self, rewards_B: Tensor, prompt_ids_B: Tensor) -> Tensor:
        """Return each reward minus its group's mean, divided by the group's standard deviation."""
        if self.fault == "no baseline":
            return rewards_B
        advantages_B = torch.zeros_like(rewards_B)
        groups = prompt_ids_B if self.fault != "whole batch" else torch.zeros_like(prompt_ids_B)
        for rows_B in (groups == prompt for prompt in groups.unique()):
            rewards = rewards_B[rows_B] - rewards_B[rows_B][0]
            unbiased = self.fault != "biased deviation"
            scale = rewards.std(unbiased=unbiased) + 1e-6 if len(rewards) > 1 else 1.0
            if self.fault == "missing advantage normalisation":
                scale = 1.0
            advantages_B[rows_B] = (rewards - rewards.mean()) / scale
        return -advantages_B if self.fault == "sign of the estimate" else advantages_B


CAUSES = {
    "missing upper clip": "the upper clip is missing (",
    "missing lower clip": "the lower clip is missing (",
    "missing clips": "both clips are missing (",
    "swapped clips": "the lower and the upper clip are swapped (",
    "upper clip of 0.1": "the upper clip: only tokens above ratio 1",
    "lower clip of 0.1": "the lower clip: only tokens below ratio 1",
    "clip without minimum": "the clip: only tokens that moved against their advantage",
    "missing dual clip": "the dual clip is missing (",
    "wrong reduction": "the reduction is a mean over rows of each row's mean, not a mean over tokens (",
    "wrong reduction of the micro-batch": "the reduction is a mean over rows of each row's mean, not",
    "counts of the micro-batch": "the loss is divided by the counts of the micro-batch",
    "mean over padding": "the reduction is a mean over all positions of the micro-batch",
    "sign": "the sign of the loss is inverted (",
    "sign of advantages": "the sign of the advantages is inverted (",
    "missing KL": "the KL term is missing (",
    "sign of KL": "the sign of the KL term is inverted (",
    "missing entropy": "the entropy bonus is missing (",
    "stale logprobs": "the ratio compares with the sampler's log-probabilities",
    "old ignored": "the ratio compares the current policy with itself",
    "mask": "the mask is not applied",
    "half": "the loss and its gradient are 0.5 times the declared ones",
    "missing advantage normalisation": "the normalisation is missing: advantages are divided by nothing",
    "biased deviation": "the standard deviation of the advantages divides by n (",
    "no baseline": "the baseline is missing",
    "whole batch": "advantages ignore groups",
    "sign of the estimate": "the sign of the advantages is inverted (",
}


def failures(stack: Any) -> list[Verdict]:
    """Return the failed verdicts of all relations on a loss and on advantages, in the order of the command."""
    relations = [one for one in all_relations() if one.component in ("policy_loss", "advantages")]
    verdicts = [run_relation(relation, stack, shrink_seconds=0) for relation in relations]
    return [verdict for verdict in verdicts if verdict.outcome is Outcome.FAIL]


def causes(verdict: Verdict) -> list[str]:
    """Return the causes that a verdict names, in their order."""
    return re.findall(r"(?:Cause|Usually): (.*?)(?= \| |; the stack|$)", verdict.reason)


@pytest.mark.parametrize("fault", CAUSES)
def test_the_first_cause_is_the_planted_fault(fault: str) -> None:
    found = failures(Own(fault))
    assert found, "no law is broken"
    for verdict in found:
        assert causes(verdict)[0].startswith(CAUSES[fault]), verdict.name
        assert verdict.details["cause"] == causes(verdict)[0]
        assert len(causes(verdict)) == 1, "a known cause is named once, without the usual ones"


def test_a_sound_loss_has_no_cause() -> None:
    assert not failures(Own())
    assert cause_of("policy_loss", Own()) is None
    assert cause_of("advantages", Own()) is None


def test_two_faults_are_both_named() -> None:
    class Two(Own):
        def policy_loss(self, inputs: LossInputs) -> Tensor:
            return Own("missing KL").policy_loss(replace(inputs, old_logprobs_BT=inputs.sampling_logprobs_BT))

    cause = cause_of("policy_loss", Two())
    assert cause is not None
    assert cause.startswith(
        "the KL term is missing, and the ratio compares with the sampler's log-probabilities"
    )


def test_a_detached_loss_is_named() -> None:
    assert "detached" in str(cause_of("policy_loss", Own("detached")))


def test_a_fault_that_no_change_explains_keeps_the_usual_causes() -> None:
    class Own2(Own):
        def policy_loss(self, inputs: LossInputs) -> Tensor:
            loss = super().policy_loss(inputs)
            return loss + inputs.logprobs_BT.where(inputs.mask_BT.bool(), 0.0).square().sum()

    assert cause_of("policy_loss", Own2()) is None
    assert "Usually: " in failures(Own2())[0].reason


def test_a_component_without_changes_and_a_crash_have_no_cause() -> None:
    def crash(inputs: LossInputs) -> Tensor:
        raise IndexError("planted")

    stack = Own()
    raising: Callable[[LossInputs], Tensor] = crash
    stack.policy_loss = raising  # type: ignore[method-assign]
    assert cause_of("policy_loss", stack) is None
    assert cause_of("sampler", stack) is None
