"""How a plain model of adapters is trained: the groups of its optimizer, and steps of one that is made once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.adapters import OptimizerGroup, Role


def step_of(model: Any, lr: float) -> Callable[[Tensor], None]:
    """Return a step that moves the tensors that train now, along the signs of their gradients."""
    held = {key: value for key, value in model.tensors().items() if key in model.trainable()}

    def step(ids_BS: Tensor) -> None:
        for key, gradient in model.gradients(ids_BS).items():
            held[key].sub_(lr * gradient.sign())

    return step


def make_anew(model: Any) -> None:
    """Put new tensors in the place of those that an optimizer may have; a fault, in any precision or in half."""
    cast = model.fault == "factors are cast" and model.dtype != torch.float32
    if cast or model.fault == "factors are made anew":
        for name, factors in model.adapters.items():
            model.adapters[name] = {key: value.clone() for key, value in factors.items()}


def groups_of(
    fault: str, lr: float, ratio: float, embedding_lr: float, weight_decay: float
) -> tuple[Sequence[OptimizerGroup], Mapping[str, Role]]:
    """Return three groups, one a role."""
    roles: dict[str, Role] = {
        "head.A": "A",
        "head.B": "B",
        "table.A": "embedding",
        "table.B": "embedding",
    }
    rates = {
        "A": lr,
        "B": lr * ratio,
        "embedding": lr if fault == "embedding rate" else embedding_lr,
    }
    decay = 0.0 if fault == "decay" else weight_decay
    groups = [
        OptimizerGroup(names=tuple(n for n, one in roles.items() if one == role), lr=rate, weight_decay=decay)
        for role, rate in rates.items()
    ]
    return (groups[:-1] if fault == "a group is missing" else groups), roles
