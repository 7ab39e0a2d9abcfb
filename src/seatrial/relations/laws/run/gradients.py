"""R12 and R1 of the whole run: the raw gradient of every update is that of its rows, however they are laid out."""

from __future__ import annotations

import math
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.oracles.runs import expected_gradients
from seatrial.relations.records.run import RunRecord, RunRow
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.tensors import largest_gradient_difference
from seatrial.relations.worst import is_worse

# float32 forward and backward passes on both sides, about 200 roundings of 2^-23 each, relative to the largest entry.
BOUND = 1e-4
ROW_BOUND = 2e-4
FEW_TOKENS = 40
"""Holds a row or two of the adapters' tiny runs, so that an update needs several micro-batches."""


def gradients_error(stack: Any, case: RunCase) -> Measure:
    """Measure the raw gradient of every update against autograd's on its rows."""
    record = case.record(stack)
    worst, place, updates = 0.0, "nowhere", 0
    for step in record.steps:
        for number, update in enumerate(step.updates):
            updates += 1
            expected = expected_gradients(stack, record, step, number)
            error, name = largest_gradient_difference(update.gradients, expected)
            if is_worse(error, worst):
                worst, place = error, f"step {step.step}, update {number + 1}, {name}"
    return Measure(
        error=worst if updates else math.inf,
        bound=BOUND,
        what=f"raw gradient against autograd on the rows' own log-probabilities, {place}, relative difference",
    )


def _is_not_zero(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    dead = [
        f"step {step.step}, update {number + 1}, {name}"
        for step in record.steps
        for number, update in enumerate(step.updates)
        for name, value in update.gradients.items()
        if not 0 < float(value.abs().max()) < math.inf
    ]
    return Measure(
        error=float(len(dead)),
        bound=0,
        what=f"gradients that are zero or not finite ({(dead or ['none'])[0]})",
    )


def _each_row_once(stack: Any, case: RunCase) -> Measure:
    """The updates of a step share its rows: each is trained on once, in updates of the configured size."""
    record = case.record(stack)
    size = record.options["policy.train_global_batch_size"]
    wrong = []
    for step in record.steps:
        used = sorted(row for update in step.updates for row in update.row_indices)
        if used != list(range(len(step.rows))):
            wrong.append(f"step {step.step}: rows {used} of {len(step.rows)}")
        wrong += [
            f"step {step.step}: an update of {len(update.row_indices)} rows"
            for update in step.updates
            if len(update.row_indices) != size
        ]
        wrong += [
            f"step {step.step}: micro-batches {update.micro_batches} for rows {update.row_indices}"
            for update in step.updates
            if update.micro_batches is not None
            and sorted(row for part in update.micro_batches for row in part) != sorted(update.row_indices)
        ]
    return Measure(
        error=float(len(wrong)),
        bound=0,
        what=f"updates that do not share the rows of their step ({(wrong or ['none'])[0]})",
    )


def layout_law(name: str, options: dict[str, Any], suspects: str) -> Law:
    """Return the law that a run in another layout is the run in micro-batches of two rows."""

    def measure(stack: Any, case: RunCase) -> Measure:
        plain = RunCase(options={"grpo.max_num_steps": 1}, seed=case.seed).record(stack)
        return _same_step(plain, case.record(stack), name)

    def not_an_option(stack: Any) -> str | None:
        known = stack.run_options()
        missing = [key.replace("__", ".") for key in options if key.replace("__", ".") not in known]
        return f"run_options has no {missing[0]}" if missing else None

    chosen = {"grpo__max_num_steps": 1, **options}
    return Law(
        name=f"equal {name}",
        make=run_cases(tuple(chosen), **chosen),
        measure=measure,
        excluded=not_an_option,
        seeded=False,
        suspects=suspects,
    )


def _same_step(plain: RunRecord, other: RunRecord, name: str) -> Measure:
    """Compare the first step of two runs: ids exactly, numbers and gradients within rounding."""
    one, two = plain.steps[0], other.steps[0]
    what = f"first step {name} against micro-batches of two rows"
    if [row.ids for row in one.rows] != [row.ids for row in two.rows]:
        return Measure(error=math.inf, bound=0, what=f"{what}: other tokens were sampled")
    if len(one.updates) != len(two.updates):
        return Measure(error=math.inf, bound=0, what=f"{what}: {len(two.updates)} updates")
    worst, place = 0.0, "nowhere"
    for index, (left, right) in enumerate(zip(one.rows, two.rows, strict=True)):
        error = _row_distance(left, right)
        if is_worse(error, worst):
            worst, place = error, f"row {index}"
    for number, (first, second) in enumerate(zip(one.updates, two.updates, strict=True)):
        if number and worst <= ROW_BOUND:
            break  # the second update starts from weights that differ by rounding, which AdamW magnifies
        error, tensor = largest_gradient_difference(second.gradients, first.gradients)
        if is_worse(error, worst):
            worst, place = error, f"gradient of {tensor}, update {number + 1}"
    return Measure(error=worst, bound=ROW_BOUND, what=f"{what}, {place}, difference")


def _row_distance(one: RunRow, other: RunRow) -> float:
    pairs = [
        *zip(one.sampling_logprobs, other.sampling_logprobs, strict=True),
        *zip(one.old_logprobs, other.old_logprobs, strict=True),
        *zip(one.ref_logprobs or (), other.ref_logprobs or (), strict=True),
        (one.reward, other.reward),
        (one.advantage, other.advantage),
    ]
    return max(abs(a - b) for a, b in pairs) if all(math.isfinite(a - b) for a, b in pairs) else math.inf


LOSSES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("clipped, with a KL", {"policy__optimizer__lr": 0.05}),
    (
        "per sequence, dual clip",
        {
            "loss_fn__reduction": "sequence",
            "loss_fn__ratio_clip_c": 1.5,
            "loss_fn__ratio_clip_max": 0.4,
            "policy__optimizer__lr": 0.05,
            "grpo__max_num_steps": 1,
        },
    ),
    (
        "GSPO",
        {
            "loss_fn__kind": "gspo",
            "loss_fn__reduction": "sequence",
            "policy__optimizer__lr": 0.05,
            "grpo__max_num_steps": 1,
        },
    ),
    (
        "CISPO, corrected for the sampler",
        {
            "loss_fn__kind": "cispo",
            "loss_fn__importance_sampling": "truncated",
            "loss_fn__reference_policy_kl_type": "k2",
            "policy__optimizer__lr": 0.05,
            "grpo__max_num_steps": 1,
        },
    ),
    (
        "Dr. GRPO with entropy",
        {
            "loss_fn__reduction": "fixed_length",
            "loss_fn__fixed_length": 11,
            "loss_fn__entropy_coefficient": 0.05,
            "grpo__advantage__estimator": "dr_grpo",
            "grpo__advantage__scale": "none",
            "grpo__max_num_steps": 1,
        },
    ),
    ("without a reference", {"loss_fn__reference_policy_kl_penalty": 0.0, "grpo__max_num_steps": 1}),
)
LAYOUTS = (
    layout_law(
        "in micro-batches of one row",
        {"policy__train_micro_batch_size": 1},
        "averaging over micro-batches, local token counts, padding attended to",
    ),
    layout_law(
        "in one micro-batch",
        {"policy__train_micro_batch_size": 4},
        "averaging over micro-batches, local token counts, padding attended to",
    ),
    layout_law(
        "packed",
        {"policy__sequence_packing__enabled": True},
        "attention across boundaries, positions that run on, counts of packs for counts of rows",
    ),
    layout_law(
        "in micro-batches of a number of tokens",
        {"policy__dynamic_batching__enabled": True},
        "rows sorted by length and not put back, a micro-batch left out",
    ),
    layout_law(
        "in micro-batches of few tokens",
        {"policy__dynamic_batching__enabled": True, "policy__dynamic_batching__train_mb_tokens": FEW_TOKENS},
        "rows beyond the first micro-batch left out, a budget that nobody reads",
    ),
    layout_law(
        "packed into rows of few tokens",
        {"policy__sequence_packing__enabled": True, "policy__sequence_packing__train_mb_tokens": FEW_TOKENS},
        "rows beyond the first pack left out, a budget that nobody reads",
    ),
    layout_law(
        "on two ranks",
        {"cluster__num_processes": 2},
        "local counts, gradients averaged where they are summed, a random stream of the rank's own",
    ),
)

RELATIONS = (
    Relation(
        id="R12.run",
        name="run-gradients-equal-oracle",
        component="run",
        statement="The raw gradient of every update is autograd's on the loss of its rows, with their own fields.",
        catalogue=(
            "SB016", "SB027", "SB073", "SB119", "SB123", "SB151", "SB152", "SB156", "SB163", "SB164", "SB168", "SB189",
            "SB190", "SB194", "SB198", "SB203", "SB208",
        ),
        cost="CPU, seconds",
        laws=(
            Law(
                name="each row once",
                make=run_cases(),
                measure=_each_row_once,
                seeded=False,
                suspects="a last batch dropped, the first batch taken for every update, sizes of a rank",
            ),
            Law(
                name="gradients are not zero",
                make=run_cases(),
                measure=_is_not_zero,
                seeded=False,
                suspects="equal rewards everywhere, a mask of zeros, a tensor that is not in the graph",
            ),
            *(
                Law(
                    name=f"raw gradient, {name}",
                    make=run_cases(tuple(options), **options),
                    measure=gradients_error,
                    seeded=False,
                    suspects="old, reference or sampler's log-probabilities swapped or shifted, a wrong divisor, "
                    "another loss than configured, advantages of other rows",
                )
                for name, options in LOSSES
            ),
        ),
    ),
    Relation(
        id="R1.run",
        name="run-ignores-layout",
        component="run",
        statement="A step has the same rows, numbers and gradients in any micro-batches, packed, and on two ranks.",
        catalogue=(
            "SB026", "SB094", "SB095", "SB097", "SB101", "SB109", "SB110", "SB111", "SB155", "SB157", "SB158", "SB159",
            "SB175", "SB181", "SB182", "SB185", "SB195", "SB199", "SB206", "SB210", "SB215", "SB334", "SB371",
        ),
        cost="CPU, seconds; two processes",
        laws=LAYOUTS,
    ),
)  # fmt: skip
