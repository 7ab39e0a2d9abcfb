"""Whether tokens were drawn from their distributions, with random numbers of their own.

A random number draws the token whose share of the cumulative distribution, in the order of ids, contains it. Two tokens
that one number draws have shares that meet.

Of tokens that are drawn from their distributions, exp(t x) over its mean is 1 in the mean, for any figure x of a token
and any t, and so is the product over all tokens in the order in which they are drawn. So the product exceeds 1/p with a
chance of at most p (Ville's inequality), and nothing else is assumed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.ledger.schema import LedgerRow

Array = npt.NDArray[np.float64]
LEAST_CHANCE = 1e-9
"""Of as many tokens that meet the one before, of two rows whose tokens all meet, or of such tokens as were drawn."""
TILTS: Mapping[str, Sequence[float]] = {
    "log-probability": (-0.5, -0.25, -0.1, 0.1, 0.25, 0.5, 1.0),
    "place in the cumulative distribution": (-4.0, -2.0, -1.0, 1.0, 2.0, 4.0),
}
"""Values of t by the figure of a token: the higher, the sooner few tokens show a large difference. A log-probability
times -0.5 still has a mean, however rare a token is."""


CHOOSING = (
    "use_dynamic_sampling",
    "zero_variance_filter",
    "overlong_filtering",
    "async_grpo.drop_zero_variance",
    "async_grpo.drop_longer_than",
)
"""Options of `grpo` that leave rows out by their rewards or lengths."""


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

    def __init__(self, *, are_all: bool = False) -> None:
        """Start empty.

        Args:
            are_all: whether these are all tokens that were drawn, none left out for what it is, and the distributions
                are the sampler's.
        """
        self._rows: dict[str, dict[int, Share]] = {}
        self._are_all = are_all
        self._products: Counter[tuple[str, float]] = Counter()
        """Logarithm of the product, by the figure and t."""

    def see(self, row: LedgerRow, place: int, logprobs_V: Array) -> None:
        """Add the token at a place of a row."""
        ends_V = np.cumsum(np.exp(logprobs_V))
        ends_V /= ends_V[-1]
        token = row.sampled_ids[place]
        start = float(ends_V[token - 1]) if token else 0.0
        self._rows.setdefault(row.where(), {})[place] = Share(start, float(ends_V[token]), ends_V)
        if self._are_all:
            self._weigh(token, logprobs_V, ends_V)

    def _weigh(self, token: int, logprobs_V: Array, ends_V: Array) -> None:
        """Multiply the products by what a token adds to them."""
        kept_V = np.isfinite(logprobs_V)
        if not kept_V[token]:
            return  # it cannot have been drawn, which its score shows
        logprobs_N = logprobs_V[kept_V]
        probs_N = np.exp(logprobs_N)
        probs_N /= probs_N.sum()
        middles_N = ends_V[kept_V] - probs_N / 2
        place = int(np.count_nonzero(kept_V[:token]))
        for (name, tilts), figure_N in zip(TILTS.items(), (logprobs_N, middles_N), strict=True):
            tilts_K = np.array(tilts)
            means_K = np.log(np.exp(np.outer(tilts_K, figure_N)) @ probs_N)
            gains_K = tilts_K * figure_N[place] - means_K
            for tilt, gain in zip(tilts, gains_K.tolist(), strict=True):
                self._products[name, tilt] += gain

    def unlikely(self) -> Iterator[str]:
        """Yield that tokens are unlike those of their distributions, by the figure that shows it most."""
        if not self._products:
            return
        (name, tilt), product = max(self._products.items(), key=lambda item: item[1])
        chance = len(self._products) * math.exp(-product)
        if chance < LEAST_CHANCE:
            than = "higher" if tilt > 0 else "lower"
            number = sum(map(len, self._rows.values()))
            yield (
                f"the {number} tokens drawn have a {than} {name} than their distributions give (by chance in "
                f"{chance:.1g})"
            )

    def unrepeated(self, other: Draws) -> Iterator[str]:
        """Yield the first token that one random number cannot have drawn together with that of the other's same row."""
        for (where, shares), others in zip(self._rows.items(), other._rows.values(), strict=False):
            for place in sorted(shares.keys() & others.keys()):
                if not shares[place].meets(others[place]):
                    yield f"{where} token {place} is drawn with another random number than in the first one"
                    return

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


def are_all_drawn(rows: Sequence[LedgerRow], options: Mapping[str, Any], precision: str) -> bool:
    """Return whether rows are all that were drawn, from distributions that are known to rounding in float32.

    Filters choose groups by their rewards or lengths, and so by their tokens.
    """
    sizes = all(row.kept_support_sizes is not None for row in rows) or not is_filtered(options)
    return precision == "float32" and sizes and not any(options.get(f"grpo.{name}") for name in CHOOSING)


def is_filtered(options: Mapping[str, Any]) -> bool:
    """Return whether top-k or top-p leave tokens out."""
    return options["policy.generation.top_k"] is not None or options["policy.generation.top_p"] < 1.0
