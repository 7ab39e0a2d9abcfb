"""Fingerprints of a model's tensors, from a checkpoint or from a process that serves it.

A fingerprint is the BLAKE2b hash (16 bytes) of a tensor's type, its shape and its bits in row-major order: equal for
equal tensors, whatever holds them. refrl's weight sync makes the same ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.errors import BlockedError
from seatrial.evidence.weights import StoredTensor, stored_tensors
from seatrial.files import write_text

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""Types by safetensors' names."""
FORM = 1
"""Of the file."""


@dataclass(frozen=True)
class Fingerprint:
    """What is known of one tensor without its values."""

    dtype: str
    """As torch names it: float32, bfloat16."""
    shape: tuple[int, ...]
    digest: str


class Checkpoint:
    """The tensors of a Hugging Face folder, whose bits can be read."""

    def __init__(self, directory: Path) -> None:
        """Read the headers.

        Raises:
            BlockedError: the folder holds no weights, or they cannot be read.
        """
        self._stored = stored_tensors(directory)
        for name, tensor in self._stored.items():
            if tensor.dtype not in DTYPES:
                raise BlockedError(f"{tensor.file}: tensor {name} has the type {tensor.dtype}, unknown here")

    def names(self) -> frozenset[str]:
        """Return the names of all tensors."""
        return frozenset(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self._stored[name].shape

    def fingerprint(
        self, names: Iterable[str], dtype: str | None = None, *, is_transposed: bool = False
    ) -> Fingerprint:
        """Return the fingerprint of a tensor, or of several, one below the other (joined along the first dimension).

        Args:
            names: of tensors with equal further dimensions.
            dtype: the type to cast to first; None: their own.
            is_transposed: of the transposed tensor.
        """
        stored = [self._stored[name] for name in names]
        bits = [_bits(tensor, dtype or DTYPES[tensor.dtype]) for tensor in stored]
        whole = np.concatenate(bits) if len(bits) > 1 else bits[0]
        whole = np.ascontiguousarray(whole.T) if is_transposed else whole
        return of_bits(dtype or DTYPES[stored[0].dtype], whole.shape, whole.tobytes())


def of_bits(dtype: str, shape: Iterable[int], bits: bytes) -> Fingerprint:
    """Return the fingerprint of a tensor's bits in row-major order."""
    lengths = tuple(int(length) for length in shape)
    digest = hashlib.blake2b(f"{dtype} {lengths} ".encode(), digest_size=16)
    digest.update(bits)
    return Fingerprint(dtype, lengths, digest.hexdigest())


def write_fingerprints(path: Path, fingerprints: Mapping[str, Fingerprint]) -> None:
    """Write fingerprints for `seatrial syncproof` (of a live model: `seatrial.comparisons.tensors.write_tensors`).

    Raises:
        BlockedError: the file cannot be written.
    """
    tensors = {name: [one.dtype, list(one.shape), one.digest] for name, one in fingerprints.items()}
    write_text(path, json.dumps({"schema_version": FORM, "tensors": tensors}, indent=1) + "\n")


def read_fingerprints(path: Path) -> dict[str, Fingerprint]:
    """Return what `write_fingerprints` wrote.

    Raises:
        BlockedError: the file is missing, or is another one.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema_version"] != FORM:
            raise BlockedError(
                f"{path} has the form {document['schema_version']}, and this reads form {FORM}"
            )
        return {
            str(name): Fingerprint(str(dtype), tuple(int(length) for length in shape), str(digest))
            for name, (dtype, shape, digest) in document["tensors"].items()
        }
    except OSError as error:
        raise BlockedError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BlockedError(
            f"{path} holds no fingerprints: write them with seatrial.comparisons.tensors.write_tensors"
        ) from error


def _bits(tensor: StoredTensor, dtype: str) -> npt.NDArray[Any]:
    """Return a tensor as an array whose bytes are those of its values in another type; bfloat16 as 16 bits."""
    own = DTYPES[tensor.dtype]
    if dtype == "bfloat16":
        if own == "bfloat16":
            raw = np.fromfile(
                tensor.file, dtype="<u2", count=(tensor.end - tensor.start) // 2, offset=tensor.start
            )
            return raw.reshape(tensor.shape)
        return _to_bfloat16(tensor.read().astype(np.float32))
    values = tensor.read()
    return values if own == dtype else values.astype(dtype)


def _to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round float32 to the nearest bfloat16, ties to even, as torch does; of a NaN torch writes several forms."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def served(path: Path) -> dict[str, Fingerprint]:
    """Return the fingerprints of what serves: a folder of weights, or a file of fingerprints.

    Raises:
        BlockedError: it cannot be read.
    """
    if not path.is_dir():
        return read_fingerprints(path)
    checkpoint = Checkpoint(path)
    return {name: checkpoint.fingerprint([name]) for name in checkpoint.names()}
