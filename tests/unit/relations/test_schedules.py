"""R24.schedules: formulas against numbers that were worked out by hand, and a stack that breaks each law."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from seatrial.relations.contracts.schedules import SchedulePlan
from seatrial.relations.engine import run_relation
from seatrial.relations.oracles.schedules import FORMULAS, scheduled_rate
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

HALF, ROOT = 0.5, 0.5**0.5
BY_HAND = [
    ("constant", {}, 3, [1, 1, 1, 1, 1, 1, 1]),
    ("constant_with_warmup", {}, 3, [0, 1 / 3, 2 / 3, 1, 1, 1, 1]),
    ("linear", {}, 3, [0, 1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25]),
    ("cosine", {}, 3, [0, 1 / 3, 2 / 3, 1, (1 + ROOT) / 2, 0.5, (1 - ROOT) / 2]),
    ("cosine_with_restarts", {"num_cycles": 2}, 3, [0, 1 / 3, 2 / 3, 1, 0.5, 1, 0.5]),
    (
        "cosine_with_init_lr",
        {"init_lr_ratio": 0.4, "min_lr_ratio": 0.2},
        3,
        [0.4, 0.6, 0.8, 1, 0.2 + 0.4 * (1 + ROOT), 0.6, None],
    ),
    ("cosine_with_init_lr", {"zero_indexed_step": False}, 3, [1 / 3, 2 / 3, 1, (1 + ROOT) / 2, 0.5, None, 0]),
    ("cosine_with_min_lr", {"min_lr": 0.2}, 3, [0, 1 / 3, 2 / 3, 1, 0.1 + 0.9 * (1 + ROOT) / 2, 0.55, None]),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.2}, 3, [1 / 3, 2 / 3, 1, None, 0.6, None, 0.2]),
    ("polynomial", {"power": 2, "lr_end": 0.4}, 3, [0, 1 / 3, 2 / 3, 1, 0.2 + 0.8 * 9 / 16, 0.4, 0.25]),
    ("inverse_sqrt", {}, 3, [0, 1 / 3, 2 / 3, 1, (3 / 4) ** 0.5, (3 / 5) ** 0.5, ROOT]),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 2, "decay_type": "linear"},
        3,
        [0, 1 / 3, 2 / 3, 1, 1, 1, 0.5],
    ),
]


@pytest.mark.parametrize(("name", "options", "warmup", "shares"), BY_HAND)
def test_formulas(name: str, options: dict[str, Any], warmup: int, shares: Sequence[float | None]) -> None:
    """A rate of 2 in seven steps, as shares of it; None is not compared."""
    given = {
        "policy.optimizer.lr": 2.0,
        "policy.scheduler.name": name,
        "policy.scheduler.warmup_steps": warmup,
        **{f"policy.scheduler.{key}": value for key, value in options.items()},
    }
    for step, share in enumerate(shares, start=1):
        if share is not None:
            assert scheduled_rate(given, step, 7) == pytest.approx(2 * share), step


def test_every_formula_is_worked_out() -> None:
    """A new one needs its line above."""
    assert {name for name, *_ in BY_HAND} == set(FORMULAS)


class Stack:
    """A trainer whose rates are the formulas', but for a fault."""

    schedule_names = ("linear", "cosine", "polynomial")

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def scheduled_rates(self, plan: SchedulePlan) -> list[float]:
        """Return the rates of every step."""
        rates = self._rates(plan)
        if self.fault == "restarts" and plan.ends_after:
            rates = [*rates[: plan.ends_after], *rates[: plan.num_steps - plan.ends_after]]
        if self.fault == "micro-batches" and plan.num_micro_batches > 1:
            rates = rates[::2] + [0.0] * (len(rates) // 2)
        if self.fault == "ends early":
            rates = rates[:-1]
        return rates

    def _rates(self, plan: SchedulePlan) -> list[float]:
        if self.fault == "no warm-up":
            plan = replace(plan, warmup=0)
        if self.fault == "share rounded down" and 0 < plan.warmup < 1:
            plan = replace(plan, warmup=int(plan.warmup * plan.num_steps))
        options = {} if self.fault == "options" else dict(plan.options)
        given = {
            "policy.optimizer.lr": plan.peak,
            "policy.scheduler.name": plan.name,
            "policy.scheduler.warmup_steps": plan.warmup,
            **{f"policy.scheduler.{key}": value for key, value in options.items()},
        }
        return [scheduled_rate(given, step, plan.num_steps) for step in range(1, plan.num_steps + 1)]


def test_a_stack_with_the_formulas_holds() -> None:
    """All laws are exercised."""
    (relation,) = select(["R24.schedules"])
    verdict = run_relation(relation, Stack(), seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert len(verdict.details["laws"]) == len(relation.laws)


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("no warm-up", "with a warm-up"),
        ("share rounded down", "with a warm-up of a share of the steps"),
        ("options", "with options"),
        ("micro-batches", "several micro-batches a step"),
        ("restarts", "after a resume"),
        ("ends early", "without a warm-up"),
    ],
)
def test_each_law_breaks(fault: str, law: str) -> None:
    """One fault for each law."""
    (relation,) = select(["R24.schedules"])
    assert law in run_relation(relation, Stack(fault), seeds=[0]).details["laws_broken"]
