"""Words of messages."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Return a number of things in words: `1 point`, `2 points`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
