"""Suggestions for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def hint(given: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` with the nearest known name, or all of them where none is near."""
    names = list(known)
    return meant(given, names) or f"there are: {', '.join(names)}"


def meant(given: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` with the nearest known name; nothing where none is near."""
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
