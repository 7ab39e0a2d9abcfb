"""TRL's `GKDTrainer` on given completions, whichever release is installed; its sampled batches: `texts.GKD`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import batch_options, configuration, step_of_rows
from seatrial.targets.trl.preferences import find_trainer, given_tokenizer


class GKDObjective(KnowsFailures, TinyCausalModel):
    """The divergence from a teacher on the completions of a data set; its temperature is that of sampling alone."""

    facts = StackFacts(micro_batch_sizes="equal")
    padding_side = "right"
    objective_spec = ObjectiveSpec(kind="gkd", beta=0.5)

    def __init__(self) -> None:
        """Find the trainer.

        Raises:
            Gone: its loss does not get the number of tokens of the other micro-batches.
        """
        self.trainer_class, self.config_class = find_trainer("GKD")
        if "num_items_in_batch" not in inspect.signature(self.trainer_class.generalized_jsd_loss).parameters:
            raise Gone(f"GKDTrainer of trl {release('trl')} divides by the tokens of a micro-batch")

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        options = {**batch_options(micro_batches), "lmbda": 0.0, "beta": self.objective_spec.beta}
        return step_of_rows(
            self.trainer_class,
            self.objective_model(),
            [self._row(examples[index]) for part in micro_batches for index in part],
            teacher_model=copy.deepcopy(self.objective_reference()),
            args=configuration(self.config_class, options),
            data_collator=self._collate,
            **given_tokenizer(self.trainer_class, self.tokenizer),
        )

    def _row(self, example: Example) -> dict[str, list[int]]:
        ids = [*example.prompt_ids, *example.completion_ids]
        return {"input_ids": ids, "labels": [*[-100] * len(example.prompt_ids), *example.completion_ids]}

    def _collate(self, rows: Sequence[dict[str, list[int]]]) -> dict[str, Tensor]:
        """Pad on the right."""
        S = max(len(row["input_ids"]) for row in rows)

        def padded(name: str, fill: int) -> Tensor:
            return torch.tensor([[*row[name], *[fill] * (S - len(row[name]))] for row in rows])

        lengths_B = torch.tensor([len(row["input_ids"]) for row in rows])
        return {
            "input_ids": padded("input_ids", self.pad_id),
            "attention_mask": (torch.arange(S) < lengths_B[:, None]).long(),
            "labels": padded("labels", -100),
        }


ADAPTERS: dict[str, type[Any]] = {"gkd-objective": GKDObjective}
