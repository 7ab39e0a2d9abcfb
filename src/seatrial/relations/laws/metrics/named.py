"""R22 of scalars under the stack's own names: each equals its declared definition, recomputed token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from seatrial.relations.cases import make_rollout, rollout_for
from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.facts import bound_of, needs_masked_rows, needs_unequal_micro_batches
from seatrial.relations.law import Measure, Relation
from seatrial.relations.oracles.metrics import metric
from seatrial.relations.ranked_cases import RankedRollout
from seatrial.relations.records import Row
from seatrial.relations.tensors import counts_of, inputs_of
from seatrial.relations.worst import relative_error

BOUND = 1e-6
"""For scalars in float32."""
NUM_ROWS = 8
PER_TOKEN = ("completion_ids", "completion_mask", "sampling_logprobs", "old_logprobs", "ref_logprobs")
"""Fields of a row that have the completion's length."""
Shape = Callable[[list[Row]], list[Row]]


def _whole(rows: list[Row]) -> list[Row]:
    """Return rows whose every token trains, the longest last: a first part has the fewest tokens."""
    rows = [replace(row, completion_mask=(1,) * len(row.completion_ids)) for row in rows]
    return sorted(rows, key=lambda row: len(row.completion_ids))


def _in_equal_parts(rows: list[Row]) -> list[Row]:
    """Return rows of which the second half has the lengths of the first: means of halves are alike to weigh."""
    rows = _whole(rows)
    first, second = rows[::2], rows[1::2]
    return first + [_cut(long, len(short.completion_ids)) for short, long in zip(first, second, strict=True)]


def _cut(row: Row, length: int) -> Row:
    return replace(row, **{name: getattr(row, name)[:length] for name in PER_TOKEN})


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


def _rows(
    stack: Any,
    seed: int,
    tidy: bool,
    shape: Shape = _whole,
    num_ranks: int = 1,
    num_micro_batches: int = 1,
    num_rows: int = NUM_ROWS,
) -> RankedRollout:
    rollout = rollout_for(stack, seed, tidy, masked_row=False)
    rows = list(rollout.rows[: NUM_ROWS if tidy else num_rows])
    return RankedRollout(
        rollout=replace(rollout, rows=tuple(rows if tidy else shape(rows))),
        num_ranks=num_ranks,
        num_micro_batches=num_micro_batches,
    )


def _chosen(stack: Any, hows: Sequence[str]) -> Mapping[str, MetricSpec]:
    return {name: spec for name, spec in stack.metric_specs.items() if spec.how in hows}


def _declares_none(*hows: str) -> Callable[[Any], str | None]:
    def excluded(stack: Any) -> str | None:
        return None if _chosen(stack, hows) else f"metric_specs has no {' or '.join(hows)}"

    return excluded


PADDED_WITH = 50.0
"""Beyond every value of a token, and with a finite exponential."""
SUMS = ("mean", "sum", "std")
EXTREMA = ("min", "max")
MEAN_OF_MEANS = (
    "a mean of means: parts weighted equally regardless of their size; parts that are means, summed"
)

NAMED = Relation(
    id="R22.named",
    name="named-metrics-equal-their-definitions",
    component="named_metrics",
    statement="Each scalar that a stack logs has the numerator, denominator and mask that it declares.",
    catalogue="SB058 SB059 SB214 SB278 SB362 SB364 SB367 SB368 SB369 SB371 SB372 SB374 SB381 SB382",
    cost="CPU, milliseconds",
    cases=_rows,
)


@NAMED.law(
    "means and sums, lengths unequal",
    "padding counted, a mean of row means or the reverse, a log-ratio inverted, another clip",
    excluded=_declares_none(*SUMS),
    hows=SUMS,
)
@NAMED.law(
    "means and sums, tool output inside",
    "the attention mask in place of the mask of what trains",
    cases=partial(_rows, shape=_with_tool_output),
    excluded=_declares_none(*SUMS),
    hows=SUMS,
)
@NAMED.law(
    "means and sums, a row without a training token",
    "0 / 0, or a row that counts in the denominator alone",
    cases=partial(_rows, shape=_with_masked_row),
    excluded=lambda stack: needs_masked_rows(stack) or _declares_none(*SUMS)(stack),
    hows=SUMS,
)
@NAMED.law(
    "means and sums, anything in the padding",
    "a mask that multiplies: NaN times 0 is NaN",
    cases=partial(_rows, shape=_with_tool_output),
    excluded=_declares_none(*SUMS),
    hows=SUMS,
    poison=float("nan"),
)
@NAMED.law(
    "means and sums, micro-batches of unequal numbers of tokens",
    f"{MEAN_OF_MEANS}; the last micro-batch alone",
    cases=partial(_rows, num_micro_batches=2),
    excluded=_declares_none(*SUMS),
    hows=SUMS,
)
@NAMED.law(
    "means and sums, micro-batches of equal numbers of tokens",
    "the last micro-batch alone; parts that are means, summed; a mean that is divided by their number again",
    cases=partial(_rows, shape=_in_equal_parts, num_micro_batches=2),
    excluded=_declares_none(*SUMS),
    hows=SUMS,
)
@NAMED.law(
    "means and sums, micro-batches of unequal numbers of rows",
    MEAN_OF_MEANS,
    cases=partial(_rows, num_micro_batches=2, num_rows=7),
    excluded=lambda stack: needs_unequal_micro_batches(stack) or _declares_none(*SUMS)(stack),
    hows=SUMS,
)
@NAMED.law(
    "means and sums, ranks of unequal numbers of tokens",
    f"{MEAN_OF_MEANS}; the first rank alone",
    cases=partial(_rows, num_ranks=2),
    excluded=_declares_none(*SUMS),
    hows=SUMS,
)
@NAMED.law(
    "extrema, lengths unequal",
    "padding among the values, a mask taken for places",
    excluded=_declares_none(*EXTREMA),
    hows=EXTREMA,
    poison=PADDED_WITH,
)
@NAMED.law(
    "extrema, micro-batches",
    "minima and maxima added up or averaged; padding among the values",
    cases=partial(_rows, num_micro_batches=2),
    excluded=_declares_none(*EXTREMA),
    hows=EXTREMA,
)
@NAMED.law(
    "extrema, ranks",
    "minima and maxima averaged over ranks",
    cases=partial(_rows, num_ranks=2),
    excluded=_declares_none(*EXTREMA),
    hows=EXTREMA,
)
def metrics_equal_definitions(
    stack: Any, case: RankedRollout, hows: Sequence[str], poison: float = 0.0
) -> Measure | None:
    """Compare the metrics of some kinds with the oracle; one that is declared and not logged is NaN."""
    specs = _chosen(stack, hows)
    if not specs:
        return None
    logged = stack.named_metrics(_parts(case, poison))
    inputs = inputs_of(case.rollout)
    found = []
    for name, spec in specs.items():
        right, given = metric(spec, inputs, case.rollout.rows), float(logged.get(name, float("nan")))
        place = f"{name} {given:.8g}, {spec.how} of {spec.quantity} over {spec.over} {right:.8g}"
        found.append((name, relative_error(given, right), place))
    return Measure.largest_of_each(
        found,
        bound_of(stack, BOUND, smallest_count=counts_of(case.rollout.rows)[0]),
        f"logged scalars, rows in layout {case.layout}, relative difference",
    )


def _parts(case: RankedRollout, poison: float = 0.0) -> list[list[MetricPart]]:
    rows = case.rollout.rows
    counts = counts_of(rows)

    def part(places: Sequence[int]) -> MetricPart:
        own = tuple(rows[place] for place in places)
        return MetricPart(rows=own, inputs=inputs_of(case.rollout, own, counts=counts, poison=poison))

    return [[part(places) for places in rank] for rank in case.layout]


@NAMED.law("not constant", "a placeholder, a tensor compared with itself")
def metrics_are_not_constant(stack: Any, case: RankedRollout) -> Measure:
    """Check that no declared metric is the same on two very different batches, unless its definition is."""
    other = replace(case, rollout=make_rollout(case.rollout.seed + 50, masked_row=False, num_prompts=3))
    first, second = (stack.named_metrics(_parts(one)) for one in (case, other))
    inputs = [inputs_of(one.rollout) for one in (case, other)]
    still = {
        name: [name]
        if first.get(name) == second.get(name)
        and metric(spec, inputs[0], case.rollout.rows) != metric(spec, inputs[1], other.rollout.rows)
        else []
        for name, spec in stack.metric_specs.items()
    }
    return Measure.count_of_each(still, "metrics that never move")
