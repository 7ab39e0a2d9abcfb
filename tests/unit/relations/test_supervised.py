"""The laws of supervised heads, of a step and over epochs: each planted fault is seen by the law about it."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.supervised import (
    EpochsPlan,
    Evaluated,
    EvaluatedPlan,
    SupervisedSpec,
    SupervisedUpdate,
)
from seatrial.relations.engine import run_relation
from seatrial.relations.records import StepResult
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = select(["R1.supervised", "R12.supervised"])
EPOCHS, EVALUATION = select(["R12.epochs", "R23.supervised"])
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


class PlainRun(PlainTrainer):
    """The same over epochs, rows in another order in each."""

    def supervised_run(self, plan: EpochsPlan) -> Sequence[SupervisedUpdate]:
        updates: list[SupervisedUpdate] = []
        epochs = math.ceil(len(plan.updates) / len(plan.epoch))
        for shift in range(epochs):
            rows = [(row + shift) % plan.num_examples for row in range(plan.num_examples)]
            for sizes in plan.epoch[:-1] if self.fault == "last update left out" else plan.epoch:
                parts = tuple(tuple(rows.pop(0) for _ in range(size)) for size in sizes)
                if self.fault == "a row repeated" and len(parts) > 1:
                    parts = (parts[1][: len(parts[0])], *parts[1:])
                if len(updates) < len(plan.updates):
                    updates.append(SupervisedUpdate(parts, self._step(parts, plan)))
        return updates

    def _step(self, parts: Sequence[Sequence[int]], plan: EpochsPlan) -> StepResult:
        step = self.supervised_step(parts)
        scale = len(parts) / plan.num_micro_batches if self.fault == "configured divisor" else 1.0
        gradients = {name: value * scale for name, value in step.gradients.items()}
        return StepResult(loss=step.loss, gradients=gradients)


ROWS = [
    f"rows, {what}"
    for what in (
        "three micro-batches an update",
        "four micro-batches an update",
        "a smaller last micro-batch",
        "a number of updates",
        "an epoch and a half",
    )
]
VALUES = [
    f"loss and gradient, {what}" for what in ("three micro-batches an update", "four micro-batches an update")
]
SMALLER, STEPS = (
    f"loss and gradient, {what}" for what in ("a smaller last micro-batch", "a number of updates")
)


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("", []),
        ("last update left out", [*ROWS, SMALLER]),
        ("a row repeated", ROWS),
        ("configured divisor", [*VALUES, STEPS]),
        ("means of means", [*VALUES, SMALLER, STEPS]),
    ],
)
def test_a_fault_of_a_run_over_epochs_is_seen(fault: str, laws: list[str]) -> None:
    """The last update of an epoch has fewer micro-batches, or a smaller one."""
    stack = PlainRun(fault)
    stack.supervised_run(EpochsPlan())
    assert run_relation(EPOCHS, stack).details.get("laws_broken", []) == laws


class PlainEvaluation(PlainTrainer):
    """Evaluates in batches."""

    gives_items = True

    def supervised_evaluation(self, plan: EvaluatedPlan) -> Evaluated:
        rows = list(range(plan.num_examples))
        batches = [rows[start : start + plan.batch_size] for start in range(0, len(rows), plan.batch_size)]
        if self.fault == "last batch left out" and len(batches) > 1:
            batches = batches[:-1]
        sums = [self.supervised_step([batch]).loss for batch in batches]
        weights = [float(sum(len(EXAMPLES[row]) for row in batch)) for batch in batches]
        if self.fault == "mean of batches":
            weights = [1.0] * len(batches)
        loss = sum(one * weight for one, weight in zip(sums, weights, strict=True)) / sum(weights)
        if plan.loss_alone:
            return Evaluated(loss, (), ())
        given = [row for batch in batches for row in batch]
        given = given[::-1] if self.fault == "another order in parts" and plan.in_parts else given
        found = [self.supervised_logits(self.model, row) for row in given]
        return Evaluated(loss, [one.detach() for one, _ in found], [classes for _, classes in found])


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("", []),
        ("mean of batches", ["loss, several batches", "loss alone"]),
        (
            "last batch left out",
            ["loss, several batches", "loss alone", "outputs", "outputs, gathered in parts"],
        ),
        ("another order in parts", ["outputs, gathered in parts"]),
    ],
)
def test_a_fault_of_an_evaluation_is_seen(fault: str, laws: list[str]) -> None:
    assert run_relation(EVALUATION, PlainEvaluation(fault)).details.get("laws_broken", []) == laws
