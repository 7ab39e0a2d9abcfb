"""`transformers.Trainer` in several processes of a gloo group: gradients, what it logs, and gathered predictions."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy
import torch
from packaging.version import Version

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.loops import GatheredAs, LoaderPlan
from seatrial.relations.contracts.ranks import Layout
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.ranks import StepsOnRanks, call_on_ranks
from seatrial.targets.common.target import find_name, release
from seatrial.targets.common.trainers import (
    CPU_OPTIONS,
    CapturingOptimizer,
    captured_step,
    configuration,
    equal_size,
    in_order,
    new_folder,
)
from seatrial.targets.common.vectors import numbers, vectors
from seatrial.targets.transformers.causal import CausalLM
from seatrial.targets.transformers.collators import CACHED_ROWS, Flattened
from seatrial.targets.transformers.small import Small

LOGGED = ("grad_norm", "num_input_tokens_seen")
"""What is compared of the log, in addition to the loss."""


def _counts() -> dict[str, Any]:
    """Return the option that counts ids; earlier releases count padding, which depends on the ranks."""
    if Version(release("transformers")) < Version("4.57"):
        return {}
    return {"include_num_input_tokens_seen": "non_padding"}


class RankedCausalLM(StepsOnRanks, CausalLM):
    """The loss on completions, rows distributed over processes; see `contracts.Ranks`."""

    objective_spec = ObjectiveSpec(kind="sft", trains="completion")
    known_failures: ClassVar[Sequence[KnownFailure]] = ()

    def objective_rank_step(self, examples: Sequence[Example], layout: Layout, rank: int) -> StepResult:
        import transformers
        from datasets import Dataset

        size = equal_size([part for own in layout for part in own])
        num_micro_batches = len(layout[rank])
        # The loader gives one micro-batch after the other to the processes in turn.
        rows = [
            self._row(examples[row])
            for place in range(num_micro_batches)
            for own in layout
            for row in own[place]
        ]
        model = copy.deepcopy(self.objective_model())
        optimizer = CapturingOptimizer(model.parameters())
        trainer_class: Any = transformers.Trainer
        trainer = trainer_class(
            model=model,
            args=configuration(
                transformers.TrainingArguments,
                {"per_device_train_batch_size": size, "gradient_accumulation_steps": num_micro_batches},
                {**_counts(), "average_tokens_across_devices": True},
            ),
            data_collator=self._collate,
            train_dataset=Dataset.from_list(rows),
            optimizers=(optimizer, None),
        )
        step = captured_step(in_order(trainer), model, optimizer)
        log: Mapping[str, Any] = next(one for one in trainer.state.log_history if "loss" in one)
        return StepResult(
            loss=step.loss,
            gradients=step.gradients,
            metrics={name: float(log[name]) for name in LOGGED if name in log},
        )


class RankedFlattened(RankedCausalLM, Flattened):
    """The same, rows of a micro-batch laid end to end."""

    _collate = Flattened._collate
    known_failures = (
        CACHED_ROWS,
        CACHED_ROWS.of(
            "R2.ranks/gradient, ranks alike",
            "R2.ranks/gradient, ranks of unequal numbers of tokens",
            "R2.ranks/logged loss, ranks of unequal numbers of tokens",
        ),
    )


class Predictions(KnowsFailures):
    """What `Trainer.predict` gathers; see `contracts.loops.MetricGather`."""

    accumulation: ClassVar[int | None] = None
    """Steps after which predictions go to the CPU; None: once, at the end."""

    def __init__(self) -> None:
        """Find the trainer."""
        find_name("transformers", ["transformers:Trainer"])

    def gathered_rows(self, plan: LoaderPlan, kind: GatheredAs) -> Sequence[Sequence[int]]:
        if plan.drop_last or plan.drawn is not None or plan.shuffle or plan.iterable or plan.skip:
            raise NotServed("an evaluation of the trainer is of every row of a data set, in its order")
        if kind == "objects":
            raise NotServed("predictions of the trainer are tensors")
        found: Sequence[Sequence[int]] = call_on_ranks(
            f"{__name__}:predicted",
            {**vars(plan), "kind": kind, "accumulation": self.accumulation},
            plan.num_ranks,
        )
        return found


class PredictionsInParts(Predictions):
    """The same, moved to the CPU after every two steps."""

    accumulation = 2


class _Numbers(Small):
    """Gives the number of an example as its prediction."""

    def __init__(self, kind: str) -> None:
        super().__init__(0.0, 0)
        self.kind = kind

    def forward(self, number: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        found = super().forward(number, labels)
        rows = number.float()
        if self.kind == "tensors of unequal widths":
            return {**found, "logits": vectors(number.tolist()).float()}
        return {
            **found,
            "logits": {"row": rows, "twice": (rows * 2, rows)} if "dictionary" in self.kind else rows,
        }


def predicted(plan: Mapping[str, Any]) -> list[int]:
    """Return the numbers of the examples that this process has gathered after an evaluation of all."""
    import transformers
    from datasets import Dataset

    args: Any = transformers.TrainingArguments
    options = {
        **CPU_OPTIONS,
        "per_device_eval_batch_size": plan["batch_size"]
        // (int(os.environ["WORLD_SIZE"]) if plan["split"] else 1),
        "accelerator_config": {"dispatch_batches": plan["dispatch"], "even_batches": plan["even"]},
        "eval_accumulation_steps": plan["accumulation"],
    }
    trainer_class: Any = transformers.Trainer
    trainer = trainer_class(
        model=_Numbers(plan["kind"]),
        args=args(output_dir=new_folder(), **options),
    )
    found = trainer.predict(
        Dataset.from_list([{"number": row, "labels": float(row)} for row in range(plan["num_rows"])])
    )
    rows, labels = found.predictions, found.label_ids
    if plan["kind"] == "tensors of unequal widths":
        rows = numpy.array(numbers(rows.tolist()))
    if isinstance(rows, dict):
        twice = rows["twice"]
        rows = rows["row"]
        if (twice[0] != rows * 2).any() or (twice[1] != rows).any():
            return [-1]
    if len(labels) != len(rows) or (labels != rows).any():
        return [-1]
    return [int(row) for row in rows]


ADAPTERS: dict[str, type[Any]] = {
    "causal-lm-ranks": RankedCausalLM,
    "flattening-ranks": RankedFlattened,
    "predictions": Predictions,
    "predictions-in-parts": PredictionsInParts,
}
