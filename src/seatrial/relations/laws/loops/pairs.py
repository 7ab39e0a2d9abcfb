"""R30.rows: loaders with pairs of options read every row once, in the order of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.cases.pairwise import pairwise
from seatrial.relations.contracts.loops import LoaderPlan
from seatrial.relations.law import Measure
from seatrial.relations.laws.loops.rows import (
    ROWS,
    batches_have_one_size,
    every_row_once,
    order_of_one_process,
    resumed_epoch_continues,
)
from seatrial.relations.not_served import NotServed

OPTIONS: Mapping[str, Sequence[Any]] = {
    "num_rows": (11, 12, 1, 3, 24),
    "batch_size": (2, 1, 3),
    "num_ranks": (2, 3, 1),
    "split": (False, True),
    "dispatch": (False, True),
    "even": (True, False),
    "drop_last": (False, True),
    "shuffle": (False, True),
    "iterable": (False, True),
    "drawn": (None, 9),
    "skip": (0, 1),
}
"""Values of each option; the first ones are those of the plain plan. `batch_size` is that of a process."""


def _is_allowed(row: Mapping[str, int]) -> bool:
    """Return whether a plan makes sense; what laws of their own are about, and known failures, are left out."""
    plan = _plan(row, 0)
    if plan.iterable and (plan.shuffle or plan.drawn is not None or not plan.even):
        return False
    if plan.drawn is not None and (plan.drawn > plan.num_rows or plan.shuffle):
        return False
    if plan.skip and (plan.dispatch or plan.num_drawn < 2 * plan.rows_of_step):
        return False
    return not (plan.dispatch and plan.num_drawn < plan.num_ranks)


def _plan(row: Mapping[str, int], seed: int) -> LoaderPlan:
    values = {name: OPTIONS[name][index] for name, index in row.items()}
    size = values["batch_size"] * (values["num_ranks"] if values["split"] else 1)
    return LoaderPlan(**{**values, "batch_size": size}, seed=seed)


def plans(seed: int) -> Iterator[LoaderPlan]:
    """Yield plans that together have every pair of values of two options."""
    for row in pairwise({name: len(values) for name, values in OPTIONS.items()}, _is_allowed):
        yield _plan(row, seed)


def _errors(stack: Any, plan: LoaderPlan) -> list[str]:
    laws = [order_of_one_process]
    if plan.skip:
        laws.append(resumed_epoch_continues)
    else:
        laws += [every_row_once] if not plan.drop_last else []
        laws += [batches_have_one_size] if plan.even and plan.num_ranks > 1 and not plan.dispatch else []
    found = [measure for law in laws if (measure := law(stack, plan)) is not None]
    return [measure.what for measure in found if not measure.holds]


@ROWS.law(
    "pairs of options",
    "an option that another one overrules, an end that is filled or dropped twice, a size of one process",
    thorough=True,
)
def pairs_of_options(stack: Any, case: LoaderPlan) -> Measure:
    """Check plans with every pair of options: rows once, in the order of one process, in batches of one size."""
    wrong, served = [], 0
    for plan in plans(case.seed):
        try:
            errors = _errors(stack, plan)
        except NotServed:
            if not plan.dispatch:
                continue
            plan = replace(plan, dispatch=False)
            errors = _errors(stack, plan)
        served += 1
        chosen = ", ".join(f"{name}={getattr(plan, name)}" for name in OPTIONS if getattr(plan, name))
        wrong += [f"{chosen}: {error}" for error in errors]
    if not served:
        raise NotServed("no pair of options is served")
    return Measure.count(wrong, f"plans of {served} whose rows are wrong")
