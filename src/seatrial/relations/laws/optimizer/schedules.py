"""R24.schedules: every named schedule of a trainer has the rates of its documentation, after a resume too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.schedules import SchedulePlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.schedules import scheduled_rate

NEEDED: Mapping[str, Mapping[str, Any]] = {
    "cosine_with_init_lr": {"init_lr_ratio": 0.2, "min_lr_ratio": 0.2},
    "cosine_with_min_lr": {"min_lr": 0.003},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.2},
    "warmup_stable_decay": {"num_decay_steps": 3},
}
"""Options without which a schedule of this name cannot be made."""
CHOSEN: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "cosine": [{"num_cycles": 1.5}],
    "cosine_with_restarts": [{"num_cycles": 2}],
    "cosine_with_init_lr": [
        {"init_lr_ratio": 0.3, "min_lr_ratio": 0.3, "num_cycles": 1.5},
        {"init_lr_ratio": 0.4, "min_lr_ratio": 0.1},
        {"min_lr_ratio": 0.1, "zero_indexed_step": False},
    ],
    "cosine_with_min_lr": [{"min_lr_rate": 0.3, "num_cycles": 0.25}],
    "cosine_warmup_with_min_lr": [{"min_lr": 0.002, "warmup_lr_rate": 0.4}],
    "polynomial": [{"power": 2.0, "lr_end": 0.001}],
    "inverse_sqrt": [{"timescale": 5}],
    "warmup_stable_decay": [
        {"num_decay_steps": 2, "num_stable_steps": 3, "min_lr_ratio": 0.2, "decay_type": "linear"},
        {"num_decay_steps": 4, "min_lr_ratio": 0.1, "warmup_type": "cosine", "decay_type": "1-sqrt"},
        {"num_decay_steps": 4, "warmup_type": "1-sqrt", "num_cycles": 0.25},
    ],
}
"""Other options of a schedule than the default."""


@dataclass(frozen=True)
class AllNames(Case):
    """Every schedule of the stack."""


def _every(stack: Any, seed: int, tidy: bool) -> AllNames:
    return AllNames()


SCHEDULES = Relation(
    id="R24.schedules",
    name="schedules-are-their-documentation",
    component="named_schedules",
    statement="The rate of every step of a run is that of the schedule's formula, resumed or not.",
    catalogue="SB217 SB218 SB219 SB225 SB298 SB304",
    cost="CPU, seconds",
    cases=_every,
    seeded=False,
)
Plans = Callable[[str], Sequence[SchedulePlan]]


def _default(name: str) -> Mapping[str, Any]:
    return NEEDED.get(name, {})


@SCHEDULES.law(
    "without a warm-up",
    "the schedule advanced before the first step, or once for each micro-batch",
    plans=lambda name: [SchedulePlan(name=name, options=_default(name))],
)
@SCHEDULES.law(
    "with a warm-up",
    "a warm-up that is left out, or one step longer; a decay that begins at the first step",
    plans=lambda name: [SchedulePlan(name=name, options=_default(name), warmup=3)],
)
@SCHEDULES.law(
    "with a warm-up of a share of the steps",
    "a share rounded down, or taken of another number of steps",
    plans=lambda name: [SchedulePlan(name=name, options=_default(name), warmup=0.3, num_steps=8)],
)
@SCHEDULES.law(
    "with options",
    "an option that is not passed on",
    plans=lambda name: [SchedulePlan(name=name, options=one, warmup=2) for one in CHOSEN.get(name, ())],
)
@SCHEDULES.law(
    "several micro-batches a step",
    "the schedule advanced for each micro-batch, or its length in micro-batches",
    plans=lambda name: [SchedulePlan(name=name, options=_default(name), warmup=2, num_micro_batches=2)],
)
@SCHEDULES.law(
    "after a resume",
    "a schedule that begins again, or that is as long as what is left",
    plans=lambda name: [
        SchedulePlan(name=name, options=_default(name), warmup=3, ends_after=after) for after in (2, 5)
    ],
)
def rates_are_the_formula(stack: Any, case: AllNames, *, plans: Plans) -> Measure:
    """Compare the rate of every step with the formula, for every name.

    Raises:
        NotServed: the stack serves none of the plans.
    """
    found: list[tuple[float, str]] = []
    refused: NotServed | None = None
    for plan in (one for name in stack.schedule_names for one in plans(name)):
        try:
            rates = list(stack.scheduled_rates(plan))
        except NotServed as error:
            refused = error
            continue
        found += _errors(plan, rates)
    if refused is not None and not found:
        raise refused
    return Measure.largest(found, 1e-6, "learning rates, relative to the peak")


def _errors(plan: SchedulePlan, rates: Sequence[float]) -> list[tuple[float, str]]:
    """Return the difference of each step from the formula, with its place."""
    options = {
        "policy.optimizer.lr": plan.peak,
        "policy.scheduler.name": plan.name,
        "policy.scheduler.warmup_steps": plan.warmup,
        **{f"policy.scheduler.{name}": value for name, value in plan.options.items()},
    }
    if len(rates) != plan.num_steps:
        return [(float("inf"), f"{plan.name}: {len(rates)} steps of {plan.num_steps}")]
    due = [scheduled_rate(options, step, plan.num_steps) for step in range(1, plan.num_steps + 1)]
    return [
        (
            abs(rate - right) / plan.peak,
            f"{plan.name} with {dict(plan.options)}, step {step}: {rate:.6g}, {right:.6g} is due",
        )
        for step, (rate, right) in enumerate(zip(rates, due, strict=True), start=1)
    ]
