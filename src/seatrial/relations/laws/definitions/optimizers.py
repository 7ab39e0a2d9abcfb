"""R35.optimizer: an optimizer with any option makes the steps of AdamW on the sums of its gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.definitions.made import Seeded, seeded, without
from seatrial.relations.laws.run.updates import STEP_BOUND, AdamW
from seatrial.relations.oracles.options import learning_rate
from seatrial.relations.oracles.runs import norm_of

SHAPES: Mapping[str, tuple[int, ...]] = {"matrix": (5, 4), "bias": (4,), "kernel": (3, 2, 2), "scale": ()}
NUM_UPDATES = 5
PLAIN: Mapping[str, Any] = {
    "policy.optimizer.lr": 0.01,
    "policy.optimizer.weight_decay": 0.0,
    "policy.optimizer.betas": (0.9, 0.95),
    "policy.optimizer.eps": 1e-8,
    "policy.max_grad_norm": None,
}
OPTIONS: Sequence[Mapping[str, Any]] = (
    {},
    {"policy.optimizer.weight_decay": 0.3},
    {"policy.optimizer.betas": (0.6, 0.99), "policy.optimizer.eps": 0.01},
    {"policy.max_grad_norm": 0.05, "policy.optimizer.weight_decay": 0.1},
    {"policy.max_grad_norm": 1000.0},
    {"policy.scheduler.name": "linear", "policy.scheduler.warmup_steps": 2},
    {"policy.scheduler.name": "cosine", "policy.scheduler.min_lr_ratio": 0.2},
    {"policy.scheduler.name": "cosine", "policy.scheduler.warmup_steps": 1, "policy.max_grad_norm": 0.5},
    {"policy.scheduler.warmup_steps": 3},
)
OPTIMIZER = Relation(
    id="R35.optimizer",
    name="any-options-make-adamw",
    component="definitions",
    statement="With any options, in float32 and bfloat16, each update is AdamW's on the sum of its micro-batches' "
    "gradients; one that is not finite changes nothing; what is saved continues as before.",
    catalogue="SB218 SB221 SB222 SB228 SB229 SB231 SB233 SB313 SB316",
    cost="CPU, milliseconds",
    cases=seeded,
    seeded=False,
)


def _gradients(stream: torch.Generator, dtype: torch.dtype) -> list[list[dict[str, Tensor]]]:
    """Return gradients of the micro-batches of each update; the second one has a weight without."""
    updates = []
    for update in range(NUM_UPDATES):
        made = [
            {name: torch.randn(shape, generator=stream).to(dtype) for name, shape in SHAPES.items()}
            for _ in range(1 + update % 3)
        ]
        updates.append(made)
    # A micro-batch that reaches one weight alone.
    updates[2][1] = {"bias": updates[2][1]["bias"]}
    return updates


@OPTIMIZER.law(
    "updates are AdamW's",
    "options that are ignored or exchanged, biases that decay, gradients added up in bfloat16, a schedule off by one",
    excluded=without("optimize"),
)
def updates_are_adamw(stack: Any, case: Seeded) -> Measure:
    """Compare weights, norms and rates of every update with the definition, for each set of options and dtype."""
    found = []
    for options in OPTIONS:
        for dtype in (torch.float32, torch.bfloat16):
            found += _differences(
                stack, {**PLAIN, **options}, dtype, case.stream(), f"{dict(options)}, {dtype}"
            )
    return Measure.largest(found, 1.0, "weights, norms and rates in units of their bounds")


def _differences(
    stack: Any, options: Mapping[str, Any], dtype: torch.dtype, stream: torch.Generator, what: str
) -> list[tuple[float, str]]:
    weights = {name: torch.randn(shape, generator=stream) for name, shape in SHAPES.items()}
    updates = _gradients(stream, dtype)
    taken = stack.definitions["optimize"](options, weights, updates, dtype, NUM_UPDATES)
    optimizer, expected, found = AdamW(options, facts_of(stack).decays), dict(weights), []
    for number, (micro_batches, (own, served, norm, rate)) in enumerate(zip(updates, taken, strict=True), 1):
        gradients = {
            name: torch.stack([one[name].double() for one in micro_batches if name in one]).sum(0)
            for name in SHAPES
        }
        due = learning_rate(options, number, NUM_UPDATES)
        expected = optimizer.step(expected, gradients, due)
        where = f"update {number} with {what}"
        found.append((abs(rate - due) / (1e-6 * due + 1e-12), f"rate of {where}"))
        found.append((abs(norm / norm_of(gradients) - 1) / 1e-5, f"norm of {where}"))
        step = number * options["policy.optimizer.lr"] * STEP_BOUND
        for name, weight in expected.items():
            error = float((own[name].double() - weight).abs().max())
            found.append((error / (step + 1e-6), f"{name} after {where}"))
            rounded = own[name].to(dtype)
            found.append(
                (2.0 * (not torch.equal(served[name], rounded)), f"{name} as it is served after {where}")
            )
    return found


@OPTIMIZER.law(
    "a gradient that is not finite changes nothing",
    "moments, weights or the schedule that move with a gradient of NaN",
    excluded=without("optimize"),
)
def not_finite_changes_nothing(stack: Any, case: Seeded) -> Measure:
    """Compare a run with one update more, whose gradient is not finite, with the run without it."""
    wrong = []
    for value in (math.nan, math.inf):
        options = {**PLAIN, "policy.scheduler.name": "linear", "policy.max_grad_norm": 0.5}
        stream = case.stream()
        weights = {name: torch.randn(shape, generator=stream) for name, shape in SHAPES.items()}
        updates = _gradients(stream, torch.float32)
        bad = [{**updates[0][0], "bias": torch.full(SHAPES["bias"], value)}]
        plain = stack.definitions["optimize"](options, weights, updates, torch.float32, NUM_UPDATES)
        more = stack.definitions["optimize"](
            options, weights, [*updates[:2], bad, *updates[2:]], torch.float32, NUM_UPDATES
        )
        wrong += [f"a norm of {more[2][2]} for {value}"] * math.isfinite(more[2][2])
        for name in SHAPES:
            wrong += [f"{name} changes with {value}"] * (not torch.equal(more[2][0][name], more[1][0][name]))
            same = torch.equal(more[-1][0][name], plain[-1][0][name])
            wrong += [f"{name} is another after {value}"] * (not same)
        wrong += [f"rate {more[-1][3]} after {value}"] * (more[-1][3] != plain[-1][3])
    return Measure.count(wrong, "what an update that is not finite changes")


@OPTIMIZER.law(
    "what is saved continues",
    "moments, float32 copies or counters that are not saved, or not read",
    excluded=without("resume"),
)
def what_is_saved_continues(stack: Any, case: Seeded) -> Measure:
    """Compare a run whose state is taken over by a new optimizer with the run without a break, bit for bit."""
    wrong = []
    for dtype in (torch.float32, torch.bfloat16):
        options = {**PLAIN, "policy.scheduler.name": "cosine", "policy.optimizer.weight_decay": 0.1}
        stream = case.stream()
        weights = {name: torch.randn(shape, generator=stream) for name, shape in SHAPES.items()}
        updates = _gradients(stream, dtype)
        whole = stack.definitions["optimize"](options, weights, updates, dtype, NUM_UPDATES)
        for after in (1, 3):
            last = stack.definitions["resume"](options, weights, updates, dtype, NUM_UPDATES, after)[-1]
            same = all(torch.equal(last[0][name], whole[-1][0][name]) for name in SHAPES)
            same = same and last[2:] == whole[-1][2:]
            wrong += [f"{dtype}, after update {after}"] * (not same)
    return Measure.count(wrong, "runs that continue otherwise")


@OPTIMIZER.law(
    "clipping is by the whole norm",
    "a norm of each tensor or of the last, a limit that scales up, a weight without gradient that counts",
    excluded=without("clip"),
)
def clipping_is_by_the_whole_norm(stack: Any, case: Seeded) -> Measure:
    """Clip gradients, one of them missing, to limits above and below their norm, and to none."""
    stream, found = case.stream(), []
    gradients = [torch.randn(3, generator=stream), None, 5 * torch.randn(3, generator=stream)]
    whole = float(torch.cat([one for one in gradients if one is not None]).double().norm())
    for limit in (whole / 3, whole * 2, math.inf):
        for name, (norm, clipped) in stack.definitions["clip"](gradients, limit).items():
            found.append((abs(norm / whole - 1) / 1e-6, f"norm, {name}, limit {limit:.3g}"))
            scale = min(1.0, limit / whole)
            for before, after in zip(gradients, clipped, strict=True):
                if before is None or after is None:
                    found.append((math.inf if before is not after else 0.0, f"a missing gradient, {name}"))
                    continue
                # PyTorch adds 1e-6 to the norm that it divides by.
                error = float((after - scale * before).abs().max()) / float(before.abs().max())
                found.append((error / 1e-5, f"a gradient, {name}, limit {limit:.3g}"))
    return Measure.largest(found, 1.0, "clipped gradients, in units of their bound")
