"""TRL's trainers of preference pairs: DPO, CPO and ORPO, whichever release is installed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from seatrial.relations.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import StepResult
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import TinyCausalModel
from seatrial.targets.common.trainers import (
    CapturingOptimizer,
    batch_options,
    captured_step,
    configuration,
    in_order,
)

MAX_LENGTH = 24
LONG = 200
"""Beyond every example: of CPO and ORPO, which truncate prompt and completion by rules of their own."""


def find_trainer(name: str) -> tuple[Any, Any]:
    """Return the trainer and the configuration of an algorithm, from where the installed release keeps them."""
    folder = name.lower()
    places = ("trl", f"trl.experimental.{folder}", f"trl.trainer.{folder}_trainer")
    trainer = find_name("trl", [f"{place}:{name}Trainer" for place in places])
    config = find_name(
        "trl", [f"{place}:{name}Config" for place in (*places[:2], f"trl.trainer.{folder}_config")]
    )
    return trainer, config


class PairTrainer(TinyCausalModel):
    """A trainer of pairs as an adapter; see `contracts.Objective`."""

    facts = StackFacts(micro_batch_sizes="equal")
    objective_spec: ObjectiveSpec
    algorithm: str
    has_reference = False

    def __init__(self) -> None:
        """Find the trainer in the installed release."""
        self.trainer_class, self.config_class = find_trainer(self.algorithm)

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        from datasets import Dataset

        model = copy.deepcopy(self.objective_model())
        optimizer = CapturingOptimizer(model.parameters())
        rows = [self._row(examples[index]) for part in micro_batches for index in part]
        spec = self.objective_spec
        truncation = "keep_end" if spec.keep == "end" else "keep_start"
        arguments = configuration(
            self.config_class,
            {**batch_options(micro_batches), "beta": spec.beta, "max_length": spec.max_length or LONG},
            {"truncation_mode": truncation, "max_prompt_length": None, "max_completion_length": None},
        )
        reference = {"ref_model": copy.deepcopy(self.objective_reference())} if self.has_reference else {}
        trainer = self.trainer_class(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_list(rows),
            processing_class=self.tokenizer,
            optimizers=(optimizer, None),
            **reference,
        )
        return captured_step(in_order(trainer), model, optimizer)

    def _row(self, example: Example) -> dict[str, str]:
        """Return texts; the trainer adds the end token itself."""
        assert example.rejected_ids is not None
        return {
            "prompt": self.decode(example.prompt_ids),
            "chosen": self.decode(example.completion_ids[:-1]),
            "rejected": self.decode(example.rejected_ids[:-1]),
        }


class DPO(PairTrainer):
    """`DPOTrainer` at its defaults, with a longest sequence of which the start is kept."""

    algorithm = "DPO"
    has_reference = True
    objective_spec = ObjectiveSpec(kind="dpo", beta=0.1, max_length=MAX_LENGTH)


class DPOKeepEnd(DPO):
    """`DPOTrainer` where the end of a longer sequence is kept."""

    objective_spec = ObjectiveSpec(kind="dpo", beta=0.1, max_length=MAX_LENGTH, keep="end")


NLL_PER_MICRO_BATCH = {
    f"R1.objective/{law}, lengths unequal, in micro-batches of {which}": (
        "the negative log-likelihood is a mean over the tokens of each micro-batch"
    )
    for law, which in (
        ("gradients add up", "one example"),
        ("gradients add up", "two examples"),
        ("logged losses add up", "one example"),
    )
}


class CPO(PairTrainer):
    """`CPOTrainer` at its defaults."""

    algorithm = "CPO"
    expected_failures = NLL_PER_MICRO_BATCH
    objective_spec = ObjectiveSpec(kind="cpo", beta=0.1, nll_weight=1.0)


class ORPO(PairTrainer):
    """`ORPOTrainer` at its defaults; its likelihood is that of prompt and chosen completion, as its code says."""

    algorithm = "ORPO"
    expected_failures = NLL_PER_MICRO_BATCH
    objective_spec = ObjectiveSpec(kind="orpo", beta=0.1, nll_weight=1.0, nll_over="all")
