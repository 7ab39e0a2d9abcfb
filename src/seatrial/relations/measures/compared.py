"""How far two runs of a trainer are apart: tensors, logged scalars and losses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def difference(
    one: Mapping[str, Tensor], other: Mapping[str, Tensor], least: float = 0.0
) -> tuple[float, str]:
    """Return the largest difference of two sets of tensors over the largest entry, with its place.

    Args:
        one: tensors by name, whose largest entry it is.
        other: as many.
        least: in place of a smaller largest entry.
    """
    if one.keys() != other.keys():
        return math.inf, f"one side alone has {', '.join(sorted(one.keys() ^ other.keys())[:3])}"
    scale = max(largest(one), least)
    worst = max(
        ((float((value - other[name]).abs().max()), name) for name, value in one.items()),
        key=lambda found: (math.isnan(found[0]), found[0]),
        default=(math.inf, "no tensor"),
    )
    return (worst[0] / scale if scale else math.inf if worst[0] else 0.0), worst[1]


def largest(tensors: Mapping[str, Tensor]) -> float:
    """Return the largest absolute entry of tensors; 0 without any."""
    return max((float(value.abs().max()) for value in tensors.values()), default=0.0)


def digits(loss: float) -> float:
    """Return how much a logged loss may differ: four decimals are logged."""
    return 1e-4 + 1e-3 * abs(loss)


def close(one: float, other: float) -> bool:
    """Return whether two scalars are equal within the digits that are logged; NaN is what a deviation of one row is."""
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=2e-3, abs_tol=1e-4)
