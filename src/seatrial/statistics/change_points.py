"""Where a series of values changed its level: binary segmentation with a permutation test.

The largest CUSUM of ranks over the splits of a segment counts when at most a share `alpha` of random orders of its
values have one as large; the split is then placed where two medians fit best, and each part is asked again. Values of
an unchanged series are exchangeable, so such a series gets a change point with probability alpha at most, whatever
the distribution of its noise. Sources: A. N. Pettitt, Applied Statistics 28 (1979); L. Y. Vostrikova, Soviet Math.
Doklady 24 (1981).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

DEFAULT_ALPHA = 0.01
_PERMUTATIONS_PER_ALPHA = 20
"""So many random orders are expected to reach a statistic that stands just at alpha."""
_MAX_CELLS = 2_000_000
"""Numbers that are permuted at a time: bounds the memory."""


def change_points(values: Sequence[float], alpha: float = DEFAULT_ALPHA, seed: int = 0) -> list[int]:
    """Return the places at which a new level starts, in order.

    Args:
        values: in the order of time; those that are not finite are passed over.
        alpha: false-alarm rate for a series that does not change; fewer than 8 values can reach no 1 %.
        seed: of the random orders.
    """
    places = [place for place, value in enumerate(values) if math.isfinite(value)]
    kept = np.array([values[place] for place in places])
    random = np.random.default_rng(seed)
    found: list[int] = []
    open_segments = [(0, len(kept))]
    while open_segments:
        low, high = open_segments.pop()
        split = _split(kept[low:high], alpha, random)
        if split is not None:
            found.append(places[low + split])
            open_segments += [(low, low + split), (low + split, high)]
    return sorted(found)


def _split(values: npt.NDArray[np.float64], alpha: float, random: np.random.Generator) -> int | None:
    """Return where the second level starts, or None when the values may well have one level."""
    if len(values) < 4 or bool((values == values[0]).all()):
        return None
    ranks = _ranks(values)
    bar = _cusum(ranks[None, :]).max() * (1 - 1e-12)
    number = math.ceil(_PERMUTATIONS_PER_ALPHA / alpha)
    rows = max(1, _MAX_CELLS // len(ranks))
    as_large = 0
    for done in range(0, number, rows):
        orders = random.permuted(np.tile(ranks, (min(rows, number - done), 1)), axis=1)
        as_large += int((_cusum(orders).max(axis=1) >= bar).sum())
    return None if (as_large + 1) / (number + 1) > alpha else _place(values)


def _place(values: npt.NDArray[np.float64]) -> int:
    """Return the split at which two medians fit the values best; unlike ranks it is not drawn to the middle."""
    costs = [
        np.abs(values[:split] - np.median(values[:split])).sum()
        + np.abs(values[split:] - np.median(values[split:])).sum()
        for split in range(1, len(values))
    ]
    return int(np.argmin(costs)) + 1


def _cusum(ranks: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return, for each order [R, n], the standardised difference of levels at each split [R, n - 1]."""
    length = ranks.shape[1]
    sums = np.cumsum(ranks - ranks.mean(axis=1, keepdims=True), axis=1)[:, :-1]
    left = np.arange(1, length)
    curve: npt.NDArray[np.float64] = np.abs(sums) / np.sqrt(left * (length - left) / length)
    return curve


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_ranks: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[inverse.ravel()]
    return mean_ranks
