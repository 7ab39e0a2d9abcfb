"""R12.run, R1.run: the raw gradient of every update is that of its rows, in any layout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

from seatrial.relations.law import F, Measure, Relation
from seatrial.relations.oracles.runs import expected_gradients
from seatrial.relations.records.run import RunRow, StepRecord, ValidationRecord
from seatrial.relations.runs import SEVERAL_TURNS, RunCase, dotted, run_cases
from seatrial.relations.tensors import largest_gradient_difference
from seatrial.relations.worst import Worst, relative_error

# float32 forward and backward passes on both sides, about 200 roundings of 2^-23 each, relative to the largest entry.
BOUND = 1e-4
ROW_BOUND = 2e-4
FEW_TOKENS = 40
"""Fits a row or two of the adapters' tiny runs, so that an update needs several micro-batches."""
ONE_STEP = {"grpo__max_num_steps": 1}
HIGH_RATE = {"policy__optimizer__lr": 0.05}
LOSSES: dict[str, dict[str, Any]] = {
    "clipped, with a KL": HIGH_RATE,
    "per sequence, dual clip": {
        "loss_fn__reduction": "sequence",
        "loss_fn__ratio_clip_c": 1.5,
        "loss_fn__ratio_clip_max": 0.4,
        **HIGH_RATE,
        **ONE_STEP,
    },
    "GSPO": {"loss_fn__kind": "gspo", "loss_fn__reduction": "sequence", **HIGH_RATE, **ONE_STEP},
    "CISPO, corrected for the sampler": {
        "loss_fn__kind": "cispo",
        "loss_fn__importance_sampling": "truncated",
        "loss_fn__reference_policy_kl_type": "k2",
        **HIGH_RATE,
        **ONE_STEP,
    },
    "Dr. GRPO with entropy": {
        "loss_fn__reduction": "fixed_length",
        "loss_fn__fixed_length": 11,
        "loss_fn__entropy_coefficient": 0.05,
        "grpo__advantage__estimator": "dr_grpo",
        "grpo__advantage__scale": "none",
        **ONE_STEP,
    },
    "without a reference": {"loss_fn__reference_policy_kl_penalty": 0.0, **ONE_STEP},
}
MICRO_BATCHES = "averaging over micro-batches, local token counts, padding attended to"
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "in micro-batches of one row": (MICRO_BATCHES, {"policy__train_micro_batch_size": 1}),
    "in one micro-batch": (MICRO_BATCHES, {"policy__train_micro_batch_size": 4}),
    "packed": (
        "attention across boundaries, positions that run on, counts of packs for counts of rows",
        {"policy__sequence_packing__enabled": True},
    ),
    "in micro-batches of a number of tokens": (
        "rows sorted by length and not put back, a micro-batch left out",
        {"policy__dynamic_batching__enabled": True},
    ),
    "in micro-batches of few tokens": (
        "rows beyond the first micro-batch left out, a budget that nothing reads",
        {"policy__dynamic_batching__enabled": True, "policy__dynamic_batching__train_mb_tokens": FEW_TOKENS},
    ),
    "packed into rows of few tokens": (
        "rows beyond the first pack left out, a budget that nothing reads",
        {"policy__sequence_packing__enabled": True, "policy__sequence_packing__train_mb_tokens": FEW_TOKENS},
    ),
    "on two ranks": (
        "local counts, gradients averaged where they are summed, a random stream of the rank's own",
        {"cluster__num_processes": 2},
    ),
}
"""By name: suspects and options."""
UNEVEN = {
    "grpo__val_period": 1,
    "grpo__max_val_samples": 3,
    "policy__train_global_batch_size": 8,
    "policy__generation__max_new_tokens": 8,
    "policy__dynamic_batching__enabled": True,
    "policy__dynamic_batching__train_mb_tokens": FEW_TOKENS,
    "data__verifier": "several",
}
"""Two ranks cut their rows into micro-batches of few tokens, and share three rows of a validation."""

GRADIENTS = Relation(
    id="R12.run",
    name="run-gradients-equal-oracle",
    component="run",
    statement="The raw gradient of every update is autograd's on the loss of its rows, with their own fields.",
    catalogue="SB016 SB027 SB073 SB119 SB123 SB151 SB152 SB156 SB163 SB164 SB168 SB189 SB190 SB194 SB198 SB203 SB208",
    cost="CPU, seconds",
    cases=run_cases(),
    seeded=False,
)
LAYOUT = Relation(
    id="R1.run",
    name="run-ignores-layout",
    component="run",
    statement="A step has the same rows, numbers and gradients in any micro-batches, packed, and on two ranks.",
    catalogue="SB026 SB094 SB095 SB097 SB101 SB109 SB110 SB111 SB155 SB157 SB158 SB159 SB175 SB181 SB182 SB185 SB195 "
    "SB199 SB206 SB210 SB215 SB334 SB371",
    cost="CPU, seconds; two processes",
    seeded=False,
)


@GRADIENTS.law(
    "each row once", "a last batch dropped, the first batch taken for every update, sizes of a rank"
)
def each_row_once(stack: Any, case: RunCase) -> Measure:
    """Check that a step's updates train on each of its rows once, in batches of the configured size."""
    record = case.record(stack)
    size = record.options["policy.train_global_batch_size"]
    wrong = []
    for step in record.steps:
        used = sorted(row for update in step.updates for row in update.row_indices)
        if used != list(range(len(step.rows))):
            wrong.append(f"step {step.step}: rows {used} of {len(step.rows)}")
        for update in step.updates:
            if len(update.row_indices) != size:
                wrong.append(f"step {step.step}: an update of {len(update.row_indices)} rows")
            parts = update.micro_batches
            if parts is not None and sorted(chain(*parts)) != sorted(update.row_indices):
                wrong.append(f"step {step.step}: micro-batches {parts} for rows {update.row_indices}")
    return Measure.count(wrong, "updates that do not share the rows of their step")


@GRADIENTS.law(
    "gradients are not zero",
    "equal rewards everywhere, a mask of zeros, a tensor that is not in the graph",
)
def gradients_are_not_zero(stack: Any, case: RunCase) -> Measure:
    """Check that every gradient is finite and has an element that is not zero."""
    dead = [
        f"{place}, {name}"
        for place, update in case.record(stack).updates()
        for name, value in update.gradients.items()
        if not 0 < float(value.abs().max()) < math.inf
    ]
    return Measure.count(dead, "gradients that are zero or not finite")


@GRADIENTS.law(
    "raw gradients, of several turns",
    "an environment's words that train, or that count in the divisor",
    cases=run_cases(**SEVERAL_TURNS),
    seeded=False,
)
def gradients_error(stack: Any, case: RunCase) -> Measure:
    """Compare the raw gradient of every update with autograd's on its rows."""
    record = case.record(stack)
    found = []
    for step in record.steps:
        for number, update in enumerate(step.updates):
            expected = expected_gradients(stack, record, step, number)
            error, name = largest_gradient_difference(update.gradients, expected)
            found.append((error, f"step {step.step}, update {number + 1}, {name}"))
    return Measure.largest(
        found,
        BOUND,
        "raw gradient against autograd on the rows' own log-probabilities, relative difference",
    )


for _name, _options in LOSSES.items():
    GRADIENTS.law(
        f"raw gradient, {_name}",
        "old, reference or sampler's log-probabilities swapped or shifted, a wrong divisor, another loss than "
        "configured, advantages of other rows",
        cases=run_cases(**_options),
    )(gradients_error)


def _each_layout(measure: F) -> F:
    """Make a law of each layout."""
    for name, (suspects, options) in LAYOUTS.items():

        def excluded(stack: Any, names: tuple[str, ...] = tuple(dotted(options))) -> str | None:
            missing = [option for option in names if option not in stack.run_options()]
            return f"run_options has no {missing[0]}" if missing else None

        LAYOUT.law(
            f"equal {name}", suspects, cases=run_cases(**ONE_STEP, **options), excluded=excluded, layout=name
        )(measure)
    return measure


@_each_layout
def first_step_is_the_same(stack: Any, case: RunCase, layout: str) -> Measure:
    """Compare the first step with that in micro-batches of two rows: ids exactly, numbers up to rounding."""
    plain = RunCase(options={"grpo.max_num_steps": 1}, seed=case.seed).record(stack)
    what = f"first step {layout} against micro-batches of two rows"
    return _distance(plain.steps[0], case.record(stack).steps[0], what)


@LAYOUT.law(
    "equal with options that change no number",
    "padding of a bucket, a part of the vocabulary left out, rows that a pass of few tokens puts in another order",
    cases=run_cases(**ONE_STEP, loss_fn__entropy_coefficient=0.05),
    excluded=lambda stack: None if getattr(stack, "neutral_options", ()) else "neutral_options is empty",
)
def neutral_options_change_nothing(stack: Any, case: RunCase) -> Measure:
    """Compare the first step with that under each group of the adapter's options that must change no number."""
    plain = case.record(stack).steps[0]
    found = []
    for options in stack.neutral_options:
        other = RunCase(options={**case.options, **options}, seed=case.seed).record(stack).steps[0]
        measure = _distance(plain, other, f"first step with {', '.join(options)}")
        found.append((measure.error, measure.what))
    return Measure.largest(found, ROW_BOUND, "step against that with options that change no number")


@LAYOUT.law(
    "equal on two ranks with unequal work",
    "a row of no rank or of two, scalars or counters of the first rank alone, a mean of the ranks' means",
    cases=run_cases(**ONE_STEP, **UNEVEN, cluster__num_processes=2),
    excluded=lambda stack: (
        None if "cluster.num_processes" in stack.run_options() else "run_options has no cluster.num_processes"
    ),
)
def unequal_work_changes_nothing(stack: Any, case: RunCase) -> Measure:
    """Compare a step and a validation of two ranks, with all that they log, with those of one process."""
    alone, shared = case.record(stack, cluster__num_processes=1), case.record(stack)
    first_step = _distance(alone.steps[0], shared.steps[0], "first step on two ranks against one process")
    if not first_step.holds:
        return first_step
    pairs = [*_scalars(alone.steps, shared.steps), *_scalars(alone.validations, shared.validations)]
    found = [
        (relative_error(given, right), f"{name}, {given} on two ranks and {right} on one")
        for name, right, given in pairs
    ]
    return Measure.largest(found, ROW_BOUND, "logged scalar, relative difference")


def _scalars(
    alone: Sequence[StepRecord | ValidationRecord], shared: Sequence[StepRecord | ValidationRecord]
) -> Iterator[tuple[str, float, float]]:
    """Yield (name, value of one process, value of two ranks) of each logged scalar; NaN where one has none."""
    for one, two in zip_longest(alone, shared):
        metrics = [{} if record is None else record.metrics for record in (one, two)]
        for name in sorted(metrics[0].keys() | metrics[1].keys()):
            yield name, metrics[0].get(name, math.nan), metrics[1].get(name, math.nan)


def _distance(one: StepRecord, two: StepRecord, what: str) -> Measure:
    """Return how far two steps are apart."""
    if [row.ids for row in one.rows] != [row.ids for row in two.rows]:
        return Measure(error=math.inf, bound=0, what=f"{what}: other tokens were sampled")
    if len(one.updates) != len(two.updates):
        return Measure(error=math.inf, bound=0, what=f"{what}: {len(two.updates)} updates")
    worst = Worst()
    for index, (left, right) in enumerate(zip(one.rows, two.rows, strict=True)):
        worst.add(_row_distance(left, right), f"row {index}")
    for number, (first, second) in enumerate(zip(one.updates, two.updates, strict=True)):
        if number and worst.error <= ROW_BOUND:
            break  # the second update starts from weights that differ by rounding, which AdamW magnifies
        error, tensor = largest_gradient_difference(second.gradients, first.gradients)
        worst.add(error, f"gradient of {tensor}, update {number + 1}")
    return Measure(error=worst.error, bound=ROW_BOUND, what=f"{what}, {worst.place}, difference")


def _row_distance(one: RunRow, other: RunRow) -> float:
    pairs = [
        *zip(one.sampling_logprobs, other.sampling_logprobs, strict=True),
        *zip(one.old_logprobs, other.old_logprobs, strict=True),
        *zip(one.ref_logprobs or (), other.ref_logprobs or (), strict=True),
        (one.reward, other.reward),
        (one.advantage, other.advantage),
    ]
    return max(abs(a - b) for a, b in pairs) if all(math.isfinite(a - b) for a, b in pairs) else math.inf
