"""Fingerprints of tensors: equal for equal values, independent of storage, strides and device."""

from __future__ import annotations

import hashlib

from torch import Tensor

from refrl.weight_sync.tensors import as_bytes


def fingerprint(tensor: Tensor) -> str:
    """Return 32 hexadecimal digits of a tensor's type, shape and bits, its elements in row-major order.

    Bits, not values: a NaN equals itself, and minus zero is not zero.
    """
    digest = hashlib.blake2b(digest_size=16)
    dtype = str(tensor.dtype).removeprefix("torch.")
    digest.update(f"{dtype} {tuple(tensor.shape)} ".encode())
    digest.update(as_bytes(tensor.cpu()))
    return digest.hexdigest()
