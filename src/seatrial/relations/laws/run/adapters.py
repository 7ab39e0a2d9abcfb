"""R10, R21: adapters train and nothing else does; merged, unmerged and exported forms are one model."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.laws.run.resume import ADAPTERS, ResumeCase
from seatrial.relations.not_served import NotServed
from seatrial.relations.records.run import RunRow, StepRecord
from seatrial.relations.runs import BASE, RunCase, run

ROUNDING = 1e-5
"""Of float32 products of a few dozen terms, absolute; weights here are below 2."""
AGREEMENT = 1e-4
"""Largest difference of a log-probability, in nats: merged and unmerged products are rounded apart."""


BFLOAT16 = {**ADAPTERS, "policy.precision": "bfloat16"}
INDEPENDENT = 6.0
"""Standard deviations of the cosine of two independent vectors, times the root of their length."""
ROUNDED_OTHERWISE = 1e-3
"""Share of elements whose sum in float32 lies on the other side of a rounding boundary than that in float64."""


def _bfloat16_case(stack: Any, seed: int, tidy: bool) -> ResumeCase:
    return ResumeCase(options={**BFLOAT16, "grpo.max_num_steps": 3}, seed=seed, num_starts=1)


def _resume_case(stack: Any, seed: int, tidy: bool) -> ResumeCase:
    return ResumeCase(options={**ADAPTERS, "grpo.max_num_steps": 3}, seed=seed, num_starts=1)


def _one_update_case(stack: Any, seed: int, tidy: bool) -> ResumeCase:
    rows = BASE["grpo.num_prompts_per_step"] * BASE["grpo.num_generations_per_prompt"]
    options = {**ADAPTERS, "grpo.max_num_steps": 1, "policy.train_global_batch_size": rows}
    return ResumeCase(options=options, seed=seed, num_starts=1)


def _run_case(stack: Any, seed: int, tidy: bool) -> RunCase:
    return RunCase(options={**ADAPTERS, "grpo.max_num_steps": 3}, seed=seed, needed=tuple(ADAPTERS))


def _export_is_base_plus_adapters(stack: Any, case: ResumeCase) -> Measure:
    """In float64: W + scale B A where there is an adapter, and W to the bit elsewhere."""
    import torch

    left = case.run(stack)
    base = run(stack, {**ADAPTERS, "grpo.max_num_steps": 3}, case.seed).initial_weights
    worst, where = (0.0 if left.adapters else math.inf), "no adapter was exported"
    for name, exported in left.exported.items():
        stem = name.removesuffix(".weight")
        low, high = left.adapters.get(f"{stem}.lora_A.weight"), left.adapters.get(f"{stem}.lora_B.weight")
        if low is None or high is None:
            difference = 0.0 if torch.equal(exported, base[name]) else math.inf
        else:
            wanted = base[name].double() + left.adapter_scale * (high.double() @ low.double())
            difference = float((exported.double() - wanted).abs().max())
        if not difference <= worst:
            worst, where = difference, name
    return Measure(error=worst, bound=ROUNDING, what=f"exported weight against base plus adapter ({where})")


def _merged_weights_are_rounded_once(stack: Any, case: ResumeCase) -> Measure:
    """In bfloat16: the float64 sum of the frozen weight and scale B A, rounded; float32 sums round a few otherwise."""
    left = case.run(stack)
    base = run(stack, {**BFLOAT16, "grpo.max_num_steps": 3}, case.seed).initial_weights
    other = total = 0
    for name, exported in left.exported.items():
        stem = name.removesuffix(".weight")
        low, high = left.adapters.get(f"{stem}.lora_A.weight"), left.adapters.get(f"{stem}.lora_B.weight")
        if low is None or high is None:
            continue
        wanted = base[name].double() + left.adapter_scale * (high.double() @ low.double())
        other += int((exported != wanted.to(exported.dtype)).sum())
        total += exported.numel()
    return Measure(
        error=other / total if total else math.inf,
        bound=ROUNDED_OTHERWISE,
        what=f"share of merged weights that are not the sum, rounded once ({other} of {total})",
    )


def _every_adapter_moves(stack: Any, case: ResumeCase) -> Measure:
    """B starts at zero; A has the same start in every run, and a gradient from the second update on."""
    left = case.run(stack)
    first = ResumeCase(options={**case.options, "grpo.max_num_steps": 1}, seed=case.seed, num_starts=1).run(
        stack
    )
    still = [
        name
        for name, tensor in left.adapters.items()
        if bool((tensor == (first.adapters[name] if "lora_A" in name else 0)).all())
    ]
    error = float(len(still)) if left.adapters else math.inf
    return Measure(error=error, bound=0, what=f"adapter tensors that did not move ({still[:3] or 'none'})")


def _begin_apart(stack: Any, case: ResumeCase) -> Measure:
    """The halves that start at random are independent: of two of one shape, the cosine times sqrt(n) is a few.

    They are those after one update, in which B is zero: A has no gradient, and decay shrinks all of them alike.
    """
    import torch

    start = {
        name: value.double().flatten()
        for name, value in case.run(stack).adapters.items()
        if "lora_A" in name and bool(value.any())
    }
    shapes = {name: case.run(stack).adapters[name].shape for name in start}
    worst, where = math.inf, "no two of one shape"
    pairs = [(one, other) for one, other in combinations(sorted(start), 2) if shapes[one] == shapes[other]]
    for one, other in pairs:
        cosine = torch.cosine_similarity(start[one], start[other], dim=0)
        error = abs(float(cosine)) * math.sqrt(start[one].numel())
        if worst == math.inf or not error <= worst:
            worst, where = error, f"{one} and {other}"
    return Measure(error=worst, bound=INDEPENDENT, what=f"cosine of two new adapters times sqrt(n) ({where})")


def _sampler_has_them(stack: Any, case: RunCase) -> Measure:
    """What the sampler says of each id, against what the trainer scores it with before the update.

    Rows of older weights, as asynchronous rollouts have them, are scored with others than they were sampled with.

    Raises:
        NotServed: no row after the first step, in which adapters change nothing, is of the trainer's weights.
    """
    record = case.record(stack)
    worst = 0.0
    if not any(_is_own(row, step) for step in record.steps[1:] for row in step.rows):
        raise NotServed("every row after the first step was sampled with older weights")
    for step in record.steps:
        for row in step.rows:
            if not _is_own(row, step):
                continue
            pairs = zip(row.sampling_logprobs, row.old_logprobs, strict=True)
            worst = max([worst, *(abs(one - other) for one, other in pairs)])
    return Measure(error=worst, bound=AGREEMENT, what="log-probability of the sampler against the trainer's")


def _is_own(row: RunRow, step: StepRecord) -> bool:
    """Tell whether every token was sampled with the weights that the step began with."""
    return all(version == step.step - 1 for _, _, version in row.segments)


def _reference_is_the_base(stack: Any, case: RunCase) -> Measure:
    """Reference log-probabilities against the plain model with the initial weights, in the last step."""
    import torch

    record = case.record(stack)
    temperature = record.options["policy.generation.temperature"]
    worst, num = 0.0, 0
    for row in record.steps[-1].rows:
        if row.ref_logprobs is None:
            continue
        with torch.no_grad():
            ids = (*row.prompt_ids, *row.ids)
            logits = stack.next_token_logits(record.initial_weights, ids).double() / temperature
        start = len(row.prompt_ids) - 1
        wanted = logits.log_softmax(-1)[range(start, start + len(row.ids)), list(row.ids)]
        worst = max(worst, float((wanted - torch.tensor(row.ref_logprobs).double()).abs().max()))
        num += 1
    return Measure(
        error=worst if num else math.inf,
        bound=AGREEMENT,
        what=f"reference against the frozen model, {num} rows",
    )


RELATIONS = (
    Relation(
        id="R10.adapters",
        name="adapters-train-and-nothing-else",
        component="resume",
        statement="Every adapter moves, and the exported model is the frozen one plus the exported adapters.",
        catalogue=("SB040", "SB056", "SB258", "SB266", "SB295", "SB340", "SB345", "SB351", "SB352"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="export is base plus adapters",
                make=_resume_case,
                measure=_export_is_base_plus_adapters,
                suspects="a base that is trained, a scale left out or another, merged weights of an earlier step",
            ),
            Law(
                name="merged weights are rounded once",
                make=_bfloat16_case,
                measure=_merged_weights_are_rounded_once,
                suspects="a product that is rounded before it is added, adapters that are held in bfloat16",
                seeded=False,
            ),
            Law(
                name="every adapter moves",
                make=_resume_case,
                measure=_every_adapter_moves,
                suspects="adapters frozen with the base, or switched off for the reference and left so",
            ),
            Law(
                name="new adapters begin apart",
                make=_one_update_case,
                measure=_begin_apart,
                suspects="one stream of random numbers for all layers",
                seeded=False,
            ),
        ),
    ),
    Relation(
        id="R7.adapters",
        name="adapters-reach-the-sampler",
        component="run",
        statement="The sampler samples with the adapters, and the reference scores without them.",
        catalogue=("SB260", "SB269", "SB313", "SB340", "SB390"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="sampler and trainer agree",
                make=_run_case,
                measure=_sampler_has_them,
                suspects="the base alone is sent, merged weights are those of the start, or the scale is left out",
            ),
            Law(
                name="the reference is the frozen model",
                make=_run_case,
                measure=_reference_is_the_base,
                suspects="adapters that stay on for the reference",
            ),
        ),
    ),
)
