"""What processes saw of training that they share, held against what one process sees alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from seatrial.relations.contracts.parallel import RankRecord
from seatrial.relations.worst import is_worse

if TYPE_CHECKING:
    from torch import Tensor

GRADIENT_BOUND = 1e-5
"""Of float32 sums in another order, relative to each tensor's norm; 4e-6 was the most seen in any layout."""
FLOOR = 1e-3
"""Smallest norm used as scale, relative to the largest tensor's. Some gradients are 0 except for rounding errors, such
as that of a key bias, which changes no attention weight."""


def gradient_error(record: RankRecord, alone: RankRecord) -> tuple[float, str]:
    """Return the largest difference of a tensor's raw gradient, relative to its norm, and its name."""
    return tensor_error(record.gradients, alone.gradients)


def tensor_error(found: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> tuple[float, str]:
    """Return the largest relative difference in norm of tensors by name; infinity where names or shapes differ."""
    if found.keys() != right.keys() or not right:
        return float("inf"), ", ".join(sorted(found.keys() ^ right.keys())) or "no tensor"
    least = FLOOR * max(float(tensor.double().norm()) for tensor in right.values())
    worst = (0.0, "none")
    for name, tensor in right.items():
        if found[name].shape != tensor.shape:
            return float("inf"), f"{name} of shape {tuple(found[name].shape)}"
        difference = float((found[name].double() - tensor.double()).norm())
        error = difference / max(float(tensor.double().norm()), least, 1e-30)
        if is_worse(error, worst[0]):
            worst = (error, name)
    return worst


def metric_error(found: Mapping[str, float], right: Mapping[str, float]) -> tuple[float, str]:
    """Return the largest difference of a logged scalar, relative where it is above 1, and its name."""
    worst = (0.0, "none")
    for name in sorted(found.keys() | right.keys()):
        value, wanted = found.get(name, float("nan")), right.get(name, float("nan"))
        error = abs(value - wanted) / max(1.0, abs(wanted))
        if is_worse(error, worst[0]):
            worst = (error, name)
    return worst if right else (float("inf"), "no metric")


def counts(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that count tokens and rows: whole numbers, which no order of sums changes."""
    return {name: value for name, value in metrics.items() if name.startswith(("global_valid", "num_"))}


def replica_differences(records: Sequence[RankRecord]) -> list[str]:
    """Return what ranks have otherwise than the first one: whole weights, norms and metrics are the same to the bit."""
    import torch

    first, *others = records
    wrong = []
    for rank, record in enumerate(others, start=1):
        wrong += [
            f"{name} on rank {rank}"
            for name in first.weights.keys() | record.weights.keys()
            if name not in record.weights or not torch.equal(first.weights[name], record.weights[name])
        ]
        if repr((record.grad_norm, record.metrics)) != repr((first.grad_norm, first.metrics)):
            wrong.append(f"gradient norm or metrics on rank {rank}")
    return wrong
