"""Tensors of a model by name: live, copied, or as a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor, nn


def named_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and buffer, live."""
    return chain(model.named_parameters(), model.named_buffers())


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, where the tensors are."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return what tells tensors by name, type, shape and every bit."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
