"""R31.adapter_steps: optimizers of low-rank adapters, and their budgets of ranks, are the formulas of their papers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

ADAPTER_STEPS = relation_of(
    "adapter_steps",
    "steps-of-adapters-are-their-formula",
    "Optimizers of low-rank adapters change A and B as their papers say, and ranks are pruned to their budget.",
)
Options = Mapping[str, Any]
Tensors = Mapping[str, Mapping[str, Tensor]]
"""By layer and part: A [R, I], B [O, R], and for AdaLoRA E [R, 1]."""
SIZES: Mapping[str, tuple[int, int]] = {"one": (7, 5), "two": (5, 9)}
"""Inputs and outputs of each layer, which are after one another."""
RATE, DECAY = 0.4, 0.1
SMALL = 3e-5
"""Of gradients next to Adam's epsilon, without which a step does not depend on their scale."""


def _drawn(case: Numbers, ranks: Mapping[str, int], number: int, parts: str = "AB") -> list[Tensors]:
    generator = case.generator()
    found: list[Tensors] = []
    for _ in range(number):
        own: dict[str, dict[str, Tensor]] = {}
        for layer, (size, out) in SIZES.items():
            shapes = {"A": (ranks[layer], size), "B": (out, ranks[layer]), "E": (ranks[layer], 1)}
            own[layer] = {part: torch.randn(*shapes[part], generator=generator) for part in parts}
        found.append(own)
    return found


STEPS: Sequence[tuple[Options, Mapping[str, int]]] = (
    ({"r": 3, "lora_alpha": 6}, {"one": 3, "two": 3}),
    ({"r": 2, "lora_alpha": 5, "use_rslora": True}, {"one": 2, "two": 2}),
    ({"r": 3, "lora_alpha": 6, "rank_pattern": {"two": 2}}, {"one": 3, "two": 2}),
    ({"r": 3, "lora_alpha": 6, "alpha_pattern": {"one": 2}}, {"one": 3, "two": 3}),
)


def _plain_cases(case: Numbers) -> Iterator[Arguments]:
    (options, ranks) = STEPS[0]
    first, *gradients = _drawn(case, ranks, 4)
    yield options, first, gradients


def _scaled_cases(case: Numbers) -> Iterator[Arguments]:
    for options, ranks in STEPS[1:]:
        first, *gradients = _drawn(case, ranks, 4)
        small = [
            {layer: {part: SMALL * value for part, value in own.items()} for layer, own in step.items()}
            for step in gradients
        ]
        yield options, first, small


def _scale(options: Options, layer: str) -> float:
    rank = options.get("rank_pattern", {}).get(layer, options["r"])
    alpha = options.get("alpha_pattern", {}).get(layer, options["lora_alpha"])
    return float(alpha / (math.sqrt(rank) if options.get("use_rslora") else rank))


def frozen_a(
    options: Options, first: Tensors, gradients: Sequence[Tensors]
) -> list[dict[str, dict[str, Tensor]]]:
    """Return A and B after each step of LoRA-FA (Zhang et al., 2023): A stays.

    B's gradient is divided by the scale's square times A A^T, and Adam with decay after the step takes it.
    """
    found: list[dict[str, dict[str, Tensor]]] = [{} for _ in gradients]
    for layer, parts in first.items():
        a, b = parts["A"].double(), parts["B"].double()
        mean, square = torch.zeros_like(b), torch.zeros_like(b)
        for number, own in enumerate(gradients, start=1):
            gradient = own[layer]["B"].double() @ (a @ a.T).inverse() / _scale(options, layer) ** 2
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            ratio = math.sqrt(1 - 0.999**number) / (1 - 0.9**number)
            b = (b - RATE * ratio * mean / (square.sqrt() + 1e-6)) * (1 - RATE * DECAY)
            found[number - 1][layer] = {"A": a, "B": b}
    return found


def preconditioned(
    options: Options, first: Tensors, gradients: Sequence[Tensors]
) -> list[dict[str, dict[str, Tensor]]]:
    """Return A and B after each step of descent that is preconditioned (Zhang and Pilanci, 2024).

    A's gradient is divided by B^T B, and B's by A A^T, each with a damping of 0.01.
    """
    found: list[dict[str, dict[str, Tensor]]] = [{} for _ in gradients]
    for layer, parts in first.items():
        a, b = parts["A"].double(), parts["B"].double()
        damping = 0.01 * torch.eye(len(a), dtype=torch.float64)
        for number, own in enumerate(gradients):
            of_a = (b.T @ b + damping).inverse() @ own[layer]["A"].double()
            of_b = own[layer]["B"].double() @ (a @ a.T + damping).inverse()
            a, b = a - RATE * of_a, b - RATE * of_b
            found[number][layer] = {"A": a, "B": b}
    return found


BUDGETS: Sequence[Options] = (
    {"tinit": 1, "tfinal": 2, "deltaT": 2, "total_step": 9},
    {"tinit": 0, "tfinal": 0, "deltaT": 1, "total_step": 5},
    {"tinit": 2, "tfinal": 3, "deltaT": 3, "total_step": 10, "beta1": 0.6, "beta2": 0.7},
)
RANK, TARGET = 4, 2


def _budget_cases(case: Numbers) -> Iterator[Arguments]:
    for options in BUDGETS:
        ranks = dict.fromkeys(SIZES, RANK)
        number = options["total_step"] + 1
        drawn = _drawn(case, ranks, 2 * number, "ABE")
        yield options, drawn[:number], drawn[number:]


def budgeted(
    options: Options, weights: Sequence[Tensors], gradients: Sequence[Tensors]
) -> list[dict[str, list[int]]]:
    """Return which ranks of each layer are left after each step of AdaLoRA (Zhang et al., 2023).

    Weights are new at each step. The importance of a weight is the smoothed product of it and its gradient times
    the smoothed distance from that; of a rank, that of E and the means of A and B. The budget falls by a cubic from
    `tinit` to `tfinal` steps before the end, and is imposed every `deltaT` steps; from then on the last choice stays.
    """
    one, two = options.get("beta1", 0.85), options.get("beta2", 0.85)
    smoothed: dict[tuple[str, str], Tensor] = {}
    distance: dict[tuple[str, str], Tensor] = {}
    whole, target = RANK * len(SIZES), TARGET * len(SIZES)
    begin, end = options["tinit"], options["total_step"] - options["tfinal"]
    kept: dict[str, list[int]] = {}
    found = []
    for step, (values, slopes) in enumerate(zip(weights, gradients, strict=True)):
        left = {layer: list(range(RANK)) for layer in SIZES}
        if step < end:
            for layer in SIZES:
                for part in "ABE":
                    product = (values[layer][part].double() * slopes[layer][part].double()).abs()
                    place = layer, part
                    mean = one * smoothed.get(place, torch.zeros_like(product)) + (1 - one) * product
                    far = (
                        two * distance.get(place, torch.zeros_like(product))
                        + (1 - two) * (product - mean).abs()
                    )
                    smoothed[place], distance[place] = mean, far
        imposed = begin < step < end and step % options["deltaT"] == 0
        if imposed or step == end:
            part_left = 1 - (step - begin) / (end - begin)
            budget = int((whole - target) * part_left**3 + target)
            scores = []
            for layer in SIZES:
                of = {part: smoothed[layer, part] * distance[layer, part] for part in "ABE"}
                total = of["E"][:, 0] + of["A"].mean(1) + of["B"].mean(0)
                scores += [(float(score), layer, rank) for rank, score in enumerate(total)]
            best = sorted(scores, reverse=True)[:budget]
            kept = {layer: sorted(rank for _, own, rank in best if own == layer) for layer in SIZES}
        if imposed or step >= end:
            left = kept
        found.append(left)
    return found


ADAPTER_STEP_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="steps of LoRA-FA",
        law="steps with A frozen",
        suspects="a scale that is not squared, moments of A, a decay before the step",
        cases=_plain_cases,
        right=frozen_a,
        bound=2e-2,  # products of bfloat16
    ),
    Plain(
        name="steps of LoRA-FA",
        law="steps with A frozen, other scales",
        suspects="one scale for all layers, one without the root of the rank",
        cases=_scaled_cases,
        right=frozen_a,
        bound=2e-2,
    ),
    Plain(
        name="preconditioned steps",
        law="steps that are preconditioned",
        suspects="A's matrix for B, a damping that is left out, a layer that is left out",
        cases=_plain_cases,
        right=preconditioned,
        bound=1e-4,
    ),
    Plain(
        name="ranks within a budget",
        law="ranks that a budget leaves",
        suspects="a budget of another step, ranks of another layer, an importance that is not smoothed",
        cases=_budget_cases,
        right=budgeted,
    ),
)
add_laws(ADAPTER_STEPS, ADAPTER_STEP_FUNCTIONS)
