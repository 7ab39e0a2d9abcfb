"""R24: syncs come when they are due, samples are fresh up to the bound and not beyond, bad cadences are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation

NUM_VERSIONS = 13


@dataclass(frozen=True, kw_only=True)
class CadenceCase(Case):
    """Cadences in prompts."""

    prompts_per_step: int
    prompts_per_forward_backward: int
    prompts_per_sync: int | None
    prompts_per_reference_sync: int | None
    max_staleness: int

    def smaller(self) -> Iterator[CadenceCase]:
        """Yield the case without a reference sync, then with a sync after every step."""
        if self.prompts_per_reference_sync is not None:
            yield replace(self, prompts_per_reference_sync=None)
        if self.prompts_per_sync is not None:
            yield replace(self, prompts_per_sync=None)


GOOD = (
    CadenceCase(
        prompts_per_step=12,
        prompts_per_forward_backward=4,
        prompts_per_sync=24,
        prompts_per_reference_sync=60,
        max_staleness=2,
    ),
    CadenceCase(
        prompts_per_step=6,
        prompts_per_forward_backward=2,
        prompts_per_sync=18,
        prompts_per_reference_sync=12,
        max_staleness=3,
    ),
    CadenceCase(
        prompts_per_step=10,
        prompts_per_forward_backward=5,
        prompts_per_sync=30,
        prompts_per_reference_sync=20,
        max_staleness=2,
    ),
)
TIDY = CadenceCase(
    prompts_per_step=4,
    prompts_per_forward_backward=4,
    prompts_per_sync=None,
    prompts_per_reference_sync=None,
    max_staleness=0,
)


def _make(stack: Any, seed: int, tidy: bool) -> CadenceCase:
    return TIDY if tidy else GOOD[seed % len(GOOD)]


STALENESS = Relation(
    id="R24.staleness",
    name="staleness-is-the-closed-form",
    component="staleness_schedule",
    statement="Samples are fresh up to the bound, inclusive; syncs fall on their cadence; bad ones are refused.",
    catalogue="SB282 SB289",
    cost="CPU, milliseconds",
    cases=_make,
)


@STALENESS.law(
    "fresh up to the bound",
    "the comparison inverted or strict, staleness counted in syncs instead of steps",
)
def fresh_up_to_the_bound(stack: Any, case: CadenceCase) -> Measure:
    schedule = stack.make_schedule(**case.describe())
    wrong = [
        f"sample {sample}, trainer {trainer}"
        for trainer in range(NUM_VERSIONS)
        for sample in range(trainer + 1)
        if schedule.is_fresh(sample, trainer) != (trainer - sample <= case.max_staleness)
    ]
    return Measure.count(wrong, f"pairs of versions judged wrongly for max_staleness {case.max_staleness}")


@STALENESS.law("the future is refused", "a one-sided filter that a restarted version counter passes")
def the_future_is_refused(stack: Any, case: CadenceCase) -> Measure:
    schedule = stack.make_schedule(**case.describe())
    taken = [] if _refuses(lambda: schedule.is_fresh(4, 3)) else ["sample 4, trainer 3"]
    return Measure.count(taken, "samples of weights that the trainer does not have yet, taken")


@STALENESS.law("syncs when due", "off by one, prompts taken for steps, rounding")
def syncs_when_due(stack: Any, case: CadenceCase) -> Measure:
    schedule = stack.make_schedule(**case.describe())
    wrong = []
    for version in range(1, NUM_VERSIONS):
        prompts = version * case.prompts_per_step
        sampler = prompts % (case.prompts_per_sync or case.prompts_per_step) == 0
        every = case.prompts_per_reference_sync
        reference = every is not None and prompts % every == 0
        if schedule.syncs_sampler(version) != sampler:
            wrong.append(f"sampler after step {version}")
        if schedule.syncs_reference(version) != reference:
            wrong.append(f"reference after step {version}")
    passes = case.prompts_per_step // case.prompts_per_forward_backward
    if schedule.accumulation_steps != passes:
        wrong.append(f"{schedule.accumulation_steps} passes a step instead of {passes}")
    return Measure.count(wrong, "syncs or passes that are not those of the cadence")


@STALENESS.law(
    "bad cadences",
    "integer division that rounds, a bound that no sample meets so that training waits for ever",
)
def bad_cadences_are_refused(stack: Any, case: CadenceCase) -> Measure:
    """Each differs from a good one in one number."""
    step = case.prompts_per_step
    bad: list[dict[str, Any]] = [
        {"prompts_per_forward_backward": step + 1},
        {"prompts_per_forward_backward": 0},
        {"prompts_per_sync": step + 1, "max_staleness": 9},
        {"prompts_per_reference_sync": step + 1},
        {"prompts_per_sync": 3 * step, "max_staleness": 1},
        {"max_staleness": -1, "prompts_per_sync": step},
    ]
    taken = [
        str(change)
        for change in bad
        if not _refuses(lambda change=change: stack.make_schedule(**{**case.describe(), **change}))
    ]
    return Measure.count(taken, "cadences that never come out even, or starve the trainer, accepted")


def _refuses(call: Any) -> bool:
    try:
        call()
    except ValueError:
        return True
    return False
