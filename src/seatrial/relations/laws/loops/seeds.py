"""R30.seeds, R30.batch_size: every source of random numbers has the seed; the first batch size that fits is used."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.processes import SeedPlan
from seatrial.relations.law import Measure, Relation

STARTS = ((64, 10), (16, 16), (7, 1))
"""Batch sizes to begin with, and the largest that fits."""


def plan(**options: Any) -> Callable[[Any, int, bool], SeedPlan]:
    """Return a function that makes the plan with these options."""

    def made(stack: Any, seed: int, tidy: bool) -> SeedPlan:
        return SeedPlan(seed=seed + 1, **options)

    return made


SEEDS = Relation(
    id="R30.seeds",
    name="seeds-reach-every-source",
    component="seeded_draws",
    statement="A seed gives every source of random numbers the same ones again, for all processes or for each its own.",
    cost="CPU, processes of one gloo group that are started once",
    cases=plan(),
)
BATCH_SIZE = Relation(
    id="R30.batch_size",
    name="batch-size-is-the-first-that-fits",
    component="executable_batch_size",
    statement="Batch sizes are tried from the largest down, and the first that fits is used.",
    cost="CPU, milliseconds",
    cases=plan(num_ranks=1),
    seeded=False,
)


@SEEDS.law("one seed", "a source that is not seeded, a process with a seed of its own")
def draws_repeat(stack: Any, case: SeedPlan) -> Measure:
    """Check that all processes draw the same numbers, and draw them again."""
    ranks = [dict(one) for one in (*stack.seeded_draws(case), *stack.seeded_draws(case))]
    wrong = sorted({source for one in ranks for source in one if one[source] != ranks[0].get(source)})
    return Measure.count(wrong, "sources of random numbers that a seed does not determine")


@SEEDS.law("another seed", "a source with a seed of its own")
def seeds_differ(stack: Any, case: SeedPlan) -> Measure:
    """Check that another seed gives other numbers, from every source."""
    first, second = stack.seeded_draws(case)[0], stack.seeded_draws(replace(case, seed=case.seed + 7))[0]
    wrong = sorted(source for source in first if first[source] == second[source])
    return Measure.count(wrong, "sources with the same numbers under another seed")


@SEEDS.law("a seed for each process", "the seed of one process for all", cases=plan(own=True))
def processes_differ(stack: Any, case: SeedPlan) -> Measure:
    """Check that no two processes draw the same numbers, from any source."""
    ranks = stack.seeded_draws(case)
    wrong = sorted(
        {
            source
            for one, other in itertools.combinations(ranks, 2)
            for source in one
            if one[source] == other[source]
        }
    )
    return Measure.count(wrong, "sources with the same numbers on two processes")


@BATCH_SIZE.law("the first that fits", "a size that fits and is passed over, one that is tried twice")
def first_that_fits(stack: Any, case: SeedPlan) -> Measure:
    """Check that sizes begin with the given one, fall, and end with the first that fits."""
    wrong = []
    for start, fits in STARTS:
        tried = list(stack.tried_batch_sizes(start, fits))
        falls = all(before > after > 0 for before, after in itertools.pairwise(tried))
        is_first = bool(tried) and tried[-1] <= fits and all(one > fits for one in tried[:-1])
        if not (falls and is_first and tried[0] == start):
            wrong.append(f"{tried} from {start}, of which {fits} fits")
    return Measure.count(wrong, "searches for a batch size that go wrong")


@BATCH_SIZE.law("other errors", "an error that is taken for a batch that is too large")
def other_errors_are_raised(stack: Any, case: SeedPlan) -> Measure:
    """Check that an error that is not about memory is raised."""
    return Measure(
        error=float(not stack.passes_errors_on()), bound=0, what="errors of a step that are not raised"
    )
