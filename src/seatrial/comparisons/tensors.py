"""Fingerprints of a live model's tensors for `seatrial syncproof`; call it in the process that serves the model."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from seatrial.evidence.weights import Fingerprint, of_bits, write_fingerprints

if TYPE_CHECKING:
    from torch import Tensor


def of_tensors(named: Iterable[tuple[str, Tensor]]) -> dict[str, Fingerprint]:
    """Return the fingerprint of every tensor by name; tensors are copied to the CPU one after another."""
    import torch

    found = {}
    for name, tensor in named:
        bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        dtype = str(tensor.dtype).removeprefix("torch.")
        found[name] = of_bits(dtype, tensor.shape, bits.numpy().tobytes())
    return found


def write_tensors(path: Path, named: Iterable[tuple[str, Tensor]]) -> None:
    """Write the fingerprint of every tensor, for example those of `model.named_parameters()`.

    Raises:
        BlockedError: the file cannot be written.
    """
    write_fingerprints(path, of_tensors(named))
