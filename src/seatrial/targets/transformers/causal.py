"""`transformers.Trainer` on a causal language model, whichever release is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import StepResult
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import batch_options, configuration, step_of_rows


class CausalLM(TinyCausalModel):
    """The model's own loss on every token of every row."""

    facts = StackFacts(micro_batch_sizes="equal")
    objective_spec = ObjectiveSpec(kind="sft", trains="all")

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        import transformers

        return step_of_rows(
            transformers.Trainer,
            self.objective_model(),
            [self._row(examples[index]) for part in micro_batches for index in part],
            args=configuration(transformers.TrainingArguments, batch_options(micro_batches)),
            data_collator=self._collate,
        )

    def _row(self, example: Example) -> dict[str, list[int]]:
        ids = [*example.prompt_ids, *example.completion_ids]
        prompt = (
            list(example.prompt_ids)
            if self.objective_spec.trains == "all"
            else [-100] * len(example.prompt_ids)
        )
        return {"input_ids": ids, "labels": [*prompt, *example.completion_ids]}

    def _collate(self, rows: Sequence[Mapping[str, list[int]]]) -> dict[str, Tensor]:
        """Pad on the right."""
        S = max(len(row["input_ids"]) for row in rows)

        def padded(name: str, fill: int) -> Tensor:
            return torch.tensor([[*row[name], *[fill] * (S - len(row[name]))] for row in rows])

        real = [[1] * len(row["input_ids"]) + [0] * (S - len(row["input_ids"])) for row in rows]
        return {
            "input_ids": padded("input_ids", self.pad_id),
            "attention_mask": torch.tensor(real),
            "labels": padded("labels", -100),
        }


class CausalLMCompletions(CausalLM):
    """The model's own loss on the tokens of completions."""

    objective_spec = ObjectiveSpec(kind="sft", trains="completion")


ADAPTERS: dict[str, type[Any]] = {"causal-lm": CausalLM, "causal-lm-completions": CausalLMCompletions}
