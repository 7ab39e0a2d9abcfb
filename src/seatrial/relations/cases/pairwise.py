"""Pairwise combinations: few rows that together have every allowed pair of values of any two dimensions.

Greedy, in the spirit of AETG (Cohen, Dalal, Fredman and Patton, IEEE TSE 1997): a row starts from a pair that is still
missing, and takes for every other dimension the value that brings most missing pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

Choice = tuple[str, int]
"""A dimension, and the index of one of its values."""


def pairwise(sizes: Mapping[str, int], allowed: Callable[[Mapping[str, int]], bool]) -> list[dict[str, int]]:
    """Return rows that give each dimension the index of one of its values.

    Args:
        sizes: number of values of each dimension.
        allowed: whether a whole row is allowed; called with other values if one is not.

    Returns:
        Allowed rows. They cover every pair of values of two dimensions that occurs in an allowed row which the
        search tries; the first row has the first value of each dimension if that is allowed.
    """
    missing = {
        frozenset(((one, a), (other, b)))
        for one, other in itertools.combinations(sizes, 2)
        for a in range(sizes[one])
        for b in range(sizes[other])
    }
    rows: list[dict[str, int]] = []
    first = dict.fromkeys(sizes, 0)
    if allowed(first):
        rows.append(first)
        missing -= _pairs(first)
    for pair in sorted(missing, key=sorted):
        if pair not in missing:
            continue
        row = _row_with(dict(sorted(pair)), sizes, missing, allowed)
        if row is not None:
            rows.append({name: row[name] for name in sizes})
            missing -= _pairs(row)
    return rows


def _row_with(
    fixed: Mapping[str, int],
    sizes: Mapping[str, int],
    missing: set[frozenset[Choice]],
    allowed: Callable[[Mapping[str, int]], bool],
) -> dict[str, int] | None:
    """Complete a row, trying values that bring most missing pairs first; None where no completion is allowed."""
    open_names = [name for name in sizes if name not in fixed]
    row = dict(fixed)
    for name in open_names:
        row[name] = max(range(sizes[name]), key=lambda index: _gain(row, (name, index), missing))
    if allowed(row):
        return row
    # One value that brings less, then the plain first values: a constraint rarely ties more than two dimensions.
    for name in open_names:
        for index in range(sizes[name]):
            changed = {**row, name: index}
            if allowed(changed):
                return changed
    plain = {**dict.fromkeys(sizes, 0), **fixed}
    return plain if allowed(plain) else None


def _gain(row: Mapping[str, int], choice: Choice, missing: set[frozenset[Choice]]) -> int:
    return sum(frozenset((choice, other)) in missing for other in row.items())


def _pairs(row: Mapping[str, int]) -> set[frozenset[Choice]]:
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def names_of(row: Mapping[str, int], names: Mapping[str, Sequence[str]]) -> str:
    """Return a row in words: the values that are not the first of their dimension."""
    chosen = [names[dimension][index] for dimension, index in row.items() if index]
    return ", ".join(chosen) or "defaults"
