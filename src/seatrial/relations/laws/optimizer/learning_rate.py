"""R24: learning rates equal the closed form of the schedule at every step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.worst import Worst


@dataclass(frozen=True, kw_only=True)
class ScheduleCase(Case):
    """A schedule."""

    lr: float
    warmup_steps: int
    num_steps: int
    schedule: str

    def smaller(self) -> Iterator[ScheduleCase]:
        """Yield the schedule without warm-up, then shorter."""
        if self.warmup_steps:
            yield replace(self, warmup_steps=0)
        if self.num_steps > 2:
            yield replace(self, num_steps=2, warmup_steps=min(self.warmup_steps, 1))

    def expected(self, step: int) -> float:
        """Return the rate of step 1..num_steps: linear warm-up to the peak, then the decay to 0."""
        if step <= self.warmup_steps:
            return self.lr * step / self.warmup_steps
        progress = (step - 1 - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps)
        shape = {
            "constant": 1.0,
            "linear": 1.0 - progress,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        }[self.schedule]
        return self.lr * shape


def _make(stack: Any, seed: int, tidy: bool) -> ScheduleCase:
    if tidy:
        return ScheduleCase(lr=1e-3, warmup_steps=0, num_steps=4, schedule="constant")
    return ScheduleCase(
        lr=3e-4 * (seed + 1),
        warmup_steps=(3, 2, 5)[seed % 3],
        num_steps=(11, 7, 13)[seed % 3],
        schedule=("cosine", "linear")[seed % 2],
    )


def _make_constant(stack: Any, seed: int, tidy: bool) -> ScheduleCase:
    return replace(_make(stack, seed, tidy), schedule="constant")


LEARNING_RATE = Relation(
    id="R24.learning_rate",
    name="learning-rate-is-the-closed-form",
    component="learning_rate",
    statement="The learning rate of every optimizer step equals the schedule's closed form.",
    catalogue="SB217 SB218 SB219 SB225 SB298 SB304",
    cost="CPU, milliseconds",
)


@LEARNING_RATE.law(
    "constant after warm-up",
    "warm-up ignored or never ending, a decay that was not configured",
    cases=_make_constant,
)
@LEARNING_RATE.law(
    "closed form",
    "the schedule stepped per micro-batch or per epoch, off by one at the start, warm-up ignored",
    cases=_make,
)
def rates_equal_closed_form(stack: Any, case: ScheduleCase) -> Measure:
    """Compare the learning rate of every step with the closed form of the schedule."""
    given = list(stack.learning_rates(**vars(case)))
    if len(given) != case.num_steps:
        return Measure(error=float("inf"), bound=0, what=f"{len(given)} rates for {case.num_steps} steps")
    worst = Worst(place="every rate is right")
    for step, rate in enumerate(given, start=1):
        right = case.expected(step)
        worst.add(abs(rate - right) / case.lr, f"step {step}: {rate:.6g}, closed form {right:.6g}")
    return Measure(error=worst.error, bound=1e-6, what=f"learning rates, {worst.place}, relative to the peak")
