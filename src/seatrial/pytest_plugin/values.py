"""Values that tests may track, and how non-finite numbers stay visible in JSON."""

from __future__ import annotations

import math
from typing import Any

MAX_DEPTH = 50
"""Deeper nesting counts as a cycle."""
MAX_BITS = 4096
"""Not every reader can parse larger integers."""
MAX_ELEMENTS = 1000
"""Larger arrays are not metrics: one of them would be larger than the rest of the file."""


def storable(value: Any, where: str, depth: int = 0) -> Any:
    """Return a copy of `value` that consists of JSON values only; NaN and infinities stay floats.

    Scalars of NumPy, PyTorch and similar libraries (with `item()` and no dimensions) become Python numbers, their
    arrays of at most `MAX_ELEMENTS` values nested lists.

    Args:
        value: what the test tracks.
        where: name of the metric, for the message.
        depth: nesting depth of this value.

    Raises:
        TypeError: the value, or a part of it, is not a JSON value.
    """
    __tracebackhide__ = True
    if depth > MAX_DEPTH:
        raise TypeError(f"metric {where!r} is nested deeper than {MAX_DEPTH} levels, or contains itself")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    # Subclasses (enumerations, numpy.float64) become the plain number, which every format supports.
    if isinstance(value, int) and int(value).bit_length() <= MAX_BITS:
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {
            _key(key, where): storable(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [storable(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
        return storable(value.item(), where, depth + 1)
    if callable(getattr(value, "tolist", None)) and hasattr(value, "shape"):
        return storable(_elements(value, where), where, depth + 1)
    if isinstance(value, int):
        raise TypeError(f"metric {where!r} cannot be stored: an integer of {int(value).bit_length()} bits")
    raise TypeError(
        f"metric {where!r} cannot be stored: {type(value).__name__} is no JSON value; "
        f"track a number, text, bool, None, or a list or dict of these"
    )


def _elements(value: Any, where: str) -> Any:
    """Return the values of an array as nested lists."""
    __tracebackhide__ = True
    kind = f"{type(value).__module__.partition('.')[0]} {type(value).__name__} of shape {tuple(value.shape)}"
    if math.prod(value.shape) > MAX_ELEMENTS:
        raise TypeError(
            f"metric {where!r} cannot be stored: a {kind} has more than {MAX_ELEMENTS} values; "
            "track numbers that summarise it, such as its mean and its largest value"
        )
    try:
        return value.tolist()
    except (RuntimeError, NotImplementedError) as error:
        raise TypeError(
            f"metric {where!r} cannot be stored: a {kind} has no values to read ({error})"
        ) from error


def _text(value: str, where: str) -> str:
    __tracebackhide__ = True
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TypeError(
            f"metric {where!r} cannot be stored: text that is no Unicode ({error.reason})"
        ) from error
    return str(value)


def _key(key: Any, where: str) -> str:
    __tracebackhide__ = True
    if isinstance(key, str):
        return _text(key, where)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"metric {where!r} cannot be stored: its key {key!r} is no text")


def to_json(value: Any) -> Any:
    """Return a storable value with NaN and infinities as the text `NaN`, `Infinity`, `-Infinity`.

    JSON has no such numbers; written as numbers they make the whole file unreadable for strict readers.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return value


def is_finite(value: Any) -> bool:
    """Return whether all numbers in a storable value are finite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(is_finite(item) for item in value.values())
    if isinstance(value, list):
        return all(is_finite(item) for item in value)
    return True
