"""Weights of Hugging Face folders, read without torch: comparison of two folders, and fingerprints of tensors.

The safetensors format is eight bytes of header length, a JSON header, and the raw tensors
(source: the format's own description, huggingface/safetensors README).

A fingerprint is the BLAKE2b hash (16 bytes) of a tensor's type, its shape and its bits in row-major order: equal for
equal tensors, in a checkpoint or in a process that serves them. refrl's weight sync computes the same ones.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.errors import BlockedError
from seatrial.files import write_text

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?",
}  # fmt: skip
_MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where one tensor is stored."""

    file: Path
    dtype: str
    """Name of the format: F32, BF16, ..."""
    shape: tuple[int, ...]
    start: int
    """Byte of the file where it begins."""
    end: int

    def read(self) -> npt.NDArray[Any]:
        """Return the values; bfloat16 as float32, which holds it exactly."""
        count = math.prod(self.shape)
        if self.dtype == "BF16":
            raw = np.fromfile(self.file, dtype="<u2", count=count, offset=self.start)
            return (raw.astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        return np.fromfile(self.file, dtype=_DTYPES[self.dtype], count=count, offset=self.start).reshape(
            self.shape
        )


@dataclass(frozen=True, kw_only=True)
class TensorChange:
    """How one tensor differs between two folders."""

    name: str
    max_abs_change: float
    """Largest absolute difference; NaN when either side has a value that is not finite."""
    relative_change: float
    """Norm of the difference, relative to that of the first folder's tensor."""
    num_changed: int
    """Elements that differ, the first folder's rounded to the second's type."""
    num_elements: int
    num_nonfinite: int
    """Elements of the second folder's tensor that are NaN or infinite."""
    resolution: float = 0.0
    """Smallest distance between two values of the second folder's type, at any element of its tensor."""


@dataclass(frozen=True, kw_only=True)
class WeightComparison:
    """All differences between two folders of weights."""

    changes: tuple[TensorChange, ...]
    """Tensors that both have, of equal shape, by name."""
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    reshaped: tuple[str, ...]
    """`name: (2, 3) became (3, 2)`."""

    @property
    def unmoved(self) -> list[str]:
        """Names of tensors of which not one element changed."""
        return [change.name for change in self.changes if change.num_changed == 0]


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Read the headers of all safetensors files of a folder.

    Raises:
        BlockedError: the folder or its files are missing, truncated or malformed, or a name is there twice.
    """
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise BlockedError(f"{directory} holds no *.safetensors to compare: give the folder of saved weights")
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in _header(file).items():
            if name in tensors:
                raise BlockedError(f"{file}: tensor {name} is in {tensors[name].file.name} as well")
            tensors[name] = tensor
    return tensors


def _header(file: Path) -> dict[str, StoredTensor]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
            raise BlockedError(f"{file} is no whole safetensors file ({size} bytes)")
        try:
            header: Mapping[str, Any] = json.loads(stream.read(length))
            return {
                name: _tensor(file, name, entry, 8 + length, size)
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BlockedError(f"{file} has a malformed safetensors header: {error}") from error


def _tensor(file: Path, name: str, entry: Mapping[str, Any], data_start: int, size: int) -> StoredTensor:
    dtype = str(entry["dtype"])
    if dtype != "BF16" and dtype not in _DTYPES:
        raise BlockedError(f"{file}: tensor {name} has the type {dtype}, which is not read here")
    start, end = (data_start + int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(length) for length in entry["shape"])
    item = 2 if dtype == "BF16" else np.dtype(_DTYPES[dtype]).itemsize
    if end - start != math.prod(shape) * item or end > size:
        raise BlockedError(f"{file}: tensor {name} is truncated or its size is wrong")
    return StoredTensor(file=file, dtype=dtype, shape=shape, start=start, end=end)


def compare_weights(before: Path, after: Path) -> WeightComparison:
    """Compare two folders tensor by tensor; one tensor of each is in memory at a time.

    Raises:
        BlockedError: either folder's weights cannot be read.
    """
    old, new = stored_tensors(before), stored_tensors(after)
    both = sorted(old.keys() & new.keys())
    return WeightComparison(
        changes=tuple(
            _change(name, old[name], new[name]) for name in both if old[name].shape == new[name].shape
        ),
        only_before=tuple(sorted(old.keys() - new.keys())),
        only_after=tuple(sorted(new.keys() - old.keys())),
        reshaped=tuple(
            f"{name}: {old[name].shape} became {new[name].shape}"
            for name in both
            if old[name].shape != new[name].shape
        ),
    )


def _change(name: str, old: StoredTensor, new: StoredTensor) -> TensorChange:
    before = _rounded(old.read(), new.dtype).astype(np.float64)
    stored = new.read()
    after = stored.astype(np.float64)
    # NaN differs from itself here: a tensor turned to NaN has changed, and shows in num_nonfinite.
    changed = ~(before == after)
    return TensorChange(
        name=name,
        max_abs_change=float(np.max(np.abs(after - before), initial=0.0)),
        relative_change=float(np.linalg.norm(after - before) / max(float(np.linalg.norm(before)), 1e-30)),
        num_changed=int(changed.sum()),
        num_elements=before.size,
        num_nonfinite=int((~np.isfinite(after)).sum()),
        resolution=_resolution(stored, new.dtype),
    )


def _rounded(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """Return values as a type of safetensors holds them; types of integers leave them as they are."""
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32)
        halfway = np.uint32(0x7FFF) + ((bits >> 16) & 1)  # to the nearest, ties to even
        finite = np.isfinite(values)
        return np.where(finite, ((bits + halfway) & np.uint32(0xFFFF0000)).view(np.float32), values)
    return values.astype(_DTYPES[dtype]) if dtype in ("F16", "F32") else values


def _resolution(values: npt.NDArray[Any], dtype: str) -> float:
    """Return the smallest distance of two neighbouring values of a type at any of these; 0 for integers."""
    if not values.size or dtype not in ("BF16", "F16", "F32", "F64"):
        return 0.0
    smallest = np.min(np.abs(values))
    return float(np.spacing(smallest)) * (2.0**16 if dtype == "BF16" else 1.0)


DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""Types by safetensors' names."""
FORM = 1
"""Version of the file's schema."""


@dataclass(frozen=True)
class Fingerprint:
    """Type, shape and hash of one tensor."""

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
    """Return the fingerprints of the served weights: from a folder of weights, or a file of fingerprints.

    Raises:
        BlockedError: it cannot be read.
    """
    if not path.is_dir():
        return read_fingerprints(path)
    checkpoint = Checkpoint(path)
    return {name: checkpoint.fingerprint([name]) for name in checkpoint.names()}
