"""Causal functions of a series: element i depends on elements 0..i alone.

A rule that is made of them gives the same answer for the first i points of a run, whether the rest is there or not:
that is what lets it watch a log that grows. Arrays have one shape [N]; before enough points are there the value is
NaN, and every comparison with it is False.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def held(condition: Flags, least: int, of_last: int) -> Flags:
    """Say where a condition was true at `least` of the last `of_last` points; spikes that recover are not."""
    counts = np.cumsum(condition)
    before = np.zeros_like(counts)
    before[of_last:] = counts[:-of_last]
    return np.asarray(counts - before >= least)


def lasting(condition: Flags, limits: Mapping[str, float]) -> Flags:
    """Return where a condition was true at `held` of the last `of_last` points, by a rule's limits."""
    return held(condition, int(limits["held"]), int(limits["of_last"]))


def repeated(condition: Flags, limits: Mapping[str, float]) -> Flags:
    """Return where a condition was true at the last `in_a_row` points, by a rule's limits."""
    return in_a_row(condition, int(limits["in_a_row"]))


def in_a_row(condition: Flags, number: int) -> Flags:
    """Say where a condition was true at the last `number` points."""
    return held(condition, number, number)


def early_median(values: Floats, number: int) -> Floats:
    """Return the median of the first `number` points at every later point: the level a run began at."""
    level = np.full(len(values), np.nan)
    if len(values) >= number:
        level[number - 1 :] = np.median(values[:number])
    return level


def early_minimum(values: Floats, number: int) -> Floats:
    """Return the smallest of the first `number` points seen so far."""
    low = np.minimum.accumulate(values)
    low[number:] = low[min(number, len(low)) - 1]
    return low


def early_mean_and_spread(values: Floats, number: int) -> tuple[Floats, Floats]:
    """Return mean and standard deviation (n - 1) of the first `number` points at every later point."""
    mean, spread = np.full(len(values), np.nan), np.full(len(values), np.nan)
    if len(values) >= number:
        mean[number - 1 :] = values[:number].mean()
        spread[number - 1 :] = values[:number].std(ddof=1)
    return mean, spread


def trailing_mean(values: Floats, number: int) -> Floats:
    """Return the mean of the last `number` points; values that are not finite make those windows NaN or count as 0."""
    mean = np.full(len(values), np.nan)
    if len(values) >= number:
        # Subtracting a level first keeps the cumulative sum exact enough for values far from zero.
        level = values[0] if np.isfinite(values[0]) else 0.0
        sums = np.cumsum(np.concatenate([[0.0], values - level]))
        mean[number - 1 :] = (sums[number:] - sums[:-number]) / number + level
    return mean


def trailing_median(values: Floats, number: int) -> Floats:
    """Return the median of the last `number` points, which passes a spike over; NaN in a window makes it NaN."""
    median = np.full(len(values), np.nan)
    if len(values) >= number:
        median[number - 1 :] = np.median(np.lib.stride_tricks.sliding_window_view(values, number), axis=1)
    return median


def best_so_far(values: Floats) -> Floats:
    """Return the largest value up to each point; NaN at the beginning is passed over."""
    return np.fmax.accumulate(values)


def changes(values: Floats) -> Flags:
    """Say where a value differs from the one before it; the first point does."""
    differs = np.ones(len(values), dtype=np.bool_)
    differs[1:] = values[1:] != values[:-1]
    return differs


def near_its_best(reward: Floats, of_last: int, *, band: float = 0.1) -> Flags:
    """Say where most of the last points lie within a band below the best, in shares of the range seen: a solved task.

    A reward that never moved is near nothing.
    """
    best, worst = np.fmax.accumulate(reward), np.fmin.accumulate(reward)
    near = (best > worst) & (best - reward <= band * (best - worst))
    seen = np.minimum(np.arange(1, len(reward) + 1), of_last)
    counts = np.cumsum(near)
    before = np.zeros_like(counts)
    before[of_last:] = counts[:-of_last]
    return np.asarray((counts - before) * 2 >= seen)


def risen(reward: Floats, window: int, errors: float) -> Flags:
    """Say where the mean of the last points is so many standard errors above that of the first."""
    first, spread = early_mean_and_spread(reward, window)
    gain = trailing_mean(reward, window) - first
    return np.asarray((gain > 0) & (gain >= errors * spread * np.sqrt(2 / window)))


def is_rounded(*columns: Floats) -> bool:
    """Say whether all values of some columns have at most three decimals, as verl's older consoles print them."""
    values = np.concatenate([column[np.isfinite(column)] for column in columns])
    thousands = 1000 * values
    return bool(
        len(values) and np.allclose(thousands, np.round(thousands), rtol=0, atol=1e-6) and np.any(values % 1)
    )


def most_gained(values: Floats) -> float:
    """Return how far the last third may lie above the first, in spreads of the points: the end of a 95 % interval.

    Points of a noisy series may differ without a gain; few points leave the interval wide, and say nothing.
    """
    third = len(values) // 3
    began, late = values[:third], values[len(values) - third :]
    spread = float(np.sqrt((began.var(ddof=1) + late.var(ddof=1)) / 2))
    if spread == 0:
        return 0.0 if late.mean() <= began.mean() else float("inf")
    return float((late.mean() - began.mean()) / spread + 1.645 * np.sqrt(2 / third))


_BLOCKS = 20


def trend(values: Floats) -> float:
    """Return z of the Mann-Kendall test of a trend; 0 where there are fewer than four finite values.

    Long series are cut into 20 blocks whose means are compared, so that neighbours that depend on one another count
    once. Without a trend |z| exceeds 1.96 in 5 % of series. Source: Kendall, Rank Correlation Methods, 1975.
    """
    values = values[np.isfinite(values)]
    if len(values) > _BLOCKS:
        values = _block_means(values)
    number = len(values)
    if number < 4:
        return 0.0
    score = float(np.triu(np.sign(values[None, :] - values[:, None]), 1).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (number * (number - 1) * (2 * number + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
    return 0.0 if variance <= 0 or score == 0 else float((score - np.sign(score)) / np.sqrt(variance))


def _block_means(values: Floats) -> Floats:
    """Return the means of 20 blocks; the first of them are longer by one where the points do not divide evenly."""
    size, longer = divmod(len(values), _BLOCKS)
    cut = longer * (size + 1)
    heads = values[:cut].reshape(longer, size + 1).mean(axis=1)
    return np.concatenate([heads, values[cut:].reshape(_BLOCKS - longer, size).mean(axis=1)])


_DROP_BLOCKS = 40


def largest_drop(values: Floats) -> tuple[float, int]:
    """Return the largest z of a Mann-Whitney test by which the points before a place exceed the rest, and the place.

    Long series are cut into 40 blocks, as in `trend`. Without a change z exceeds 3 at some place in about 2 % of
    series. Source: Pettitt, A non-parametric approach to the change-point problem, 1979.
    """
    size = max(1, -(-len(values) // _DROP_BLOCKS))
    means = np.array([values[place : place + size].mean() for place in range(0, len(values), size)])
    number = len(means)
    before = np.arange(1, number)
    wins = np.sign(means[:, None] - means[None, :])
    # Points before a place against those after it: row sums of the first rows, less what they win among themselves.
    score = np.cumsum(wins.sum(axis=1))[:-1]
    z = score / np.sqrt(before * (number - before) * (number + 1) / 3)
    place = int(np.argmax(z))
    return float(z[place]), min((place + 1) * size, len(values))


def looks(number: int, first: int) -> list[int]:
    """Return the numbers of points after which a test over the whole run is made: each a quarter more."""
    return _growing(number, first, part=4)


def close_looks(number: int, first: int) -> list[int]:
    """Return the numbers of points after which a test of the last points is made: each a twentieth more."""
    return _growing(number, first, part=20)


def _growing(number: int, first: int, *, part: int) -> list[int]:
    found = []
    at = first
    while at <= number:
        found.append(at)
        at += max(1, at // part)
    return found


def noise(values: Floats) -> float:
    """Return the spread of points about their own course: from differences of neighbours, with half of their leaps."""
    steps = np.diff(values)
    return float(max(np.median(np.abs(steps)) / 0.954, steps.std() / np.sqrt(8))) if len(steps) else 0.0


_FALL_LOOKS = 8
_WIDTHS = {2: 9.0, 3: 7.0}
"""Noise widths that a fall must have, by the number of points that show it; 6.5 from 4 points on."""


def fallen(values: Floats, limits: Mapping[str, float]) -> tuple[Floats, Flags]:
    """Say where the last tenth of the points, at least two, is far below the best level before it.

    Far means: by `widths` noise widths (more for two or three points), by `part` of all levels seen, and by `share` of
    the level itself. Returns the fall in noise widths, and the flags.
    """
    measured, found = np.zeros(len(values)), np.zeros(len(values), dtype=np.bool_)
    share, highest = limits["share"], np.maximum.accumulate(values)
    for number in close_looks(len(values), _FALL_LOOKS):
        few = max(2, -(-number // 10))
        before, last = values[: number - few], values[number - few : number]
        now, peak = np.median(last), highest[number - few - 1]
        # No level is above the highest point, and the share is at most 1: levels need not be computed, which is slow.
        if peak - now < share * abs(peak) - 1e-9 * (abs(peak) + abs(now)):
            continue
        width = max(3, number // 30)
        blocks = len(before) // width
        levels = np.median(before[len(before) - blocks * width :].reshape(blocks, width), axis=1)
        best = levels.max()
        top = np.quantile(last, 0.8) if few > 4 else last.max()
        lost = best - now >= limits["part"] * (best - min(levels.min(), now))
        if not lost or best - now < share * abs(best):
            continue
        spread = noise(before)
        fall = (best - top) / spread if spread > 0 else np.inf * (best - top)
        measured[number - 1] = fall
        found[number - 1] = fall >= _WIDTHS.get(few, limits["widths"])
    return measured, found


def beyond_scale(values: Floats, times: float, least: float) -> Flags:
    """Say where most of the last tenth of the points, at least three, is so many times what came before, and so large.

    Most is four in five. What came before is the largest but a tenth of it.
    """
    size = np.nan_to_num(np.abs(values), nan=0.0, posinf=np.finfo(float).max)
    found = np.zeros(len(values), dtype=np.bool_)
    if not (size > least).any():
        return found
    for number in close_looks(len(values), _FALL_LOOKS):
        few = max(3, -(-number // 10))
        before, last = size[: number - few], size[number - few : number]
        low, level = np.quantile(last, 0.2), np.quantile(before, 0.9)
        found[number - 1] = low > least and low / times > level
    return found


def rises(values: Floats, first: int, z: float) -> Flags:
    """Say from each look on whether the series up to it has a trend upwards; see `trend` and `looks`."""
    found = np.zeros(len(values), dtype=np.bool_)
    for number in looks(len(values), first):
        found[number - 1 :] = trend(values[:number]) > z
    return found


def run_lengths(condition: Flags) -> npt.NDArray[np.int64]:
    """Return how many points in a row, up to each point, a condition has been true."""
    places = np.arange(1, len(condition) + 1)
    return np.asarray(places - np.maximum.accumulate(np.where(condition, 0, places)))


def by_chance(condition: Flags, share: Floats, chance: float) -> Flags:
    """Say where a condition has been true so many times in a row as chance explains.

    `share` is the probability of one such point, as the run so far shows it. A run of k points is by chance where
    share**k, times the number of points so far, exceeds `chance`.
    """
    number = np.arange(1, len(condition) + 1)
    return np.asarray(share ** run_lengths(condition) * number > chance)


def share_before(condition: Flags) -> Floats:
    """Return the share of points with a condition among those before the present run of it; 0 where there are none."""
    counts, number = np.cumsum(condition), np.arange(1, len(condition) + 1)
    lengths = run_lengths(condition)
    before = number - lengths
    return np.where(before > 0, (counts - lengths) / np.maximum(before, 1), 0.0)
