"""R2: training does not depend on how processes share it; R25: processes that hold the same hold it to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.contracts.parallel import RankRecord
from seatrial.relations.law import Law, Measure, Relation
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
from seatrial.relations.worst import is_worse

MOST_PROCESSES = 2
"""Layouts of more are left to `python -m seatrial.targets.reference.layouts.table`: each of their processes imports
everything anew."""
LOGPROB_BOUND = 1e-4
"""Of float32, in nats; 1e-6 was the most seen."""
METRIC_BOUND = 1e-4
WEIGHT_BOUND = 1e-4
"""After three updates: Adam divides by the root of the second moment, which enlarges rounding."""


@dataclass(frozen=True)
class Trained:
    """One set of rows trained in every layout, and alone."""

    ranks: Mapping[str, Sequence[RankRecord]]
    alone: Mapping[str, RankRecord]

    def each(self) -> Iterator[tuple[str, RankRecord, RankRecord]]:
        """Yield (layout and rank, what it saw, what one process sees)."""
        for name, records in self.ranks.items():
            for rank, record in enumerate(records):
                yield f"{name}, rank {rank}", record, self.alone[name]


@lru_cache(maxsize=2)
def trained(stack: Any, rows: tuple[Row, ...]) -> Trained:
    """Return the records of every layout of few processes; all laws of one case share them.

    Raises:
        NotServed: the stack has none.
    """
    names = [name for name, facts in stack.layouts().items() if facts.num_processes <= MOST_PROCESSES]
    if not names:
        raise NotServed(f"no layout of at most {MOST_PROCESSES} processes")
    return Trained(
        stack.train_in_layouts(names, rows), {name: stack.train_alone(name, rows) for name in names}
    )


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, num_prompts=3, num_generations=3)


def _worst(stack: Any, case: Rollout, what: str, bound: float, compare: Any) -> Measure:
    worst, where = 0.0, "nothing"
    for place, record, alone in trained(stack, case.rows).each():
        error, name = compare(record, alone)
        if is_worse(error, worst):
            worst, where = error, f"{name} in {place}"
    return Measure(error=worst, bound=bound, what=f"{what}, largest at {where}")


def _gradients(stack: Any, case: Rollout) -> Measure:
    return _worst(stack, case, "raw gradient, relative to one process's", GRADIENT_BOUND, gradient_error)


def _norm(stack: Any, case: Rollout) -> Measure:
    def compare(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
        return abs(record.grad_norm - alone.grad_norm) / max(alone.grad_norm, 1e-30), "the norm"

    return _worst(stack, case, "gradient norm before clipping, relative", GRADIENT_BOUND, compare)


def _weights(stack: Any, case: Rollout) -> Measure:
    def compare(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
        return tensor_error(record.weights, alone.weights)

    return _worst(stack, case, "weights after clipped updates, relative", WEIGHT_BOUND, compare)


def _logprobs(stack: Any, case: Rollout) -> Measure:
    def compare(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
        own = float((record.logprobs_BT - alone.logprobs_BT).abs().max())
        reference = float((record.reference_logprobs_BT - alone.reference_logprobs_BT).abs().max())
        return (own, "the policy") if is_worse(own, reference) else (reference, "the reference")

    return _worst(stack, case, "log-probabilities, in nats", LOGPROB_BOUND, compare)


def _metrics(stack: Any, case: Rollout) -> Measure:
    def compare(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
        pairs = [
            (record.metrics, alone.metrics),
            *zip(record.later_metrics, alone.later_metrics, strict=True),
        ]
        found = [metric_error(one, other) for one, other in pairs]
        return max(found, key=lambda error: (error[0] != error[0], error[0]))

    return _worst(stack, case, "logged scalars, relative above 1", METRIC_BOUND, compare)


def _counts(stack: Any, case: Rollout) -> Measure:
    def compare(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
        return metric_error(counts(record.metrics), counts(alone.metrics))

    return _worst(stack, case, "tokens and rows that were counted", 0, compare)


def _streams(stack: Any, case: Rollout) -> Measure:
    touched = [
        place for place, record, _ in trained(stack, case.rows).each() if not record.random_streams_untouched
    ]
    return Measure(
        error=float(len(touched)),
        bound=0,
        what=f"ranks whose random streams training drew from ({touched[:3] or 'none'})",
    )


def _replicas(stack: Any, case: Rollout) -> Measure:
    wrong = [
        f"{name}: {what}"
        for name, records in trained(stack, case.rows).ranks.items()
        for what in replica_differences(records)
    ]
    return Measure(
        error=float(len(wrong)), bound=0, what=f"what ranks hold otherwise ({wrong[:3] or 'nothing'})"
    )


def _law(name: str, measure: Any, suspects: str) -> Law:
    return Law(name=name, make=_make, measure=measure, suspects=suspects, seeded=False)


CATALOGUE = (
    "SB099", "SB109", "SB110", "SB111", "SB175", "SB182", "SB185", "SB187", "SB196", "SB199", "SB213",
    "SB215", "SB322", "SB323", "SB325", "SB326", "SB327", "SB328", "SB330", "SB331", "SB332", "SB333",
    "SB335", "SB336", "SB337", "SB338", "SB350", "SB367", "SB372", "SB394",
)  # fmt: skip
REPLICAS = ("SB230", "SB325", "SB329", "SB337", "SB347")

RELATIONS = (
    Relation(
        id="R2",
        name="layout-changes-nothing",
        component="parallel_training",
        statement="Raw gradients, norms, scores, counts and metrics of processes that share the work are those of one.",
        catalogue=CATALOGUE,
        cost="CPU, a minute: one start of two processes",
        laws=(
            _law(
                "raw gradients",
                _gradients,
                "a norm's gradient that is partial, an average where a sum is due, a head that is no longer tied",
            ),
            _law("gradient norm", _norm, "a norm over one rank's part, or over copies of it"),
            _law(
                "weights after updates",
                _weights,
                "clipping by another factor on each rank, moments of another part",
            ),
            _law(
                "log-probabilities",
                _logprobs,
                "positions or masks of a part of the sequence taken for the whole",
            ),
            _law("logged scalars", _metrics, "a metric of one rank, or counted once for each copy of a row"),
            _law("counts", _counts, "the tokens of one rank where the global count is due"),
            _law("random streams", _streams, "dropout left on, a draw that depends on the rank"),
        ),
    ),
    Relation(
        id="R25",
        name="replicas-agree",
        component="parallel_training",
        statement="After updates all ranks have the same whole weights, gradient norm and metrics, bit for bit.",
        catalogue=REPLICAS,
        cost="CPU, a minute: the runs of R2",
        laws=(
            _law("weights and metrics of all ranks", _replicas, "a gradient that each rank sums for itself"),
        ),
    ),
)
