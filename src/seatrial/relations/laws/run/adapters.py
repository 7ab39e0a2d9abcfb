"""R10.adapters, R7.adapters: adapters train and nothing else does; merged and exported forms are one model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.resume import ADAPTERS, ResumeCase, resuming
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.runs import token_logprobs
from seatrial.relations.records.run import RunRow, StepRecord
from seatrial.relations.runs import BASE, RunCase, run, run_cases
from seatrial.relations.worst import Worst

ROUNDING = 1e-5
"""Of float32 products of a few dozen terms, absolute; weights here are below 2."""
AGREEMENT = 1e-4
"""Largest difference of a log-probability, in nats, between merged and unmerged products."""
INDEPENDENT = 6.0
"""Standard deviations of the cosine of two independent vectors, times the root of their length."""
ROUNDED_OTHERWISE = 1e-3
"""Share of elements whose float32 sum is on the other side of a rounding boundary than the float64 sum."""

WHOLE = resuming(1, 3, **ADAPTERS)
EXCLUDED = ("q_proj", "down_proj")
"""Layers that a law leaves without adapters."""

TRAINED = Relation(
    id="R10.adapters",
    name="adapters-train-and-nothing-else",
    component="resume",
    statement="Every adapter moves, and the exported model is the frozen one plus the exported adapters.",
    catalogue="SB040 SB056 SB258 SB266 SB295 SB340 SB345 SB351 SB352",
    cost="CPU, seconds",
    cases=WHOLE,
)
SAMPLED = Relation(
    id="R7.adapters",
    name="adapters-reach-the-sampler",
    component="run",
    statement="The sampler samples with the adapters, and the reference scores without them.",
    catalogue="SB260 SB269 SB313 SB340 SB390",
    cost="CPU, seconds",
    cases=run_cases(**ADAPTERS, grpo__max_num_steps=3),
)


@TRAINED.law(
    "export is base plus adapters",
    "a base that is trained, a scale left out or another, merged weights of an earlier step",
    seeded=False,
)
def export_is_base_plus_adapters(stack: Any, case: ResumeCase) -> Measure:
    """Compare the export with W + scale B A in float64 where there is an adapter, with W to the bit elsewhere."""
    worst = Worst() if case.run(stack).adapters else Worst(math.inf, "no adapter was exported")
    for name, exported, base, product in _merged(stack, case):
        if product is None:
            difference = 0.0 if torch.equal(exported, base) else math.inf
        else:
            difference = float((exported.double() - (base.double() + product)).abs().max())
        worst.add(difference, name)
    return Measure(
        error=worst.error, bound=ROUNDING, what=f"exported weight against base plus adapter ({worst.place})"
    )


@TRAINED.law(
    "merged weights are rounded once",
    "a product that is rounded before it is added, adapters that are kept in bfloat16",
    cases=resuming(1, 3, **ADAPTERS, policy__precision="bfloat16"),
    seeded=False,
)
def merged_weights_are_rounded_once(stack: Any, case: ResumeCase) -> Measure:
    """Compare bfloat16 exports with the rounded float64 sum of W and scale B A; float32 sums round a few otherwise."""
    other = total = 0
    for _, exported, base, product in _merged(stack, case):
        if product is not None:
            other += int((exported != (base.double() + product).to(exported.dtype)).sum())
            total += exported.numel()
    return Measure(
        error=other / total if total else math.inf,
        bound=ROUNDED_OTHERWISE,
        what=f"share of merged weights that are not the sum, rounded once ({other} of {total})",
    )


def _merged(stack: Any, case: ResumeCase) -> Iterator[tuple[str, Tensor, Tensor, Tensor | None]]:
    """Yield (name, exported weight, frozen weight, scale B A in float64 or None) of every exported tensor."""
    left, base = case.run(stack), run(stack, case.options, case.seed).initial_weights
    for name, exported in left.exported.items():
        stem = name.removesuffix(".weight")
        low, high = left.adapters.get(f"{stem}.lora_A.weight"), left.adapters.get(f"{stem}.lora_B.weight")
        product = None if low is None or high is None else left.adapter_scale * (high.double() @ low.double())
        yield name, exported, base[name], product


@TRAINED.law(
    "every adapter moves", "adapters frozen with the base, or switched off for the reference and left off"
)
def every_adapter_moves(stack: Any, case: ResumeCase) -> Measure:
    """Check that B leaves zero, and that A changes after the first update, in which it has no gradient."""
    adapters = case.run(stack).adapters
    first = replace(case, options={**case.options, "grpo.max_num_steps": 1}).run(stack).adapters
    still = [
        name
        for name, tensor in adapters.items()
        if bool((tensor == (first[name] if "lora_A" in name else 0)).all())
    ]
    return Measure.count(still if adapters else ["no adapter"], "adapter tensors that did not move")


@TRAINED.law(
    "excluded layers have no adapter",
    "an option that nothing reads, names compared from the wrong end",
    cases=resuming(1, 1, **ADAPTERS, policy__lora_cfg__exclude_modules=list(EXCLUDED)),
    seeded=False,
)
def excluded_layers_have_no_adapter(stack: Any, case: ResumeCase) -> Measure:
    """Compare the layers with adapters with those of a run that excludes none, less the excluded ones."""
    every = WHOLE(stack, case.seed, False).run(stack).adapters
    due = {name for name in every if not any(f".{layer}.lora_" in name for layer in EXCLUDED)}
    found = case.run(stack).adapters.keys()
    wrong = [f"{name} is there" for name in sorted(found - due)]
    wrong += [f"{name} is not there" for name in sorted(due - found)]
    return Measure.count(
        wrong if len(due) < len(every) else ["nothing is excluded"],
        "adapters that are not those of the options",
    )


@TRAINED.law(
    "new adapters are independent",
    "one stream of random numbers for all layers",
    cases=resuming(
        1,
        1,
        **ADAPTERS,
        policy__train_global_batch_size=BASE["grpo.num_prompts_per_step"]
        * BASE["grpo.num_generations_per_prompt"],
    ),
    seeded=False,
)
def new_adapters_are_independent(stack: Any, case: ResumeCase) -> Measure:
    """Check that of two random halves of one shape, the cosine times sqrt(n) is small.

    They are taken after one update, in which B is zero: A has no gradient, and decay shrinks all of them alike.
    """
    adapters = case.run(stack).adapters
    start = {
        name: value.double().flatten()
        for name, value in adapters.items()
        if "lora_A" in name and bool(value.any())
    }
    return Measure.largest(
        (
            (
                abs(float(torch.cosine_similarity(start[one], start[other], dim=0)))
                * math.sqrt(start[one].numel()),
                f"{one} and {other}",
            )
            for one, other in combinations(sorted(start), 2)
            if adapters[one].shape == adapters[other].shape
        ),
        INDEPENDENT,
        "cosine of two new adapters times sqrt(n)",
    )


@SAMPLED.law(
    "sampler and trainer agree",
    "only the base is sent, merged weights are those of the start, or the scale is left out",
)
def sampler_and_trainer_agree(stack: Any, case: RunCase) -> Measure:
    """Compare the sampler's log-probability of each id with the trainer's before the update.

    Rows of older weights, as asynchronous rollouts have them, are left out: the trainer scores them with newer ones.

    Raises:
        NotServed: no row after the first step, in which adapters change nothing, is of the trainer's weights.
    """
    rows = [(place, step, row) for place, step, row in case.record(stack).rows() if _is_current(row, step)]
    if not any(step.step > 1 for _, step, _ in rows):
        raise NotServed("every row after the first step was sampled with older weights")
    return Measure.largest(
        (
            (abs(one - other), place)
            for place, _, row in rows
            for one, other in zip(row.sampling_logprobs, row.old_logprobs, strict=True)
        ),
        AGREEMENT,
        "log-probability of the sampler against the trainer's",
    )


def _is_current(row: RunRow, step: StepRecord) -> bool:
    """Return whether every token was sampled with the weights that the step began with."""
    return all(version == step.step - 1 for _, _, version in row.segments)


@SAMPLED.law("the reference is the frozen model", "adapters that stay on for the reference")
@torch.no_grad()
def reference_is_the_base(stack: Any, case: RunCase) -> Measure:
    """Compare reference log-probabilities of the last step with the plain model's with the initial weights."""
    record = case.record(stack)
    found = []
    for place, step, row in record.rows():
        if step is record.steps[-1] and row.ref_logprobs is not None:
            expected = token_logprobs(stack, record.initial_weights, row, record.options)
            error = float((expected - torch.tensor(row.ref_logprobs).double()).abs().max())
            found.append((error, place))
    return Measure.largest(found, AGREEMENT, "reference log-probability against the frozen model")
