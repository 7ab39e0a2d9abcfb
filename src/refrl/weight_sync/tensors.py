"""Tensors of a module by name: shared with another, or copied from it; and their bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from refrl.weight_sync.base import WeightSyncError

_MOST_THREADS = 8

if TYPE_CHECKING:  # an import of seconds, for two annotations
    from transformers import PreTrainedModel


def share_tensors(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Put these tensors in the place of the model's own parameters and buffers, without a copy and without gradient.

    Raises:
        WeightSyncError: they are not the model's, by name or shape.
    """
    _check(_tensors(model), weights)
    for name, tensor in weights.items():
        path, _, leaf = name.rpartition(".")
        module = model.get_submodule(path)
        if leaf in module._parameters:
            module._parameters[leaf] = nn.Parameter(tensor.detach(), requires_grad=False)
        else:
            module._buffers[leaf] = tensor.detach()
    # A head that is the embedding is named once.
    model.tie_weights()


@torch.no_grad()
def copy_tensors(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Copy these tensors into the model's own parameters and buffers.

    Raises:
        WeightSyncError: they are not the model's, by name or shape; nothing was copied.
    """
    own = _tensors(model)
    _check(own, weights)
    for name, tensor in weights.items():
        own[name].copy_(tensor)


def as_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU, its elements in row-major order; its own memory where they lie so."""
    flat_N: Any = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat_N)


def _tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _check(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    missing, unknown = sorted(own.keys() - given.keys()), sorted(given.keys() - own.keys())
    if missing or unknown:
        raise WeightSyncError(
            f"the weights lack {len(missing)} tensors of the generator {missing[:3]} and have {len(unknown)} that it "
            f"does not know {unknown[:3]}"
        )
    for name, tensor in given.items():
        if tensor.shape != own[name].shape:
            raise WeightSyncError(
                f"{name} has shape {tuple(tensor.shape)}, and the generator's {tuple(own[name].shape)}"
            )


def fingerprint(tensor: Tensor) -> str:
    """Return 32 hexadecimal digits of a tensor's type, shape and bits, its elements in row-major order.

    Bits, not values: a NaN equals itself, and minus zero is not zero.
    """
    digest = hashlib.blake2b(digest_size=16)
    dtype = str(tensor.dtype).removeprefix("torch.")
    digest.update(f"{dtype} {tuple(tensor.shape)} ".encode())
    digest.update(as_bytes(tensor.cpu()))
    return digest.hexdigest()


def fingerprints(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the fingerprint of each tensor by name, several at a time: hashing lets other threads run."""
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        return dict(zip(tensors, pool.map(fingerprint, tensors.values()), strict=True))
