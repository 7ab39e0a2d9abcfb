"""A plain trainer of examples, padded and batched as trainers are, with places where a fault can be planted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.examples import Example, ObjectiveSpec
from seatrial.relations.records import StepResult

VOCAB_SIZE = 17
PAD_ID, EOS_ID = 0, 1


class TinyModel(nn.Module):
    """A recurrent model of one layer: what a token sees is what stands before it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCAB_SIZE, 8)
        self.cell = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, VOCAB_SIZE)

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
        if self.objective_spec.of_pairs:
            return len(examples)
        first = 1 if "first token counted" in self.faults else 0
        return sum(int(self._pad([one], None).trained_BS[:, 1:].sum()) + first for one in examples)

    def _loss(self, examples: Sequence[Example], divisor: float) -> Tensor:
        spec = self.objective_spec
        chosen_B = self._sequence_logprobs(self.model, examples, "completion_ids")
        if spec.kind == "sft":
            return -chosen_B.sum() / divisor
        margin_B = chosen_B - self._sequence_logprobs(self.model, examples, "rejected_ids")
        if spec.kind == "dpo":
            with torch.no_grad():
                chosen_ref_B = self._sequence_logprobs(self.reference, examples, "completion_ids")
                rejected_ref_B = self._sequence_logprobs(self.reference, examples, "rejected_ids")
            margin_B = margin_B - chosen_ref_B + rejected_ref_B
        return -nn.functional.logsigmoid(spec.beta * margin_B).sum() / divisor

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
