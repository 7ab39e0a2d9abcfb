"""Times a step from outside, between the calls of an observer, to check the seconds that the run logs of its phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

BEFORE_TRAINING = (
    "generation",
    "reward_calculation",
    "logprob_inference_prep",
    "policy_and_reference_logprobs",
    "advantage_calculation",
)
"""Phases between the sync of a step and its first micro-batch."""
LEAST_SHARE = 0.05
"""Of the time of all steps between sync and training, without that of the guards, that these phases take at least: the
rest is bookkeeping, a tenth of the shortest steps."""
SLACK = 1e-3
"""Seconds, for rounding to float32 of long steps too."""


class Spans(NamedTuple):
    """Seconds of one step."""

    before: float | None
    """From the sync to the first micro-batch; None for fine-tuning, which samples nothing."""
    guarding: float
    """Of these, what the guards themselves took."""
    training: float
    """From the first micro-batch to the last one."""


class Stopwatch:
    """Notes when a sync ends and when micro-batches pass."""

    def __init__(self) -> None:
        """Begin with no step."""
        self._synced: float | None = None
        self._passes: list[float] = []
        self._guarding = 0.0
        self._spans: dict[int, Spans] = {}

    def synced(self) -> None:
        """Note the first sync of a step."""
        self._synced = self._synced or time.perf_counter()

    @contextmanager
    def guarding(self) -> Iterator[None]:
        """Note what guards take between the sync and the first micro-batch: no phase of the run has it."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self._synced is not None and not self._passes:
                self._guarding += time.perf_counter() - start

    def passed(self) -> None:
        """Note a micro-batch."""
        self._passes.append(time.perf_counter())

    def validated(self) -> None:
        """Clear the sync of a validation."""
        self._synced, self._guarding = None, 0.0

    def step(self, step: int) -> None:
        """Close a step."""
        if self._passes:
            first, last = self._passes[0], self._passes[-1]
            before = None if self._synced is None else first - self._synced
            self._spans[step] = Spans(before, self._guarding, last - first)
        self._synced, self._passes, self._guarding = None, [], 0.0

    def wrong(self, logged: Callable[[int, str], float | None]) -> Iterator[str]:
        """Yield seconds that cannot be those of the steps; `logged` returns those of a step and a phase."""
        spent = taken = 0.0
        for step, (before, guarding, training) in self._spans.items():
            total, trained = (logged(step, name) or 0.0 for name in ("total_step_time", "policy_training"))
            if not trained * 1.001 + SLACK >= training:
                yield f"step {step}: policy_training is {trained:.4g} s, its micro-batches took {training:.4g} s"
            if not total * 1.001 + SLACK >= (before or 0.0) + training:
                yield f"step {step}: the step is {total:.4g} s, parts of it took {(before or 0) + training:.4g} s"
            if before is None:
                continue
            phases = sum(logged(step, name) or 0.0 for name in BEFORE_TRAINING)
            if not phases <= before * 1.001 + SLACK:
                yield f"step {step}: phases before training are {phases:.4g} s, there were {before:.4g} s"
            spent, taken = spent + before - guarding, taken + phases
        if not taken >= LEAST_SHARE * spent - SLACK:
            yield f"phases before training are {taken:.4g} s, all steps together had {spent:.4g} s"
