"""The laws of value losses: a plain loss obeys, and each planted fault is seen by the law about it."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.values import ValueInputs, ValueSpec
from seatrial.relations.engine import run_relation
from seatrial.relations.facts import StackFacts
from seatrial.relations.laws.loss.values import ValueCase, ValueRow, oracle
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = select(["R1.value", "R3.value", "R12.value"])


@dataclass
class PlainLoss:
    """PPO's clipped squared error on whole tensors; a fault is one line that differs."""

    fault: str = ""
    value_spec: ValueSpec = ValueSpec()  # noqa: RUF009  frozen
    facts: StackFacts = StackFacts()  # noqa: RUF009  frozen

    def value_loss(self, inputs: ValueInputs) -> Tensor:
        """Take padding out before anything is computed of it."""
        real = inputs.mask_BT.bool()
        values, old, returns = (
            tensor if self.fault == "masked by product" else tensor.where(real, 0.0)
            for tensor in (inputs.values_BT, inputs.old_values_BT, inputs.returns_BT)
        )
        errors = (values - returns) ** 2
        if self.value_spec.clip is not None:
            centre = returns if self.fault == "clipped around the returns" else old
            held = centre + (values - centre).clamp(-self.value_spec.clip, self.value_spec.clip)
            pick = torch.minimum if self.fault == "smaller error" else torch.maximum
            errors = pick(errors, (held - returns) ** 2)
        divisor = inputs.global_valid_tokens
        if self.fault == "local mean":
            divisor = float(inputs.mask_BT.sum())
        if self.fault == "padded mean":
            divisor = float(inputs.mask_BT.numel())
        factor = 1.0 if self.fault == "no half" else 0.5
        return factor * (errors * inputs.mask_BT).sum() / divisor


def broken(stack: PlainLoss, *, tidy: bool = False) -> list[str]:
    """Return the laws that a loss breaks."""
    verdicts = [run_relation(relation, stack, tidy=tidy) for relation in RELATIONS]
    assert all(verdict.outcome in (Outcome.PASS, Outcome.FAIL) for verdict in verdicts), verdicts
    return [law for verdict in verdicts for law in verdict.details.get("laws_broken", [])]


@pytest.mark.parametrize("spec", [ValueSpec(), ValueSpec(clip=None), ValueSpec(clip=None, factor=1.0)])
def test_a_plain_loss_obeys(spec: ValueSpec) -> None:
    """Clipped or not."""
    assert broken(PlainLoss("no half" if spec.factor == 1.0 else "", spec)) == []


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("masked by product", "content of masked positions"),
        ("clipped around the returns", "loss and gradient"),
        ("smaller error", "loss and gradient"),
        ("local mean", "losses add up, in micro-batches of one row"),
        ("padded mean", "padded columns"),
        ("no half", "loss and gradient"),
    ],
)
def test_a_planted_fault_is_seen(fault: str, law: str) -> None:
    """By the law about it."""
    assert law in broken(PlainLoss(fault))


def test_tidy_rows_hide_the_clip() -> None:
    """Values that hardly moved are nowhere clipped."""
    assert broken(PlainLoss("smaller error"), tidy=True) == []


def test_the_oracle_of_one_token_in_closed_form() -> None:
    """Old 0, value 1, return 2, clip 0.2: the error of the held value, (0.2 - 2)^2 / 2, is the larger; no slope."""
    case = ValueCase(rows=(ValueRow(values=(1.0,), old_values=(0.0,), returns=(2.0,)),), seed=0)
    assert oracle(case, ValueSpec())[0] == pytest.approx(1.62)
    assert oracle(case, ValueSpec())[1] == [[0.0]]
    assert oracle(case, ValueSpec(clip=None)) == (0.5, [[-1.0]])
