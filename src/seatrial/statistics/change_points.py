"""Finds where a series of values changes its level: binary segmentation with a permutation test.

A split counts if at most a fraction `alpha` of random orders of the segment's values has a rank CUSUM as large as the
segment's own; the split is then placed where two medians fit best, and each part is tested again. Values of an
unchanged series are exchangeable, so such a series gets a change point with probability at most alpha, for any
distribution of its noise. Sources: A. N. Pettitt, Applied Statistics 28 (1979); L. Y. Vostrikova, Soviet Math. Doklady
24 (1981).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

DEFAULT_ALPHA = 0.01
_PERMUTATIONS_PER_ALPHA = 20
"""Expected number of random orders that reach a statistic exactly at alpha."""
_MAX_CELLS = 2_000_000
"""Numbers that are permuted at a time; limits the memory."""


def change_points(values: Sequence[float], alpha: float = DEFAULT_ALPHA, seed: int = 0) -> list[int]:
    """Return the places at which a new level starts, in order.

    Args:
        values: in order of time; non-finite values are ignored.
        alpha: false-alarm rate for an unchanged series; fewer than 8 values cannot reach 1 %.
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
    """Return where the second level starts, or None if one level explains the values."""
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
    """Return the split at which two medians fit the values best; unlike ranks this has no bias to the middle."""
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
    """Return ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_ranks: npt.NDArray[np.float64] = (last - (counts - 1) / 2)[inverse.ravel()]
    return mean_ranks
