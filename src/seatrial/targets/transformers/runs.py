"""Schedules of `transformers.Trainer` by name, and its runs that are stopped and resumed."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from seatrial.relations.contracts.resumed_training import TrainedRun, TrainingPlan
from seatrial.relations.contracts.schedules import SchedulePlan
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.schedules import FORMULAS
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name
from seatrial.targets.transformers.small import train

SKIPPED_LOGS = ("runtime", "per_second", "flos")
"""What depends on the clock, or is not logged by every release."""
BY_METRIC = {
    "reduce_lr_on_plateau": "its rates follow a metric of evaluations, and no formula",
    "greedy": "its rates follow the losses, and no formula",
}
"""Schedules without a formula."""


def schedule_names() -> list[str]:
    """Return the names of the installed release's schedules."""
    kinds = find_name(
        "transformers", ["transformers.trainer_utils:SchedulerType", "transformers:SchedulerType"]
    )
    return [str(one.value) for one in kinds]


class Schedules(KnowsFailures):
    """The schedules that the installed release names; see `contracts.NamedSchedules`."""

    known_failures = (
        KnownFailure(
            "the schedule inverse_sqrt is made without its options",
            finding="Transformers: options of the schedule inverse_sqrt",
            releases=before("transformers", "5.4"),
        ).of("R24.schedules/with options"),
    )

    def __init__(self) -> None:
        """Find the schedules that have a formula."""
        self.schedule_names: Sequence[str] = [name for name in schedule_names() if name in FORMULAS]

    def scheduled_rates(self, plan: SchedulePlan) -> Sequence[float]:
        makers: Any = find_name("transformers", ["transformers.optimization:TYPE_TO_SCHEDULER_FUNCTION"])
        known = inspect.signature(makers[plan.name]).parameters
        missing = sorted(set(plan.options) - set(known))
        if missing:
            raise NotServed(f"the schedule {plan.name} of this release has no {', '.join(missing)}")
        if "num_stable_steps" in known and known["num_stable_steps"].default is inspect.Parameter.empty:
            raise NotServed(f"the schedule {plan.name} of this release needs num_stable_steps")
        share = 0 < plan.warmup < 1
        observed = train(
            {
                "learning_rate": plan.peak,
                "lr_scheduler_type": plan.name,
                "lr_scheduler_kwargs": dict(plan.options),
                **_warmup(plan.warmup, share=share),
                "max_steps": plan.num_steps,
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": plan.num_micro_batches,
            },
            num_examples=6,
            ends_after=(plan.ends_after,) if plan.ends_after else (),
        )
        return [observed.rates[step] for step in sorted(observed.rates)]


def _warmup(warmup: float, *, share: bool) -> dict[str, Any]:
    """Return the option of a warm-up; a share has one of its own before Transformers 5."""
    import transformers

    has_ratio = "warmup_ratio" in inspect.signature(transformers.TrainingArguments).parameters
    if share and has_ratio:
        return {"warmup_ratio": warmup}
    return {"warmup_steps": warmup if share else int(warmup)}


class Resumes(KnowsFailures):
    """Runs that are stopped after a checkpoint and resumed from it; see `contracts.ResumedTraining`."""

    has_dropout = True
    serves_every_example = True

    def train_as_planned(self, plan: TrainingPlan) -> TrainedRun:
        observed = train(
            {
                "learning_rate": 0.05,
                "lr_scheduler_type": plan.schedule,
                "max_steps": plan.num_steps,
                "per_device_train_batch_size": plan.batch_size // plan.num_micro_batches,
                "gradient_accumulation_steps": plan.num_micro_batches,
                "max_grad_norm": 1.0,
            },
            num_examples=plan.num_examples,
            ends_after=plan.ends_after,
            loses_a_step=plan.loses_a_step,
            dropout=0.3 if plan.dropout else 0.0,
            seed=plan.seed,
        )
        model, optimizer = observed.trainer.model, observed.trainer.optimizer
        optimizer = getattr(optimizer, "optimizer", optimizer)
        names = {id(value): name for name, value in model.named_parameters()}
        return TrainedRun(
            weights={name: value.detach().clone() for name, value in model.named_parameters()},
            optimizer={
                f"{names[id(value)]}.{key}": torch.as_tensor(moment).detach().clone()
                for value, state in optimizer.state.items()
                for key, moment in state.items()
                if moment is not None
            },
            served=observed.served,
            rates=observed.rates,
            log=list(_logged(observed.trainer.state.log_history)),
        )


def _logged(history: Sequence[dict[str, Any]]) -> Iterator[tuple[str, int, float]]:
    """Yield what is logged of steps; the summary at the end is of one call of `train()`, and not of the run."""
    for entry in (one for one in history if "train_runtime" not in one):
        for name, value in entry.items():
            if name != "step" and not any(word in name for word in SKIPPED_LOGS):
                yield name, int(entry["step"]), float(value)


ADAPTERS: dict[str, type[Any]] = {"schedules": Schedules, "resumed-training": Resumes}
