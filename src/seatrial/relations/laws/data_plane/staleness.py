"""R24: weight syncs follow their cadence, samples are fresh up to the staleness bound, bad cadences are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation

NUM_VERSIONS = 13


@dataclass(frozen=True, kw_only=True)
class CadenceCase(Case):
    """How often to step and to sync, in prompts."""

    prompts_per_step: int
    prompts_per_forward_backward: int
    prompts_per_sync: int | None
    prompts_per_reference_sync: int | None
    max_staleness: int

    def smaller(self) -> Iterator[CadenceCase]:
        """Yield the case without reference syncs, then with a sampler sync after every step."""
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
    name="staleness-follows-the-bound",
    component="staleness_schedule",
    statement="Samples are fresh up to max_staleness, inclusive; syncs follow their cadence; bad cadences are refused.",
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
    return Measure.count(wrong, f"pairs of versions judged wrong with max_staleness {case.max_staleness}")


@STALENESS.law("the future is refused", "a one-sided filter that a restarted version counter passes")
def the_future_is_refused(stack: Any, case: CadenceCase) -> Measure:
    schedule = stack.make_schedule(**case.describe())
    taken = [] if _refuses(lambda: schedule.is_fresh(4, 3)) else ["sample 4, trainer 3"]
    return Measure.count(taken, "samples of a future weight version, accepted")


@STALENESS.law("syncs when due", "off by one, prompts counted as steps, rounding")
def syncs_when_due(stack: Any, case: CadenceCase) -> Measure:
    schedule = stack.make_schedule(**case.describe())
    wrong = []
    for version in range(1, NUM_VERSIONS):
        prompts = version * case.prompts_per_step
        sampler = prompts % (case.prompts_per_sync or case.prompts_per_step) == 0
        every = case.prompts_per_reference_sync
        reference = every is not None and prompts % every == 0
        if schedule.syncs_sampler(version) != sampler:
            wrong.append(f"sampler sync after step {version}")
        if schedule.syncs_reference(version) != reference:
            wrong.append(f"reference sync after step {version}")
    passes = case.prompts_per_step // case.prompts_per_forward_backward
    if schedule.accumulation_steps != passes:
        wrong.append(f"{schedule.accumulation_steps} accumulation steps, expected {passes}")
    return Measure.count(wrong, "syncs or accumulation steps that differ from the cadence")


@STALENESS.law(
    "bad cadences are refused",
    "integer division that rounds, a staleness bound that no sample meets, so that training waits forever",
)
def bad_cadences_are_refused(stack: Any, case: CadenceCase) -> Measure:
    """Each bad cadence differs from a valid one in one number and is refused."""
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
    return Measure.count(
        taken, "cadences accepted that do not divide evenly or leave the trainer without samples"
    )


def _refuses(call: Any) -> bool:
    try:
        call()
    except ValueError:
        return True
    return False
