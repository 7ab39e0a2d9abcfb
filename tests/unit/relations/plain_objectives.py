"""A plain trainer of examples, padded and batched as trainers are, with places where a fault can be planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.records import StepResult

VOCAB_SIZE = 17
PAD_ID, EOS_ID = 0, 1


class TinyModel(nn.Module):
    """A recurrent model of one layer: what a token sees is what stands before it."""

    def __init__(self, seed: int, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCAB_SIZE, 8)
        self.cell = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, VOCAB_SIZE)
        self.head.weight.data.mul_(scale)  # a fresh model is nearly uniform, and so is every log-ratio

    def forward(self, ids_BS: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.cell(self.embed(ids_BS))[0])


@dataclass(frozen=True, kw_only=True)
class Padded:
    """Right-padded sequences with their masks."""

    ids_BS: Tensor
    trained_BS: Tensor


@dataclass
class PlainTrainer:
    """Trains examples by `objective_spec`; each fault is one line that differs."""

    objective_spec: ObjectiveSpec
    faults: frozenset[str] = frozenset()
    ordinary_ids: Sequence[int] = tuple(range(2, VOCAB_SIZE))
    eos_id: int = EOS_ID
    model: TinyModel = field(default_factory=lambda: TinyModel(0))
    reference: TinyModel = field(default_factory=lambda: TinyModel(1))

    def objective_model(self) -> TinyModel:
        """Return the model."""
        return self.model

    def objective_reference(self) -> TinyModel:
        """Return the reference."""
        return self.reference

    def objective_logits(self, model: Any, ids_S: Tensor) -> Tensor:
        """Score one sequence."""
        return model(ids_S[None])[0]

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        """Accumulate gradients over micro-batches."""
        self.model.zero_grad()
        total = 0.0
        divisor = self._count(examples)
        for part in micro_batches:
            chosen = [examples[index] for index in part]
            loss = self._loss(chosen, self._count(chosen) if "local counts" in self.faults else divisor)
            if "local counts" in self.faults:
                loss = loss / len(micro_batches)
            loss.backward()
            total += float(loss.detach())
        if "summed micro-batches" in self.faults:
            for value in self.model.parameters():
                assert value.grad is not None
                value.grad *= len(micro_batches)
        gradients = {name: value.grad.clone() for name, value in self.model.named_parameters()}
        if "undivided log" in self.faults:
            total *= len(micro_batches)
        if "frozen head" in self.faults:
            del gradients["head.bias"]
        return StepResult(loss=total, gradients=gradients)

    def _count(self, examples: Sequence[Example]) -> float:
        if self.objective_spec.of_pairs or self.objective_spec.of_labels:
            return len(examples)
        first = 1 if "first token counted" in self.faults else 0
        return sum(int(self._pad([one], None).trained_BS[:, 1:].sum()) + first for one in examples)

    def _loss(self, examples: Sequence[Example], divisor: float) -> Tensor:
        spec = self.objective_spec
        if spec.kind == "reward":
            chosen_B, rejected_B = (
                self._scores(examples, name) for name in ("completion_ids", "rejected_ids")
            )
            return -nn.functional.logsigmoid(chosen_B - rejected_B).sum() / divisor
        if spec.kind == "gkd":
            return self._distilled(examples, divisor)
        chosen_B = self._sequence_logprobs(self.model, examples, "completion_ids")
        if spec.kind == "kto":
            return self._labelled(examples, chosen_B, divisor)
        if spec.kind == "sft":
            return -chosen_B.sum() / divisor
        margin_B = chosen_B - self._sequence_logprobs(self.model, examples, "rejected_ids")
        if spec.kind == "dpo":
            with torch.no_grad():
                chosen_ref_B = self._sequence_logprobs(self.reference, examples, "completion_ids")
                rejected_ref_B = self._sequence_logprobs(self.reference, examples, "rejected_ids")
            margin_B = margin_B - chosen_ref_B + rejected_ref_B
        return -nn.functional.logsigmoid(spec.beta * margin_B).sum() / divisor

    def _scores(self, examples: Sequence[Example], which: str) -> Tensor:
        padded = self._pad(examples, which)
        lengths = [len(one.prompt_ids) + len(getattr(one, which)) for one in examples]
        last_B = (
            torch.full((len(examples),), -1)
            if "score of padding" in self.faults
            else torch.tensor(lengths) - 1
        )
        return self.model(padded.ids_BS)[torch.arange(len(examples)), last_B, 0]

    def _labelled(self, examples: Sequence[Example], chosen_B: Tensor, divisor: float) -> Tensor:
        """Return the share of the mean KTO loss."""
        spec = self.objective_spec
        shift = 0 if "own completions" in self.faults else 1
        mates = [
            replace(one, completion_ids=examples[place - shift].completion_ids)
            for place, one in enumerate(examples)
        ]
        with torch.no_grad():
            ref_B = self._sequence_logprobs(self.reference, examples, "completion_ids")
            ref_mates_B = self._sequence_logprobs(self.reference, mates, "completion_ids")
        point = (self._sequence_logprobs(self.model, mates, "completion_ids") - ref_mates_B).mean()
        if "point with gradient" not in self.faults:
            point = point.detach()
        if "point not held" not in self.faults:
            point = point.clamp_min(0)
        if spec.reference_point == "zero":
            point = torch.zeros(())
        good_B = torch.tensor([bool(one.desirable) for one in examples])
        weights = (spec.desirable_weight, spec.undesirable_weight)
        if "weights exchanged" in self.faults:
            weights = weights[::-1]
        sign_B = torch.where(good_B, 1.0, -1.0)
        losses_B = torch.where(good_B, *weights) * torch.sigmoid(
            -spec.beta * sign_B * (chosen_B - ref_B - point)
        )
        if "mean of the labels" in self.faults:
            return (losses_B[good_B].mean() + losses_B[~good_B].mean()) / 2
        return losses_B.sum() / divisor

    def _distilled(self, examples: Sequence[Example], divisor: float) -> Tensor:
        """Return the generalised Jensen-Shannon divergence to the teacher over the completions' tokens."""
        spec, padded = self.objective_spec, self._pad(examples, None)
        temperature = 1.0 if "no temperature" in self.faults else spec.temperature
        student_BSV = torch.log_softmax(self.model(padded.ids_BS)[:, :-1] / temperature, -1)
        with torch.no_grad():
            teacher_BSV = torch.log_softmax(self.reference(padded.ids_BS)[:, :-1] / temperature, -1)
        share = 1 - spec.beta if "exchanged" in self.faults else spec.beta
        mixture_BSV = torch.log(share * teacher_BSV.exp() + (1 - share) * student_BSV.exp())
        parts = [
            weight * (one_BSV.exp() * (one_BSV - mixture_BSV)).sum(-1)
            for weight, one_BSV in ((share, teacher_BSV), (1 - share, student_BSV))
        ]
        if spec.beta == 0:
            parts = [(teacher_BSV.exp() * (teacher_BSV - student_BSV)).sum(-1)]
        mask_BS = padded.trained_BS[:, 1:]
        if "whole rows" in self.faults:
            mask_BS = torch.ones_like(mask_BS)
        return (sum(parts) * mask_BS).sum() / divisor

    def _sequence_logprobs(self, model: TinyModel, examples: Sequence[Example], which: str) -> Tensor:
        padded = self._pad(examples, which)
        if "last column cut" in self.faults:
            padded = Padded(ids_BS=padded.ids_BS[:, :-1], trained_BS=padded.trained_BS[:, :-1])
        logprobs_BSV = torch.log_softmax(model(padded.ids_BS)[:, :-1], -1)
        logprobs_BS = logprobs_BSV.gather(2, padded.ids_BS[:, 1:, None]).squeeze(2)
        mask_BS = padded.trained_BS[:, 1:]
        if "end by pad id" in self.faults:
            mask_BS = mask_BS & (padded.ids_BS[:, 1:] != EOS_ID)
        return (logprobs_BS * mask_BS).sum(1)

    def _pad(self, examples: Sequence[Example], which: str | None) -> Padded:
        spec, rows = self.objective_spec, []
        for one in examples:
            completion = getattr(one, which or "completion_ids")
            ids = [*one.prompt_ids, *completion]
            trained = [spec.trains == "all" and spec.kind == "sft"] * len(one.prompt_ids) + [True] * len(
                completion
            )
            keep = slice(None)
            if spec.max_length is not None:
                end = (spec.keep == "end") != ("other side cut" in self.faults)
                keep = slice(-spec.max_length, None) if end else slice(None, spec.max_length)
            rows.append((ids[keep], trained[keep]))
        S = max(len(ids) for ids, _ in rows)
        return Padded(
            ids_BS=torch.tensor([ids + [PAD_ID] * (S - len(ids)) for ids, _ in rows]),
            trained_BS=torch.tensor([trained + [False] * (S - len(trained)) for _, trained in rows]),
        )
