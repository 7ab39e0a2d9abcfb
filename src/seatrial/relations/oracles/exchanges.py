"""Nested values of each process, of many types and shapes, and what exchanges make of them by their definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.contracts.processes import ExchangePlan

FILL = 7
"""What shorter values are padded with."""
_FLOATS = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float32,
    torch.float32,
)
_MIXED = (torch.int64, torch.float64, torch.bfloat16, torch.bool, torch.float16, torch.uint8, torch.float32)


class Named(NamedTuple):
    """A container whose values have names."""

    left: Any
    right: Any


def leaves(
    rank: int, *, numbers: bool = False, unequal: bool = False, scalar: bool = True
) -> dict[str, Tensor]:
    """Return the values of a process by place.

    Args:
        rank: the process; no two have equal values.
        numbers: whether all are floating-point numbers, which can be added and divided.
        unequal: whether later processes have longer ones.
        scalar: whether one of them has no dimension.
    """
    made = {}
    for place, dtype in enumerate(_FLOATS if numbers else _MIXED):
        length = 2 + place % 2 + (rank * (place % 3) if unequal else 0)
        whole = torch.arange(length * 3).reshape(3, length).T + 5 * rank + place  # not contiguous
        value = whole % 2 == 0 if dtype is torch.bool else whole
        made[f"{place}"] = (value[:, 0] if place % 2 else value).to(dtype)
    if scalar:
        made["6"] = torch.tensor(float(3 * rank + 1))
    return made


def objects_of(rank: int) -> list[Any]:
    """Return objects of a process: no two processes have as many."""
    return [{"rank": rank, "text": "x" * (40 * rank + 1)}, *[f"{rank}.{number}" for number in range(rank)]]


def expected(plan: ExchangePlan, rank: int) -> dict[str, Tensor]:
    """Return the values that a process has after an exchange of tensors."""
    ranks = [
        leaves(one, numbers=plan.how in ("sum", "mean"), unequal=plan.how == "pad")
        for one in range(plan.num_ranks)
    ]
    own = ranks[rank]
    if plan.how == "broadcast":
        return ranks[plan.source]
    if plan.how == "gather":
        return {
            name: torch.cat([one[name].reshape(-1) if not one[name].dim() else one[name] for one in ranks])
            for name in own
        }
    if plan.how in ("sum", "mean"):
        divisor = plan.num_ranks if plan.how == "mean" else 1
        return {
            name: (torch.stack([one[name].double() for one in ranks]).sum(0) / divisor).to(value.dtype)
            for name, value in own.items()
        }
    if plan.how == "float32":
        return {
            name: value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
            for name, value in own.items()
        }
    if plan.how == "concatenate":
        pair = [leaves(one, scalar=False) for one in (rank, rank + 1)]
        return {name: torch.cat([one[name] for one in pair]) for name in pair[0]}
    lengths = {name: max(len(one[name]) if one[name].dim() else 1 for one in ranks) for name in own}
    return {name: _padded(value, lengths[name]) for name, value in own.items()}


def _padded(value: Tensor, length: int) -> Tensor:
    if not value.dim():
        return value
    fill = torch.full((length - len(value), *value.shape[1:]), FILL).to(value.dtype)
    return torch.cat([value, fill])


def nested(own: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the values in a dictionary with a list, a tuple and a named tuple."""
    names = sorted(own)
    return {
        "first": own[names[0]],
        "list": [own[name] for name in names[1:3]],
        "deep": {
            "tuple": tuple(own[name] for name in names[3:5]),
            "named": Named(*(own[name] for name in names[5:7])),
        },
    }


def flat(found: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the values of `nested` by place."""
    values: Sequence[Tensor] = [
        found["first"],
        *found["list"],
        *found["deep"]["tuple"],
        *found["deep"]["named"],
    ]
    return {f"{place}": value for place, value in enumerate(values)}


def types_of(found: Any) -> str:
    """Return the types of nested containers as text."""
    if isinstance(found, Mapping):
        inner = ", ".join(f"{key}: {types_of(value)}" for key, value in found.items())
        return f"{type(found).__name__}({inner})"
    if isinstance(found, (list, tuple)):
        return f"{type(found).__name__}({', '.join(map(types_of, found))})"
    return type(found).__name__
