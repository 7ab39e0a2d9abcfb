"""A field of many rows: dense, jagged or of objects, always held as tensors.

Dense rows are slices of one tensor `[N, ...]`. Jagged rows are concatenated in one tensor, stored with their lengths.
Objects are JSON values, held as the bytes of their text: they come back equal, or are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Value = Tensor | list[Tensor] | np.ndarray
"""What callers give and get: `[N, ...]`, a list of N tensors, or an array of N objects."""
Columns = Mapping[str, Value]


@dataclass(frozen=True, eq=False)
class Column:
    """A field of N rows."""

    kind: Literal["dense", "jagged", "object"]
    values: Tensor
    """Dense: `[N, ...]`; else rows end to end along dimension 0 (of objects, bytes)."""
    lengths: tuple[int, ...] | None = None
    """Rows of `values` that each row has; None for dense."""

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.values) if self.lengths is None else len(self.lengths)

    @property
    def num_bytes(self) -> int:
        """Bytes of the values."""
        return self.values.numel() * self.values.element_size()

    @property
    def dtype_of_values(self) -> str:
        """Return torch's name of it."""
        return str(self.values.dtype).removeprefix("torch.")

    @property
    def dtype(self) -> str:
        """Return what must be the same for all rows of a field of a partition."""
        return "object" if self.kind == "object" else self.dtype_of_values

    def take(self, rows: Sequence[int]) -> Column:
        """Return a copy of some rows, in the order asked for."""
        if self.lengths is None:
            return Column("dense", _copied_rows(self.values, rows))
        if _is_range(rows):
            starts = np.cumsum((0, *self.lengths))
            start, end = (starts[rows[0]], starts[rows[-1] + 1]) if rows else (0, 0)
            return Column(self.kind, self.values[start:end].clone(), tuple(self.lengths[row] for row in rows))
        parts = self.values.split(list(self.lengths))
        return _joined(self.kind, [parts[row] for row in rows], self.values)


def encode(value: Value, name: str) -> Column:
    """Return a field as a column that shares nothing with what the caller holds.

    Args:
        value: a tensor `[N, ...]` or nested (jagged) one, a list of N tensors, or an array of N JSON values.
        name: of the field, for messages.

    Raises:
        TypeError: it is none of these, or an object would not survive a round trip.
        ValueError: it has no rows' dimension, or the rows differ in more than their first dimension.
    """
    if isinstance(value, Tensor) and value.is_nested:
        value = list(value.unbind())
    if isinstance(value, Tensor):
        if value.dim() == 0:
            raise ValueError(
                f"field {name!r} is a single number, not one value a row: give it a dimension of rows"
            )
        return Column("dense", _copied(value))
    if isinstance(value, np.ndarray) and value.dtype == object:
        return _encoded_objects(value, name)
    if isinstance(value, list) and value and all(isinstance(row, Tensor) for row in value):
        shapes = {(row.dtype, row.shape[1:], row.dim() > 0) for row in value}
        if len(shapes) > 1 or not value[0].dim():
            raise ValueError(
                f"rows of the jagged field {name!r} differ in dtype or inner shape, or have no length"
            )
        return _joined("jagged", [row.detach().cpu() for row in value], value[0])
    raise TypeError(
        f"field {name!r} is {type(value).__name__}: give a tensor, a non-empty list of tensors, or an array of objects"
    )


def decode(column: Column) -> Value:
    """Return a column as callers use it. The tensors of a jagged one are views of one storage."""
    if column.lengths is None:
        return column.values
    rows = list(column.values.split(list(column.lengths)))
    if column.kind == "jagged":
        return rows
    objects = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):
        objects[number] = json.loads(row.numpy().tobytes())
    return objects


def gather(parts: Sequence[tuple[Column, Sequence[int], Sequence[int]]], num_rows: int) -> Column:
    """Return one column of rows that lie in several.

    Args:
        parts: (column, rows of it, where each of them goes).
        num_rows: of the result; every place is named once.

    Raises:
        ValueError: dense rows of different shapes, or dense and jagged ones, are asked for at once.
    """
    first = parts[0][0]
    if len(parts) == 1 and _is_range(parts[0][2]):
        return first.take(parts[0][1])
    forms = {(part.kind, part.values.shape[1:]) for part, _, _ in parts}
    if len(forms) > 1:
        found = ", ".join(sorted(f"{kind} {tuple(shape)}" for kind, shape in forms))
        raise ValueError(f"the rows differ in form ({found}): get them apart, or put them as jagged rows")
    if first.lengths is None:
        values = first.values.new_empty((num_rows, *first.values.shape[1:]))
        for part, rows, places in parts:
            values[_slice_or_list(places)] = part.values[_slice_or_list(rows)]
        return Column("dense", values)
    chosen: list[Tensor] = [first.values[:0]] * num_rows
    for part, rows, places in parts:
        split = part.values.split(list(part.lengths or ()))
        for row, place in zip(rows, places, strict=True):
            chosen[place] = split[row]
    return _joined(first.kind, chosen, first.values)


def pad(value: Value, pad_value: float, length: int | None = None) -> Value:
    """Return jagged rows as one right-padded tensor `[N, L, ...]`; a dense `[N, S, ...]` is widened to `length`.

    Args:
        value: anything else than these, `[N]` included, is given back.
        pad_value: what fills.
        length: L; None takes the longest row.

    Raises:
        ValueError: a row is longer than `length`.
    """
    if isinstance(value, np.ndarray) or (isinstance(value, Tensor) and (value.dim() < 2 or length is None)):
        return value
    longest = value.shape[1] if isinstance(value, Tensor) else max(map(len, value))
    if length is not None and longest > length:
        raise ValueError(f"a row has {longest} tokens, more than the {length} that it would be padded to")
    width = longest if length is None else length
    first = value[0]
    padded = first.new_full((len(value), width, *first.shape[1:]), pad_value)
    for number, row in enumerate(value):
        padded[number, : len(row)] = row
    return padded


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _copied_rows(values: Tensor, rows: Sequence[int]) -> Tensor:
    if _is_range(rows):
        return values[rows[0] : rows[-1] + 1].clone() if rows else values[:0].clone()
    return values[list(rows)]


def _is_range(rows: Sequence[int]) -> bool:
    return not rows or (
        rows[-1] - rows[0] == len(rows) - 1 and list(rows) == list(range(rows[0], rows[-1] + 1))
    )


def _slice_or_list(rows: Sequence[int]) -> slice | list[int]:
    return slice(rows[0], rows[-1] + 1) if rows and _is_range(rows) else list(rows)


def _joined(kind: Literal["jagged", "object"] | Any, rows: Sequence[Tensor], like: Tensor) -> Column:
    values = torch.cat(list(rows)) if rows else like[:0].clone()
    return Column(kind, values, tuple(len(row) for row in rows))


def _encoded_objects(value: np.ndarray, name: str) -> Column:
    if value.ndim != 1:
        raise ValueError(
            f"field {name!r} is an array of objects of {value.ndim} dimensions: give one object a row"
        )
    texts = []
    for number, item in enumerate(value):
        try:
            text = json.dumps(item, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(f"row {number} of field {name!r} is no JSON value: {error}") from error
        if not _same(json.loads(text), item):
            raise TypeError(
                f"row {number} of field {name!r} would not come back as it is: use lists, dicts with text keys, text, "
                "numbers, true, false and None"
            )
        texts.append(np.frombuffer(text.encode(), dtype=np.uint8))
    values = torch.from_numpy(np.concatenate(texts)) if texts else torch.zeros(0, dtype=torch.uint8)
    return Column("object", values, tuple(len(text) for text in texts))


def _same(loaded: Any, given: Any) -> bool:
    """Whether two values are equal with their types: 1, 1.0 and True are three values."""
    if type(loaded) is not type(given):
        return False
    if isinstance(loaded, dict):
        return loaded.keys() == given.keys() and all(_same(loaded[key], given[key]) for key in loaded)
    if isinstance(loaded, list):
        return len(loaded) == len(given) and all(map(_same, loaded, given))
    return bool(loaded == given)
