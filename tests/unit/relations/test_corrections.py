"""The laws of a sampler's correction: plain functions obey, and each planted fault is seen by the law about it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
from torch import Tensor

from seatrial.relations.contracts.corrections import RejectionRule, WeightRule
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = select(["R12.weights", "R12.rejection"])


@dataclass
class PlainCorrection:
    """Weights and masks on whole tensors; a fault is one expression that differs."""

    fault: str = ""
    weight_rules: ClassVar[Mapping[str, WeightRule]] = {
        "token": WeightRule(level="token", upper=1.2),
        "row": WeightRule(level="row", lower=0.8, upper=1.5),
        "mean one": WeightRule(level="row", upper=1.5, mean_one=True),
    }
    rejection_rules: ClassVar[Mapping[str, RejectionRule]] = {
        "geometric": RejectionRule(over="mean", statistic="ratio", lower=0.7, upper=1.1),
        "max k3": RejectionRule(over="max", statistic="k3", upper=0.05),
    }

    def correction_weights(self, log_ratio_BT: Tensor, mask_BT: Tensor, name: str) -> Tensor:
        rule = self.weight_rules[name]
        ratio_BT = (-log_ratio_BT if self.fault == "inverted" else log_ratio_BT) * mask_BT
        if rule.level == "row":
            ratio_BT = ratio_BT.sum(1, keepdim=True).expand_as(mask_BT)
        weights_BT = ratio_BT.exp().clamp(max=rule.upper)
        if rule.lower is not None and self.fault != "no lower bound":
            inside = (ratio_BT.exp() >= rule.lower) & (ratio_BT.exp() <= rule.upper)
            weights_BT = weights_BT.where(inside, 0.0)
        if rule.mean_one:
            weights_BT = weights_BT / (
                weights_BT[mask_BT.bool()].mean() if self.fault == "over tokens" else weights_BT[:, 0].mean()
            )
        return weights_BT * mask_BT

    def kept_tokens(self, log_ratio_BT: Tensor, mask_BT: Tensor, name: str) -> Tensor:
        inner_BT = log_ratio_BT * mask_BT
        if name == "geometric":
            mean_B1 = inner_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True)
            ratio_B1 = (-mean_B1 if self.fault == "inverse bounds" else mean_B1).exp()
            return mask_BT * ((ratio_B1 >= 0.7) & (ratio_B1 <= 1.1))
        k3_BT = inner_BT.exp() - 1 - inner_BT
        if self.fault == "masked tokens":
            k3_BT = log_ratio_BT.exp() - 1 - log_ratio_BT
        return mask_BT * (k3_BT.amax(1, keepdim=True) <= 0.05)


def broken(stack: PlainCorrection) -> list[str]:
    """Return the laws that a correction breaks."""
    verdicts = [run_relation(relation, stack) for relation in RELATIONS]
    assert all(verdict.outcome in (Outcome.PASS, Outcome.FAIL) for verdict in verdicts), verdicts
    return [law for verdict in verdicts for law in verdict.details.get("laws_broken", [])]


def test_a_plain_correction_obeys() -> None:
    assert broken(PlainCorrection()) == []


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("inverted", ["weights of tokens", "weights of rows", "weights with mean one"]),
        ("no lower bound", ["weights of rows"]),
        ("over tokens", ["weights with mean one"]),
        ("inverse bounds", ["rejected by the ratio"]),
        ("masked tokens", ["rejected by divergence"]),
    ],
)
def test_a_planted_fault_is_seen(fault: str, laws: list[str]) -> None:
    """By the laws about it and by no other."""
    assert broken(PlainCorrection(fault)) == laws


def test_rules_that_a_stack_lacks_are_not_exercised() -> None:
    """A stack without rejection by the ratio breaks nothing, and the law is named."""
    stack = PlainCorrection()
    stack.rejection_rules = {"max k3": PlainCorrection.rejection_rules["max k3"]}  # type: ignore[misc]
    verdict = run_relation(RELATIONS[1], stack)
    assert verdict.outcome is Outcome.SKIPPED
    assert verdict.details["laws"] == ["rejected by divergence"]
    assert "no rejection rule by ratio" in verdict.reason
