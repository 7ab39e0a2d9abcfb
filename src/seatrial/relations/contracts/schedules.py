"""Contract of named schedules: the learning rate of every step of a real run, by the schedule's name and options.

Part of `seatrial.relations.contracts`, which lists every component. Rates of one schedule without a trainer:
`LearningRate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case


@dataclass(frozen=True, kw_only=True)
class SchedulePlan(Case):
    """A run of a trainer with a schedule; a made input."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the schedule, by the names of its documentation."""
    peak: float = 0.03
    warmup: float = 0
    """Steps of the warm-up; below 1 a share of all steps."""
    num_steps: int = 9
    ends_after: int = 0
    """Step after whose checkpoint the run is stopped and resumed; 0: none."""
    num_micro_batches: int = 1

    def smaller(self) -> Iterator[SchedulePlan]:
        """Yield the plan of fewer steps."""
        if self.num_steps > 4 and not self.ends_after:
            yield replace(self, num_steps=4)


@runtime_checkable
class NamedSchedules(Protocol):
    """A trainer whose schedules have names."""

    schedule_names: Sequence[str]
    """Those that `oracles.schedules` has a closed form of."""

    def scheduled_rates(self, plan: SchedulePlan) -> Sequence[float]:
        """Return the rate with which the optimizer takes each step.

        Raises:
            NotServed: the release has no schedule of this name, or no such option.
        """
        ...
