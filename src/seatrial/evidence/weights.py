"""Compare the weights of two Hugging Face folders without torch: what moved, by how much, is it finite.

The safetensors format is eight bytes of header length, a JSON header, and the raw tensors
(source: the format's own description, huggingface/safetensors README).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.errors import BlockedError

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
    "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?",
}  # fmt: skip
_MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where one tensor lies."""

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
    """Elements that differ."""
    num_elements: int
    num_nonfinite: int
    """Elements of the second folder's tensor that are NaN or infinite."""


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
        raise BlockedError(f"{directory} holds no *.safetensors: the weights cannot be compared")
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
    before = old.read().astype(np.float64)
    after = new.read().astype(np.float64)
    # NaN differs from itself here: a tensor turned to NaN has changed, and shows in num_nonfinite.
    changed = ~(before == after)
    return TensorChange(
        name=name,
        max_abs_change=float(np.max(np.abs(after - before), initial=0.0)),
        relative_change=float(np.linalg.norm(after - before) / max(float(np.linalg.norm(before)), 1e-30)),
        num_changed=int(changed.sum()),
        num_elements=before.size,
        num_nonfinite=int((~np.isfinite(after)).sum()),
    )
