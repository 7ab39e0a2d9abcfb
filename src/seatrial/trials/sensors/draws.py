"""Whether tokens were drawn with random numbers of their own.

A random number draws the token whose share of the cumulative distribution, in the order of ids, contains it. Two tokens
that one number draws have shares that meet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.ledger.schema import LedgerRow

Array = npt.NDArray[np.float64]
LEAST_CHANCE = 1e-9
"""Of as many tokens that meet the one before, or of two rows whose tokens all meet."""


class Share(NamedTuple):
    """The share of a token that was drawn, and where the shares of all tokens end."""

    first: float
    last: float
    ends_V: Array

    def meets(self, other: Share) -> bool:
        """Return whether one random number may have drawn both tokens."""
        return self.first < other.last and other.first < self.last

    def chance(self, other: Share) -> float:
        """Return the probability that a token of the other's distribution meets this one."""
        low = int(np.searchsorted(other.ends_V, self.first, side="right"))
        high = min(int(np.searchsorted(other.ends_V, self.last, side="left")), len(other.ends_V) - 1)
        return float(other.ends_V[high] - (other.ends_V[low - 1] if low else 0.0))


class Draws:
    """The tokens of rows in the order in which they are seen."""

    def __init__(self) -> None:
        """Start empty."""
        self._rows: dict[str, dict[int, Share]] = {}

    def see(self, row: LedgerRow, place: int, logprobs_V: Array) -> None:
        """Add the token at a place of a row."""
        ends_V = np.cumsum(np.exp(logprobs_V))
        ends_V /= ends_V[-1]
        token = row.sampled_ids[place]
        start = float(ends_V[token - 1]) if token else 0.0
        self._rows.setdefault(row.where(), {})[place] = Share(start, float(ends_V[token]), ends_V)

    def too_many(self) -> Iterator[str]:
        """Yield that tokens meet the one before them more often than by chance (Chernoff's bound of a sum)."""
        pairs = [
            (shares[place - 1], share)
            for shares in self._rows.values()
            for place, share in shares.items()
            if place - 1 in shares
        ]
        number = sum(before.meets(share) for before, share in pairs)
        expected = math.fsum(before.chance(share) for before, share in pairs)
        if number <= expected:
            return
        bound = number - expected - (number * math.log(number / expected) if expected else math.inf)
        if bound < math.log(LEAST_CHANCE):
            yield (
                f"{number} tokens are drawn where the one before them was, in the cumulative distribution; chance "
                f"gives {expected:.3g}"
            )

    def alike(self) -> Iterator[str]:
        """Yield the first two rows of which every token of one meets the other's at its place, beyond chance."""
        for (one, shares), (other, others) in combinations(self._rows.items(), 2):
            places = shares.keys() & others.keys()
            if not all(shares[place].meets(others[place]) for place in places):
                continue
            chance = math.prod(shares[place].chance(others[place]) for place in places)
            if chance * len(self._rows) ** 2 < LEAST_CHANCE:
                yield f"{one} and {other} are drawn with the same random numbers (by chance in {chance:.1g})"
                return
