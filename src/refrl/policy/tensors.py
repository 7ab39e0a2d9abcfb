"""Tensors of a model by name: live, copied, or as a digest."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

FROZEN_DIFFER = (
    "policy.model_name: the frozen weights or the reference differ from those that the checkpoint was trained with; "
    "set it to the model that the run started from"
)
"""Message for a different digest of the frozen weights."""


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and buffer, live."""
    return chain(model.named_parameters(), model.named_buffers())


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor, gathered where it is spread; every process that has a part of it takes part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, where the tensors are."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def class_name(model: nn.Module) -> str:
    """Return the class of a module with its package."""
    return f"{type(model).__module__}.{type(model).__qualname__}"


def forms(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return how many tensors are held in which form: whole, or with these placements on a device mesh."""
    return dict(Counter(_form(tensor) for tensor in tensors))


def _form(tensor: Tensor) -> str:
    if not isinstance(tensor, DTensor):
        return "Tensor"
    return f"DTensor[{', '.join(map(repr, tensor.placements))}]"


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of tensors that depends on name, type, shape and every bit."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
