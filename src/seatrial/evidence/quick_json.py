"""Parses and writes JSON with orjson, where it is installed and gives what the standard library gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    import orjson
except ImportError:
    # It is built for CPython only; elsewhere the standard library does all.
    orjson = None  # type: ignore[assignment, unused-ignore]


def parse(text: bytes | str) -> Any:
    """Return the value of a text without a list, or None where only the standard library may read it (NaN, Infinity).

    Numbers are the same doubles; an integer of more than 64 bits becomes one, so that lists, whose text is shown, are
    left out.
    """
    if orjson is None or (b"[" if isinstance(text, bytes) else "[") in text:  # type: ignore[operator]
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def of_finite(values: Mapping[str, float | None]) -> str | None:
    """Return the JSON text of finite numbers and nulls, or None without orjson, which would write NaN as null."""
    return None if orjson is None else orjson.dumps(values).decode()
