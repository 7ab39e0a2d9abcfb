"""Combinations of plain adapters factor by factor, and of changes whose elements are dropped at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def combine_parts(
    stack: Any, model: Any, names: Sequence[str], weights: Sequence[float], how: str, new: str
) -> None:
    """Combine factor by factor, or changes whose elements are dropped at random."""
    if how.endswith("_svd"):
        made = _mixed(stack, [model.delta(name) for name in names], weights, how)
        model.adapters[new] = {"A": torch.eye(len(model.base["weight"][0])), "B": made / model.scale()}
        return
    roots = [math.sqrt(abs(weight) * model.scale()) for weight in weights]
    signed = [math.copysign(root, weight) for root, weight in zip(roots, weights, strict=True)]
    # The factors are for a scaling of one.
    one = {
        factor: _mixed(stack, [model.adapters[name][factor] for name in names], shares, how)
        for factor, shares in (("A", signed), ("B", roots))
    }
    model.adapters[new] = one


def _mixed(stack: Any, values: Sequence[Tensor], weights: Sequence[float], how: str) -> Tensor:
    """Return the sum of values that are pruned, or dropped at random and doubled."""
    if how.startswith("dare"):
        values = [value * (torch.rand_like(value) < 0.5) for value in values]
        values = values if stack.fault == "dropped alone" else [value * 2 for value in values]
    elif how != "linear":
        values = [stack._pruned(value) for value in values]
    weighted = torch.stack([value * weight for value, weight in zip(values, weights, strict=True)])
    if "ties" not in how:
        return weighted.sum(0)
    stacked = torch.stack(list(values))
    agrees = (stacked != 0) & ((stacked > 0) == (stacked.sum(0) >= 0))
    return (weighted * agrees).sum(0) / agrees.sum(0).clamp(min=1)
