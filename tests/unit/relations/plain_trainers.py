"""A whole trainer in plain PyTorch, with the faults that laws of whole trainers are meant to find."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.trainers import (
    Scalar,
    TrainerEvaluation,
    TrainerPlan,
    TrainerRecord,
    TrainerSpec,
    TrainerStep,
)
from seatrial.relations.facts import StackFacts
from seatrial.relations.records.run import UpdateRecord

V, D, LIMIT = 12, 4, 0.5
OPTIONS: Mapping[str, Any] = {
    "policy.optimizer.lr": 0.05,
    "policy.optimizer.weight_decay": 0.1,
    "policy.optimizer.betas": (0.9, 0.99),
    "policy.optimizer.eps": 1e-6,
    "policy.max_grad_norm": LIMIT,
}
Weights = dict[str, Tensor]


def example(number: int) -> Example:
    """Return an example; its completion has one to five tokens."""
    rng = random.Random(number)
    ids = [rng.randrange(V - 1) for _ in range(8)]
    return Example(prompt_ids=tuple(ids[:2]), completion_ids=(*ids[2 : 2 + number % 5], V - 1))


class PlainTrainer:
    """Supervised fine-tuning of a model that predicts from the sum of what it has seen."""

    facts = StackFacts()
    trainer_spec = TrainerSpec(
        objective=ObjectiveSpec(kind="sft"),
        scalars={"tokens": Scalar(quantity="tokens", how="total"), "entropy": Scalar(quantity="entropy")},
    )

    def __init__(self, fault: str = "") -> None:
        """Keep what it does wrong; nothing by default."""
        self.fault = fault

    def next_token_logits(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
        hidden_SD = weights["embedding"][torch.tensor(list(ids))].cumsum(0)
        return hidden_SD @ weights["head"] + weights["frozen"]

    def _initial(self) -> Weights:
        generator = torch.Generator().manual_seed(0)
        shapes = {"embedding": (V, D), "head": (D, V), "frozen": (V,)}
        return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    def _scored(self, weights: Mapping[str, Tensor], row: Example) -> Tensor:
        """Return the log-probabilities [T, V] of the completion's places."""
        ids = [*row.prompt_ids, *row.completion_ids]
        shift = 2 if self.fault == "shifted mask" else 1
        first = len(row.prompt_ids) - shift
        return torch.log_softmax(self.next_token_logits(weights, ids), -1)[
            first : first + len(row.completion_ids)
        ]

    def _losses(self, weights: Mapping[str, Tensor], row: Example) -> Tensor:
        return -self._scored(weights, row).gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]

    def _batches(self, plan: TrainerPlan) -> Iterator[list[Example]]:
        rng = random.Random(plan.seed)
        for epoch in itertools.count():
            if self.fault == "order of the first epoch after a resume" and epoch and plan.ends_after:
                rng = random.Random(plan.seed)
            order = list(range(plan.num_examples))
            rng.shuffle(order)
            for start in range(0, len(order), plan.num_rows):
                yield [example(number) for number in order[start : start + plan.num_rows]]

    def trainer_run(self, plan: TrainerPlan) -> TrainerRecord:
        weights = self._initial()
        initial = {name: value.clone() for name, value in weights.items()}
        trained = ["embedding", "head"]
        for name in trained:
            weights[name].requires_grad_()
        optimizer = torch.optim.AdamW(
            [weights[name] for name in trained], lr=0.05, weight_decay=0.1, betas=(0.9, 0.99), eps=1e-6
        )
        size = plan.num_rows // plan.num_micro_batches
        steps, evaluations, served = [], [], self._batches(plan)
        total, logged_since = 0.0, list[dict[str, float]]()
        for number in range(1, plan.num_steps + 1):
            rows = next(served)
            if self.fault == "rows served twice" and number == 2:
                rows = list(steps[0].rows)  # type: ignore[arg-type]
            if plan.ends_after and number == plan.ends_after + 1 and self.fault == "moments lost at a resume":
                optimizer = torch.optim.AdamW(
                    [weights[name] for name in trained],
                    lr=0.05,
                    weight_decay=0.1,
                    betas=(0.9, 0.99),
                    eps=1e-6,
                )
            parts = [rows[place : place + size] for place in range(0, len(rows), size)]
            count = sum(len(row.completion_ids) for row in rows)
            loss = 0.0
            for part in parts:
                own = torch.cat([self._losses(weights, row) for row in part])
                mean = own.mean() / len(parts) if self.fault == "mean of micro-batches" else own.sum() / count
                mean.backward()
                loss += float(mean.detach())
            gradients = {name: weights[name].grad.clone() for name in trained}  # type: ignore[union-attr]
            norm = float(torch.cat([value.flatten() for value in gradients.values()]).norm())
            torch.nn.utils.clip_grad_norm_([weights[name] for name in trained], LIMIT)
            if self.fault == "clipped twice":
                torch.nn.utils.clip_grad_norm_([weights[name] for name in trained], LIMIT / 2)
            with torch.no_grad():
                entropies = torch.cat([_entropies(self._scored(weights, row)) for row in rows])
            optimizer.step()
            optimizer.zero_grad()
            if self.fault == "frozen tensor moves":
                weights["frozen"] += 0.01
            total += sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
            of_parts = [float(entropies[: len(entropies) // 2].mean()), 0.0]
            logged_since.append(
                {
                    "loss": loss,
                    "grad_norm": LIMIT if self.fault == "norm after clipping" else norm,
                    "entropy": of_parts[0] if self.fault == "scalar of a part" else float(entropies.mean()),
                }
            )
            logged = {}
            if number % plan.logging_steps == 0:
                last = self.fault == "last step logged"
                logged = {
                    name: logged_since[-1][name]
                    if last
                    else sum(one[name] for one in logged_since) / len(logged_since)
                    for name in logged_since[0]
                } | {"tokens": total, "learning_rate": 0.04 if self.fault == "another rate logged" else 0.05}
                logged_since = []
                if self.fault == "scalar not logged":
                    del logged["entropy"]
            after = {name: value.detach().clone() for name, value in weights.items()}
            steps.append(
                TrainerStep(
                    step=number,
                    micro_batches=tuple(map(tuple, parts)),
                    update=UpdateRecord(
                        row_indices=(),
                        micro_batches=None,
                        gradients=gradients,
                        grad_norm=norm,
                        learning_rate=0.05,
                        weights_after=after,
                    ),
                    logged=logged,
                )
            )
            if plan.eval_steps and number % plan.eval_steps == 0:
                evaluations.append(self._evaluated(plan, number, after))
                if self.fault == "evaluation takes rows":
                    next(served)
        return TrainerRecord(
            options=OPTIONS,
            initial_weights=initial,
            final_weights=after,
            trainable=frozenset(trained),
            steps=tuple(steps),
            evaluations=tuple(evaluations),
            rollouts=(),
            reference_weights=None,
            optimizer={
                f"{name}.{key}": torch.as_tensor(value).clone()
                for name in trained
                for key, value in optimizer.state[weights[name]].items()
            },
            was_training=True,
            split=tuple(example(number) for number in range(plan.num_examples)),
            held_out=tuple(example(number) for number in range(100, 104)),
            rank_gradients=(steps[-1].update.gradients,) * plan.num_ranks,
        )

    def _evaluated(self, plan: TrainerPlan, step: int, weights: Weights) -> TrainerEvaluation:
        rows = [example(number) for number in range(100, 104)]
        batches = tuple(tuple(rows[rank :: plan.num_ranks]) for rank in range(plan.num_ranks))
        if self.fault == "evaluation of one process":
            rows = [*batches[0]]
        with torch.no_grad():
            losses = torch.cat([self._losses(weights, row) for row in rows])
            entropies = torch.cat([_entropies(self._scored(weights, row)) for row in rows])
        loss = (
            float(losses.sum() / len(rows)) if self.fault == "evaluation over rows" else float(losses.mean())
        )
        return TrainerEvaluation(
            step=step,
            batches=batches,
            logged={"loss": loss}
            if self.fault == "scalar not logged"
            else {"loss": loss, "entropy": float(entropies.mean())},
            was_training=self.fault == "evaluation with dropout",
        )


def _entropies(logprobs_TV: Tensor) -> Tensor:
    return -(logprobs_TV.exp() * logprobs_TV).sum(-1)
