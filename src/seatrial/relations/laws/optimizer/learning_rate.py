"""R24: learning rates equal the closed form of the schedule at every step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.law import Law, Measure, Relation


@dataclass(frozen=True, kw_only=True)
class ScheduleCase:
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

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return vars(self)

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


def _closed_form(stack: Any, case: ScheduleCase) -> Measure:
    given = list(
        stack.learning_rates(
            lr=case.lr, warmup_steps=case.warmup_steps, num_steps=case.num_steps, schedule=case.schedule
        )
    )
    if len(given) != case.num_steps:
        return Measure(error=float("inf"), bound=0, what=f"{len(given)} rates for {case.num_steps} steps")
    errors = [abs(rate - case.expected(step)) / case.lr for step, rate in enumerate(given, start=1)]
    worst = max(
        range(len(errors)), key=lambda index: math.inf if math.isnan(errors[index]) else errors[index]
    )
    return Measure(
        error=errors[worst],
        bound=1e-6,
        what=f"rate of step {worst + 1}: {given[worst]:.6g}, closed form {case.expected(worst + 1):.6g}, of the peak",
    )


RELATIONS = (
    Relation(
        id="R24.learning_rate",
        name="learning-rate-is-the-closed-form",
        component="learning_rate",
        statement="The learning rate of every optimizer step equals the schedule's closed form.",
        catalogue=("SB217", "SB218", "SB219", "SB225", "SB298", "SB304"),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="constant after warm-up",
                make=_make_constant,
                measure=_closed_form,
                suspects="warm-up ignored or never ending, a decay that nobody asked for",
            ),
            Law(
                name="closed form",
                make=_make,
                measure=_closed_form,
                suspects="the schedule stepped per micro-batch or per epoch, off by one at the start, warm-up ignored",
            ),
        ),
    ),
)
