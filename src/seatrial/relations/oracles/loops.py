"""Accumulated gradient descent of a linear model in float64, from the rows of each micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seatrial.relations.contracts.loops import AccumulationPlan, AccumulationSpec

NUM_FEATURES = 3


def features(number: int) -> tuple[tuple[float, ...], float]:
    """Return the inputs and the target of a row; multiples of 1/8, which every precision holds."""
    inputs = tuple(((number * (7 + 2 * place) + 3 * place) % 17 - 8) / 8 for place in range(NUM_FEATURES))
    return inputs, ((number * 5) % 13 - 6) / 4


def start() -> tuple[float, ...]:
    """Return the weights before the first step."""
    return (0.5, -0.25, 0.125)


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step leaves."""

    weights: Tensor
    rate: float
    norm: float


def descent(
    spec: AccumulationSpec, plan: AccumulationPlan, steps: Sequence[Sequence[Sequence[Sequence[int]]]]
) -> list[Step]:
    """Return the weights after each step, the rate of the next one, and the norm of its gradient.

    Args:
        spec: the rate and its decay.
        plan: divides each micro-batch's mean by `accumulation`, and processes are averaged.
        steps: rows by step, process and micro-batch.
    """
    weights = torch.tensor(start(), dtype=torch.float64)
    made, rate = [], spec.rate
    for ranks in steps:
        gradient = torch.zeros_like(weights)
        for parts in ranks:
            for rows in parts:
                x_BD = torch.tensor([features(row)[0] for row in rows], dtype=torch.float64)
                y_B = torch.tensor([features(row)[1] for row in rows], dtype=torch.float64)
                slope = 2 * (x_BD @ weights - y_B) @ x_BD / len(rows)
                gradient = gradient + slope / plan.accumulation / len(ranks)
        norm = float(gradient.norm())
        if plan.max_norm is not None and norm > plan.max_norm:
            gradient = gradient * (plan.max_norm / norm)
        weights = weights - rate * gradient
        # The schedule is written for one process: it advances once for each process and step.
        rate *= spec.rate_decay**plan.num_ranks
        made.append(Step(weights=weights, rate=rate, norm=norm))
    return made
