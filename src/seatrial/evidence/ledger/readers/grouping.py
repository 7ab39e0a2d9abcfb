"""Groups of rows whose stack does not number prompts: told by the prompt and by order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import groupby


class Numbers:
    """Gives equal things equal numbers, in the order of their first appearance."""

    def __init__(self) -> None:
        """Start from 0."""
        self._known: dict[Hashable, int] = {}

    def __call__(self, thing: Hashable) -> int:
        """Return the number of a thing."""
        return self._known.setdefault(thing, len(self._known))


def blocks(prompts: Sequence[int], size: int | None) -> list[int]:
    """Return the number of each row's group where groups stand side by side in the batch.

    Rows of one prompt that follow each other are a group, or several where their number is a multiple of the size of
    groups: two groups of one prompt may be neighbours.

    Args:
        prompts: number of each row's prompt, in the order of the batch.
        size: rows of a group; None: the size that most have.
    """
    runs = [len(list(run)) for _, run in groupby(prompts)]
    if size is None and runs:
        counted = Counter(runs)
        size = max(counted, key=lambda length: (counted[length], -length))
    groups: list[int] = []
    number = 0
    for length in runs:
        parts = length // size if size and length % size == 0 else 1
        for part in range(parts):
            groups += [number + part] * (length // parts)
        number += parts
    return groups
