"""R22 of logged scalars under the stack's own names: each is what the stack says, recomputed token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.cases import make_rollout, rollout_for
from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.facts import bound_of, needs_masked_rows, needs_unequal_micro_batches
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.oracles.metrics import metric
from seatrial.relations.ranked_cases import RankedRollout
from seatrial.relations.records import Row
from seatrial.relations.tensors import counts_of, inputs_of
from seatrial.relations.worst import is_worse

BOUND = 1e-6
"""Of scalars that are kept in float32."""
NUM_ROWS = 8

Shape = Callable[[list[Row]], list[Row]]


def _whole(rows: list[Row]) -> list[Row]:
    """Return rows whose every token trains, the longest last: a first part has the fewest tokens."""
    rows = [replace(row, completion_mask=(1,) * len(row.completion_ids)) for row in rows]
    return sorted(rows, key=lambda row: len(row.completion_ids))


def _with_tool_output(rows: list[Row]) -> list[Row]:
    """Return rows of which every other has a token in its middle that was not sampled."""
    rows = _whole(rows)
    for index in range(1, len(rows), 2):
        length = len(rows[index].completion_ids)
        mask = [int(place != length // 2) for place in range(length)]
        rows[index] = replace(rows[index], completion_mask=tuple(mask) if length > 1 else (1,))
    return rows


def _with_masked_row(rows: list[Row]) -> list[Row]:
    rows = _whole(rows)
    rows[2] = replace(rows[2], completion_mask=(0,) * len(rows[2].completion_mask))
    return rows


def _make(
    shape: Shape = _whole, *, num_ranks: int = 1, num_micro_batches: int = 1, num_rows: int = NUM_ROWS
) -> Callable[[Any, int, bool], RankedRollout]:
    def make(stack: Any, seed: int, tidy: bool) -> RankedRollout:
        rollout = rollout_for(stack, seed, tidy, masked_row=False)
        rows = list(rollout.rows[: NUM_ROWS if tidy else num_rows])
        return RankedRollout(
            rollout=replace(rollout, rows=tuple(rows if tidy else shape(rows))),
            num_ranks=num_ranks,
            num_micro_batches=num_micro_batches,
        )

    return make


def _parts(case: RankedRollout, poison: float = 0.0) -> list[list[MetricPart]]:
    rows = case.rollout.rows
    counts = counts_of(rows)

    def part(places: Sequence[int]) -> MetricPart:
        own = tuple(rows[place] for place in places)
        return MetricPart(rows=own, inputs=inputs_of(case.rollout, own, counts=counts, poison=poison))

    return [[part(places) for places in rank] for rank in case.layout]


def _chosen(stack: Any, hows: Sequence[str]) -> Mapping[str, MetricSpec]:
    return {name: spec for name, spec in stack.metric_specs.items() if spec.how in hows}


def _recomputed(*hows: str, poison: float = 0.0) -> Callable[[Any, RankedRollout], Measure | None]:
    """Hold the metrics that are such against the oracle; one that is declared and not logged is NaN."""

    def measure(stack: Any, case: RankedRollout) -> Measure | None:
        specs = _chosen(stack, hows)
        if not specs:
            return None
        logged = stack.named_metrics(_parts(case, poison))
        inputs = inputs_of(case.rollout)
        worst, what = 0.0, "no metric"
        for name, spec in specs.items():
            right, given = metric(spec, inputs, case.rollout.rows), float(logged.get(name, float("nan")))
            error = abs(given - right) / max(1.0, abs(right))
            if is_worse(error, worst):
                worst, what = (
                    error,
                    f"{name} {given:.8g}, {spec.how} of {spec.quantity} over {spec.over} {right:.8g}",
                )
        return Measure(
            error=worst,
            bound=bound_of(stack, BOUND, smallest_count=counts_of(case.rollout.rows)[0]),
            what=f"{what}, rows laid as {case.layout}, relative difference",
        )

    return measure


def _moves(stack: Any, case: RankedRollout) -> Measure:
    """Hold that no declared metric is the same on two very different batches, unless it must be."""
    other = replace(case, rollout=make_rollout(case.rollout.seed + 50, masked_row=False, num_prompts=3))
    first, second = (stack.named_metrics(_parts(one)) for one in (case, other))
    inputs = [inputs_of(one.rollout) for one in (case, other)]
    still = [
        name
        for name, spec in stack.metric_specs.items()
        if first.get(name) == second.get(name)
        and metric(spec, inputs[0], case.rollout.rows) != metric(spec, inputs[1], other.rollout.rows)
    ]
    return Measure(
        error=float(len(still)), bound=0, what=f"metrics that never move ({', '.join(still) or 'none'})"
    )


def _declares_none(*hows: str) -> Callable[[Any], str | None]:
    def excluded(stack: Any) -> str | None:
        return None if _chosen(stack, hows) else f"metric_specs has no {' or '.join(hows)}"

    return excluded


SUMS = ("mean", "sum")
EXTREMA = ("min", "max")
MEAN_OF_MEANS = "a mean of means: parts weighted alike whatever they hold; parts summed that are means"

RELATIONS = (
    Relation(
        id="R22.named",
        name="named-metrics-are-what-they-say",
        component="named_metrics",
        statement="Each scalar that a stack logs has the numerator, denominator and mask that it declares.",
        catalogue=(
            "SB058",
            "SB059",
            "SB214",
            "SB278",
            "SB362",
            "SB364",
            "SB367",
            "SB368",
            "SB369",
            "SB371",
            "SB372",
            "SB374",
            "SB381",
            "SB382",
        ),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="means and sums, lengths unequal",
                make=_make(),
                measure=_recomputed(*SUMS),
                excluded=_declares_none(*SUMS),
                suspects="padding counted, a mean of row means or the reverse, a log-ratio inverted, another clip",
            ),
            Law(
                name="means and sums, tool output inside",
                make=_make(_with_tool_output),
                measure=_recomputed(*SUMS),
                excluded=_declares_none(*SUMS),
                suspects="the attention mask in place of the mask of what trains",
            ),
            Law(
                name="means and sums, a row without a training token",
                make=_make(_with_masked_row),
                measure=_recomputed(*SUMS),
                excluded=lambda stack: needs_masked_rows(stack) or _declares_none(*SUMS)(stack),
                suspects="0 / 0, or a row that counts in the denominator alone",
            ),
            Law(
                name="means and sums, anything in the padding",
                make=_make(_with_tool_output),
                measure=_recomputed(*SUMS, poison=float("nan")),
                excluded=_declares_none(*SUMS),
                suspects="a mask that multiplies: NaN times 0 is NaN",
            ),
            Law(
                name="means and sums, micro-batches of unequal numbers of tokens",
                make=_make(num_micro_batches=2),
                measure=_recomputed(*SUMS),
                excluded=_declares_none(*SUMS),
                suspects=f"{MEAN_OF_MEANS}; the last micro-batch alone",
            ),
            Law(
                name="means and sums, micro-batches of unequal numbers of rows",
                make=_make(num_micro_batches=2, num_rows=7),
                measure=_recomputed(*SUMS),
                excluded=lambda stack: needs_unequal_micro_batches(stack) or _declares_none(*SUMS)(stack),
                suspects=MEAN_OF_MEANS,
            ),
            Law(
                name="means and sums, ranks of unequal numbers of tokens",
                make=_make(num_ranks=2),
                measure=_recomputed(*SUMS),
                excluded=_declares_none(*SUMS),
                suspects=f"{MEAN_OF_MEANS}; the first rank alone",
            ),
            Law(
                name="extrema, micro-batches",
                make=_make(num_micro_batches=2),
                measure=_recomputed(*EXTREMA),
                excluded=_declares_none(*EXTREMA),
                suspects="minima and maxima added up or averaged; padding among the values",
            ),
            Law(
                name="extrema, ranks",
                make=_make(num_ranks=2),
                measure=_recomputed(*EXTREMA),
                excluded=_declares_none(*EXTREMA),
                suspects="minima and maxima averaged over ranks",
            ),
            Law(
                name="not constant",
                make=_make(),
                measure=_moves,
                suspects="a placeholder, a tensor compared with itself",
            ),
        ),
    ),
)
