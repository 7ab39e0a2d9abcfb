"""The laws of supervised heads: a plain trainer obeys, and each planted fault is seen by the law about it."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.supervised import SupervisedSpec
from seatrial.relations.engine import run_relation
from seatrial.relations.records import StepResult
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = select(["R1.supervised", "R12.supervised"])
EXAMPLES = ([1, 2, 3], [4, 5, 1], [2, 2, 5], [3, 1, 4], [5, 5], [1], [2, 3, 4, 5, 1], [4, 4, 2, 1])
CLASSES = 3


class Head(torch.nn.Module):
    """Scores each token by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(6, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.table(ids)
        return logits


class PlainTrainer:
    """Trains a head in micro-batches; a fault is one expression that differs."""

    def __init__(self, fault: str = "", spec: SupervisedSpec = SupervisedSpec()) -> None:  # noqa: B008  frozen
        self.fault, self.supervised_spec = fault, spec
        torch.manual_seed(0)
        self.model = Head()

    def supervised_model(self) -> Any:
        return self.model

    def supervised_logits(self, model: Any, example: int) -> tuple[Tensor, Sequence[int]]:
        ids = EXAMPLES[example]
        return model(torch.tensor(ids)), [token % CLASSES for token in ids]

    def supervised_step(self, micro_batches: Sequence[Sequence[int]]) -> StepResult:
        model = copy.deepcopy(self.model)
        total = sum(len(EXAMPLES[example]) for part in micro_batches for example in part)
        smoothing = 0.0 if self.fault == "not smoothed" else self.supervised_spec.smoothing
        loss = torch.zeros(())
        for part in micro_batches:
            losses = []
            for example in part:
                logits_NV, classes = self.supervised_logits(model, example)
                losses.append(
                    torch.nn.functional.cross_entropy(
                        logits_NV, torch.tensor(classes), label_smoothing=smoothing, reduction="none"
                    )
                )
            own = torch.cat(losses)
            divisor: float = total
            if self.fault == "added":
                divisor = len(own)
            if self.fault == "means of means":
                divisor = len(own) * len(micro_batches)
            if self.fault == "padding":
                divisor = total / len(own) * len(part) * max(map(len, losses))
            loss = loss + own.sum() / divisor
        loss.backward()
        return StepResult(loss=float(loss.detach()), gradients={"table.weight": model.table.weight.grad})  # type: ignore[dict-item]


def broken(stack: PlainTrainer) -> list[str]:
    """Return the laws that a trainer breaks."""
    verdicts = [run_relation(relation, stack) for relation in RELATIONS]
    assert all(verdict.outcome in (Outcome.PASS, Outcome.FAIL) for verdict in verdicts), verdicts
    return [law for verdict in verdicts for law in verdict.details.get("laws_broken", [])]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_plain_trainer_obeys(smoothing: float) -> None:
    assert broken(PlainTrainer(spec=SupervisedSpec(smoothing=smoothing))) == []


UNEQUAL = "loss and gradient, micro-batches of unequal numbers of items"


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("added", ["micro-batches of one example", "micro-batches of two examples", UNEQUAL]),
        ("means of means", [UNEQUAL]),
        ("padding", ["loss and gradient, examples of unequal numbers of items", UNEQUAL]),
        (
            "not smoothed",
            ["loss and gradient", "loss and gradient, examples of unequal numbers of items", UNEQUAL],
        ),
    ],
)
def test_a_planted_fault_is_seen(fault: str, laws: list[str]) -> None:
    """By the laws about it and by no other."""
    assert broken(PlainTrainer(fault, SupervisedSpec(smoothing=0.2))) == laws
