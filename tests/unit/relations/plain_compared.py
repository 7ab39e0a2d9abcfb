"""A trainer in plain PyTorch whose runs are compared with one another, with the faults that laws are meant to find."""

import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.contracts.compared import (
    ComparedPlan,
    ComparedRun,
    ComparedStep,
    CompareSpec,
    DefinedStep,
)

V, D, PAD = 12, 4, 0
SUBJECTS: Mapping[str, Any] = {"turns": "rows", "ends": "completions", "trait": "models"}
"""Variations that change nothing here, by what they would change of another trainer."""


class Net(nn.Module):
    """Predicts a token from the one before it, with adapters of rank one if they are requested."""

    def __init__(self, adapters: bool, up: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, D)
        self.head = nn.Linear(D, V)
        self.lora_up = nn.Parameter(torch.full((V, 1), up)) if adapters else None
        self.lora_down = nn.Parameter(torch.ones(1, D)) if adapters else None
        if adapters:
            self.embed.requires_grad_(False)
            self.head.requires_grad_(False)

    def forward(self, ids_BS: Tensor) -> Tensor:
        x_BSD = self.embed(ids_BS)
        logits_BSV: Tensor = self.head(x_BSD)
        return (
            logits_BSV
            if self.lora_up is None or self.lora_down is None
            else logits_BSV + x_BSD @ (self.lora_up @ self.lora_down).T
        )


class PlainCompared:
    """Supervised fine-tuning with the penalty of a frozen reference."""

    def __init__(self, fault: str = "", means: Any = "rows") -> None:
        self.fault = fault
        self.earlier: list[tuple[float, float]] = []
        self.evaluated_before = 0.0
        self.compare_spec = CompareSpec(
            neutral={"more padding": "", "checkpointing": ""},
            effective=["scale=2"],
            defined=["", "scale=2", *SUBJECTS],
            subjects=SUBJECTS,
            defined_of_adapted=[""],
            mixed=["more padding, scale=2"],
            orders={"checkpointing": 1, "shared": 2},
            neutral_of_adapted=["checkpointing"],
            means=means,
            neutral_adapters=["from zero"],
            other_adapters=["from one"],
            settings="own settings",
        )

    def compared_run(self, plan: ComparedPlan) -> ComparedRun:
        """Run the plan; processes hold one model, and what each has is that of one process on all rows."""
        first = self._run(plan)
        if plan.num_steps == 2:
            right = PlainCompared()._run(plan)
            first = replace(first, steps=tuple(map(_with_definition, first.steps, right.steps)))
        if plan.num_ranks == 1:
            return first
        second = first
        step, scale = first.steps[0], 1.0 + (self.fault == "processes are summed")
        gradients = {name: scale * value for name, value in step.gradients.items()}
        if self.fault == "tokens of processes" and plan.lengths == "unequal":
            gradients = {name: value + 0.1 for name, value in gradients.items()}
        logged = dict(step.logged)
        if self.fault == "the first process's loss":
            logged["loss"] += 0.1
        if self.fault == "the first process's scalar":
            logged["entropy"] += 0.1
        evaluated = first.evaluated
        if self.fault == "the first process's evaluation":
            evaluated = tuple({"loss": one["loss"] + 0.1} for one in evaluated)
        if self.fault == "two models":
            second = replace(second, after={name: value + 0.1 for name, value in second.after.items()})
        steps = (replace(step, gradients=gradients, logged=logged), *first.steps[1:])
        return replace(first, steps=steps, evaluated=evaluated, others=(replace(second, steps=steps),))

    def _run(self, plan: ComparedPlan) -> ComparedRun:
        faulty = self.fault
        torch.manual_seed(plan.process_seed if faulty == "first weights" else plan.seed)
        model = Net(plan.adapters, up=0.0 if plan.adapter_kind == "from zero" else 1.0)
        reference = Net(False)
        if faulty == "adapters with the base":
            model.requires_grad_(True)
        if faulty == "shared reference":
            reference.embed.weight = model.embed.weight
        lengths = [3] * 4 if plan.lengths == "equal" else [2, 5, 3, 7]
        rows = [[random.Random(f"{n} {k}").randrange(1, V) for k in range(lengths[n])] for n in range(4)]
        given = copy.deepcopy(rows)
        trained = [value for name, value in model.named_parameters() if value.requires_grad]
        if faulty == "a weight left out":
            trained = trained[1:]
        optimizer = torch.optim.Adam(trained, lr=0.01)
        before, fixed_before = _copies(model, reference)
        steps, evaluated = [], []
        if plan.evaluates == "trained":
            evaluated.append(self._evaluate(model, reference, rows, plan))
        for number in range(1, plan.num_steps + 1):
            steps.append(self._step(model, reference, optimizer, rows, plan, number))
            if plan.evaluates != "never" and number % plan.evaluated_every == 0:
                is_other = plan.evaluates == "held out" and faulty != "trained rows are evaluated"
                own = [row[::-1] for row in rows] if is_other else rows
                evaluated.append(self._evaluate(model, reference, own, plan))
                if faulty == "evaluation trains":
                    torch.nn.init.zeros_(model.head.bias)
            if number == plan.ends_after and faulty == "moments are lost":
                optimizer = torch.optim.Adam(trained, lr=0.02)
        after, fixed_after = _copies(model, reference)
        kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
        saved = {name: value for name, value in kept.items() if faulty != "unsaved" or "head" not in name}
        if faulty == "second trainer" and plan.repeats:
            steps[0] = ComparedStep(
                gradients={name: 2 * value for name, value in steps[0].gradients.items()},
                backward=steps[0].backward,
                logged=steps[0].logged,
            )
        if faulty == "rows":
            given[0].append(1)
        return ComparedRun(
            steps=tuple(steps),
            before=before,
            after=after,
            fixed_before=fixed_before,
            unlike=("ends",) * (faulty == "other settings"),
            fixed_after=fixed_after,
            saved=saved,
            kept=kept,
            changed=("rows",) if given != rows else (),
            num_steps=len(steps),
            evaluated=tuple(evaluated),
        )

    def _step(
        self, model: Net, reference: Net, optimizer: Any, rows: Any, plan: ComparedPlan, number: int
    ) -> Any:
        size = 4 // plan.num_micro_batches
        optimizer.zero_grad()
        losses = []
        for first in range(0, 4, size):
            loss = self._loss(model, reference, rows[first : first + size], plan)
            if self.fault == "micro-batches summed":
                loss = loss * plan.num_micro_batches
            loss = loss / plan.num_micro_batches
            torch.autograd.backward(loss)
            losses.append(float(loss.detach()))
        gradients = {
            name: value.grad.detach().clone()
            for name, value in model.named_parameters()
            if value.grad is not None
        }
        optimizer.step()
        backward = sum(losses)
        logged = losses[-1] if self.fault == "the last loss" else backward
        entropy = number * (plan.num_micro_batches if self.fault == "a scalar is summed" else 1.0)
        if plan.logged_every == 2:
            self.earlier = [*(self.earlier if number % 2 == 0 else []), (backward, entropy)]
            logged = sum(one for one, _ in self.earlier)
            if self.fault != "a sum is logged":
                logged /= len(self.earlier)
            if self.fault != "the last step's scalar":
                entropy = sum(one for _, one in self.earlier) / len(self.earlier)
        first = 0 if self.fault == "rows of the first step" else 4 * ((number - 1) % plan.num_batches)
        return ComparedStep(
            gradients=gradients,
            backward=backward,
            logged={"loss": logged, "entropy": entropy},
            rows=tuple(range(first, first + 4)),
        )

    def _loss(self, model: Net, reference: Net, rows: Sequence[Sequence[int]], plan: ComparedPlan) -> Tensor:
        S = max(map(len, rows)) + 2 * (plan.variation == "more padding")
        ids_BS = torch.tensor([[*row, *[PAD] * (S - len(row))] for row in rows])
        mask_BT = (ids_BS[:, 1:] != PAD).float()
        if self.fault == "padding counts":
            mask_BT = torch.ones_like(mask_BT)
        logprobs_BTV = model(ids_BS)[:, :-1].log_softmax(-1)
        picked_BT = logprobs_BTV.gather(-1, ids_BS[:, 1:, None])[..., 0]
        with torch.no_grad():
            held_BT = reference(ids_BS)[:, :-1].log_softmax(-1).gather(-1, ids_BS[:, 1:, None])[..., 0]
        if self.fault == "another objective" or (self.fault in SUBJECTS and self.fault == plan.variation):
            held_BT = held_BT + 0.5
        scale = 2.0 if "scale=2" in plan.variation and self.fault != "unread" else 1.0
        if self.fault == "unread with another" and "," in plan.variation:
            scale = 1.0
        if self.fault == "unread with adapters" and plan.adapters and plan.variation:
            scale = 3.0
        if self.fault == "another loss with adapters" and plan.adapters:
            scale = 3.0
        each_BT = -scale * picked_BT + 0.1 * (picked_BT - held_BT) ** 2
        if self.fault == "token means":
            mean: Tensor = (each_BT * mask_BT).sum() / mask_BT.sum()
            return mean
        of_rows: Tensor = ((each_BT * mask_BT).sum(1) / mask_BT.sum(1)).mean()
        return of_rows

    def _evaluate(self, model: Net, reference: Net, rows: Any, plan: ComparedPlan) -> Mapping[str, float]:
        size = 4 // plan.num_evaluation_parts
        with torch.no_grad():
            losses = [
                float(self._loss(model, reference, rows[first : first + size], plan))
                for first in range(0, 4, size)
            ]
        found = losses[-1] if self.fault == "the last batch" else sum(losses) / len(losses)
        if self.fault == "evaluations are summed":
            self.evaluated_before = found = found + self.evaluated_before
        wrong = self.fault == "another loss in evaluation" or (
            self.fault == "passed rows" and plan.evaluated_as
        )
        return {"loss": 2 * found if wrong else found}


def _with_definition(step: ComparedStep, right: ComparedStep) -> ComparedStep:
    scalars = {"entropy": right.logged["entropy"]}
    return replace(step, defined=DefinedStep(loss=right.backward, gradients=right.gradients, scalars=scalars))


def _copies(model: Net, reference: Net) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    own = dict(model.named_parameters())
    trainable = {name: value.detach().clone() for name, value in own.items() if value.requires_grad}
    fixed = {name: value.detach().clone() for name, value in own.items() if not value.requires_grad}
    fixed |= {f"reference {name}": value.detach().clone() for name, value in reference.named_parameters()}
    return trainable, fixed
