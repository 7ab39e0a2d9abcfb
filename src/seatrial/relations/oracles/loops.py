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


def slope(weights: Tensor, rows: Sequence[int]) -> Tensor:
    """Return the gradient of the mean squared error of these rows."""
    x_BD = torch.tensor([features(row)[0] for row in rows], dtype=torch.float64)
    y_B = torch.tensor([features(row)[1] for row in rows], dtype=torch.float64)
    gradient: Tensor = 2 * (x_BD @ weights - y_B) @ x_BD / len(rows)
    return gradient


def advance(spec: AccumulationSpec, plan: AccumulationPlan) -> float:
    """Return what a step multiplies the rate by.

    The schedule is written for one process: it advances once for each process and step, unless batches are split, as
    there are then as many as one process has.
    """
    return spec.rate_decay ** (1 if plan.split else plan.num_ranks)


def steps_of_epoch(plan: AccumulationPlan) -> int:
    """Return the steps of an epoch, whose last batch ends one."""
    return -(-plan.num_batches // plan.accumulation)


def local_descent(
    spec: AccumulationSpec, plan: AccumulationPlan, steps: Sequence[Sequence[Sequence[int]]]
) -> list[list[Tensor]]:
    """Return the weights of each process after each step, of which all take the mean after so many steps.

    Args:
        spec: the rate and its decay.
        plan: says after how many steps; it has no accumulation.
        steps: rows by step and process; after the last one all take the mean.
    """
    weights, rate = [torch.tensor(start(), dtype=torch.float64)] * plan.num_ranks, spec.rate
    made: list[list[Tensor]] = []
    for number, ranks in enumerate(steps, start=1):
        weights = [own - rate * slope(own, rows) for own, rows in zip(weights, ranks, strict=True)]
        if number % plan.local_steps == 0:
            weights = [torch.stack(weights).mean(0)] * plan.num_ranks
        rate *= advance(spec, plan)
        made.append(weights)
    return made


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
    made: list[Step] = []
    rate = spec.rate
    for ranks in steps:
        gradient = torch.zeros_like(weights)
        for rows in [rows for parts in ranks for rows in parts]:
            gradient = gradient + slope(weights, rows) / plan.accumulation / plan.num_ranks
        norm = float(gradient.norm())
        if plan.max_norm is not None and norm > plan.max_norm:
            gradient = gradient * (plan.max_norm / norm)
        if plan.max_value is not None:
            gradient = gradient.clamp(-plan.max_value, plan.max_value)
        weights = weights - rate * gradient
        if plan.schedule == "step":
            rate *= advance(spec, plan)
        elif (len(made) + 1) % steps_of_epoch(plan) == 0:
            rate *= spec.rate_decay
        made.append(Step(weights=weights, rate=rate, norm=norm))
    return made
