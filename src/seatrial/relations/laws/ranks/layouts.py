"""R2, R25: training does not depend on how processes share it; copies on several processes are equal to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.contracts.parallel import RankRecord
from seatrial.relations.law import Measure, Relation
from seatrial.relations.measures.ranks import (
    GRADIENT_BOUND,
    counts,
    gradient_error,
    metric_error,
    replica_differences,
    tensor_error,
)
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import Row
from seatrial.relations.worst import relative_error, worst_of

LOGPROB_BOUND = 1e-4
"""Of float32, in nats; the largest difference seen is 1e-6."""
METRIC_BOUND = 1e-4
WEIGHT_BOUND = 1e-4
"""After three updates: Adam divides by the root of the second moment, which enlarges rounding."""


@dataclass(frozen=True)
class Trained:
    """Records of one set of rows, trained in every layout and on one process."""

    ranks: Mapping[str, Sequence[RankRecord]]
    alone: Mapping[str, RankRecord]

    def each(self) -> Iterator[tuple[str, RankRecord, RankRecord]]:
        """Yield (layout and rank, its record, the record of one process)."""
        for name, records in self.ranks.items():
            for rank, record in enumerate(records):
                yield f"{name}, rank {rank}", record, self.alone[name]


@lru_cache(maxsize=2)
def trained(stack: Any, rows: tuple[Row, ...], thorough: bool = False) -> Trained:
    """Return the records of the layouts of every run, or of a thorough run alone; all laws of one case share them.

    Raises:
        NotServed: the stack has none.
    """
    names = [name for name, facts in stack.layouts().items() if facts.thorough is thorough]
    if not names:
        raise NotServed(f"layouts has none with thorough={thorough}")
    return Trained(
        stack.train_in_layouts(names, rows), {name: stack.train_alone(name, rows) for name in names}
    )


def _rollout(stack: Any, seed: int, tidy: bool) -> Rollout:
    """Return nine rows: no two or four processes have equal shares of them, or as many micro-batches of two rows.

    A row without training tokens is in the middle: where it is the first or the last, a row that trains twice, or not
    at all, would not show.
    """
    rollout = rollout_for(stack, seed, tidy, num_prompts=5, num_generations=2)
    training = [row for row in rollout.rows if any(row.completion_mask)]
    others = [row for row in rollout.rows if not any(row.completion_mask)]
    middle = len(training) // 2
    return replace(rollout, rows=(*training[:middle], *others, *training[middle:]))


LAYOUT = Relation(
    id="R2",
    name="layout-changes-nothing",
    component="parallel_training",
    statement="Raw gradients, norms, scores, counts and metrics of processes that share the work are those of one.",
    catalogue="SB099 SB109 SB110 SB111 SB175 SB182 SB185 SB187 SB196 SB199 SB213 SB215 SB322 SB323 SB325 SB326 SB327 "
    "SB328 SB330 SB331 SB332 SB333 SB335 SB336 SB337 SB338 SB350 SB367 SB372 SB394",
    cost="CPU, a minute: one start of two processes",
    cases=_rollout,
    seeded=False,
)
REPLICAS = Relation(
    id="R25",
    name="replicas-agree",
    component="parallel_training",
    statement="After updates all ranks have the same whole weights, gradient norm and metrics, bit for bit.",
    catalogue="SB230 SB325 SB329 SB337 SB347",
    cost="CPU, a minute: the runs of R2",
    cases=_rollout,
    seeded=False,
)
Compare = Callable[[RankRecord, RankRecord], tuple[float, str]]


def _norm_error(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
    return relative_error(record.grad_norm, alone.grad_norm, 1e-30), "the norm"


def _weight_error(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
    return tensor_error(record.weights, alone.weights)


def _logprob_error(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
    errors = {
        "the policy": float((record.logprobs_BT - alone.logprobs_BT).abs().max()),
        "the reference": float((record.reference_logprobs_BT - alone.reference_logprobs_BT).abs().max()),
    }
    return worst_of((error, name) for name, error in errors.items())


def _scalar_error(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
    pairs = zip((record.metrics, *record.later_metrics), (alone.metrics, *alone.later_metrics), strict=True)
    return worst_of(metric_error(one, other) for one, other in pairs)


def _count_error(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
    return metric_error(counts(record.metrics), counts(alone.metrics))


COMPARISONS: tuple[tuple[str, str, Compare, float, str], ...] = (
    (
        "raw gradients",
        "a norm's gradient that is partial, an average where a sum is due, a head that is no longer tied",
        gradient_error,
        GRADIENT_BOUND,
        "raw gradient, relative to one process's",
    ),
    (
        "gradient norm",
        "a norm over one rank's part, or over copies of it",
        _norm_error,
        GRADIENT_BOUND,
        "gradient norm before clipping, relative",
    ),
    (
        "weights after updates",
        "clipping by another factor on each rank, moments of another part",
        _weight_error,
        WEIGHT_BOUND,
        "weights after clipped updates, relative",
    ),
    (
        "log-probabilities",
        "positions or masks of a part of the sequence taken for the whole",
        _logprob_error,
        LOGPROB_BOUND,
        "log-probabilities, in nats",
    ),
    (
        "logged scalars",
        "a metric of one rank, or counted once for each copy of a row",
        _scalar_error,
        METRIC_BOUND,
        "logged scalars, relative above 1",
    ),
    (
        "counts",
        "the tokens of one rank where the global count is due",
        _count_error,
        0.0,
        "tokens and rows that were counted",
    ),
)
"""Name, suspects, comparison, bound, and what is compared."""


def every_rank_equals_one_process(
    stack: Any, case: Rollout, compare: Compare, bound: float, what: str
) -> Measure:
    """Compare what every rank of every layout recorded with what one process records."""
    found = []
    for place, record, alone in trained(stack, case.rows).each():
        error, name = compare(record, alone)
        found.append((error, f"{name} in {place}"))
    return Measure.largest(found, bound, f"{what}, largest")


for _name, _suspects, _compare, _bound, _what in COMPARISONS:
    LAYOUT.law(_name, _suspects, compare=_compare, bound=_bound, what=_what)(every_rank_equals_one_process)


@LAYOUT.law("random streams", "dropout left on, a draw that depends on the rank")
def random_streams_are_untouched(stack: Any, case: Rollout) -> Measure:
    """Check that training draws from no random stream of a rank."""
    touched = [
        place for place, record, _ in trained(stack, case.rows).each() if not record.random_streams_untouched
    ]
    return Measure.count(touched, "ranks whose random streams training drew from")


@LAYOUT.law(
    "all of these, in the layouts of a thorough run",
    "a combination of two ways to share the work that is right in neither way alone",
    thorough=True,
)
def other_layouts_equal_one_process(stack: Any, case: Rollout) -> Measure:
    """Make every comparison in the layouts that only a thorough run trains in."""
    wrong = []
    for place, record, alone in trained(stack, case.rows, thorough=True).each():
        for law, _, compare, bound, _ in COMPARISONS:
            error, name = compare(record, alone)
            if not error <= bound:
                wrong.append(f"{law} in {place}: {name} by {error:.3g}")
        if not record.random_streams_untouched:
            wrong.append(f"random streams in {place}")
    return Measure.count(wrong, "what differs from one process")


@REPLICAS.law("weights and metrics of all ranks", "a gradient that each rank sums for itself")
@REPLICAS.law(
    "weights and metrics of all ranks, in the layouts of a thorough run",
    "a gradient that each rank sums for itself",
    thorough=True,
    thoroughly=True,
)
def ranks_agree(stack: Any, case: Rollout, thoroughly: bool = False) -> Measure:
    """Check that all ranks of a layout have the same weights, norm and metrics, bit for bit."""
    wrong = [
        f"{name}: {what}"
        for name, records in trained(stack, case.rows, thoroughly).ranks.items()
        for what in replica_differences(records)
    ]
    return Measure.count(wrong, "what differs between ranks")
