"""Bands that series of healthy runs stay inside, learned from them. Shapes: N runs, S steps that all of them logged.

A series is compared with the healthy runs' mean at each step; judged is the mean departure over a window of steps:
the first five, and all aligned stretches of 10, 20, 40, ... steps (of fewer than ten steps all). A departure is
counted in spreads between runs at one step, pooled over the steps, and up to `CLIP` of them, so that a spike cannot
dominate a window. The variance of such means between runs has N - 1 degrees of freedom per window and is moderated by
all other series and windows (`statistics/moderated.py`). The rate of false alarms is divided evenly over every series
and window of the baseline. Positive series that span a factor of three are judged by their logarithm.

Everything is learned from the healthy runs alone: what is said of the first steps of a run does not change later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.statistics.moderated import limit_of_t, variance_prior

Array = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

MIN_POINTS = 5
"""Steps of the shortest window; a series with fewer is not judged."""
CLIP = 6.0
"""Spreads that one step counts for at most."""
_FIRST_STRETCH = 10
_MIN_SHARE = 0.8
"""Of a window's steps that a run must have logged."""
_SPAN = 3.0
"""A positive series that spans this factor is judged by its logarithm."""
ROUNDING = 1e-6
"""A departure below this share of the series' largest value, or below `ZERO`, is rounding."""
ZERO = 1e-9


class Window(NamedTuple):
    """Steps by index, the last excluded, and the largest allowed mean departure over them, in spreads."""

    start: int
    stop: int
    limit: float


class Departure(NamedTuple):
    """A window in which a run left the band."""

    tag: str
    window: Window
    steps: tuple[int, int]
    value: float
    """The run's mean there; of a series that is judged by its logarithm the geometric one."""
    low: float
    high: float
    excess: float
    """How many times the limit the departure is."""
    is_above: bool


@dataclass(frozen=True, kw_only=True)
class Band:
    """The band of one series in healthy runs."""

    tag: str
    steps_S: Steps
    centre_S: Array
    spread: float
    is_logarithm: bool
    least: float
    """Smallest healthy value: what is below a thousandth of it counts as that under the logarithm."""
    windows: Sequence[Window]

    def departures(self, steps: Steps, values: Array) -> Iterator[Departure]:
        """Yield the windows in which a run left the band, in the order of their ends.

        Args:
            steps: of the run so far, ascending.
            values: its values there; one that is not finite counts as the largest departure.
        """
        values_S = _at(self.steps_S, steps, values)
        shown_S = ~np.isnan(values_S)
        finite_S = np.where(np.isfinite(values_S), values_S, np.inf)
        own_S = np.log(np.maximum(finite_S, 1e-3 * self.least)) if self.is_logarithm else finite_S
        with np.errstate(invalid="ignore"):
            away_S = np.where(shown_S, np.clip((own_S - self.centre_S) / self.spread, -CLIP, CLIP), 0.0)
        counts, sums = _cumulated(shown_S), _cumulated(away_S)
        floor = (ZERO + ROUNDING * float(np.abs(self.centre_S).max())) / self.spread
        for window in self.windows:
            number = int(counts[window.stop] - counts[window.start])
            if number < _MIN_SHARE * (window.stop - window.start) or not len(steps):
                continue
            if int(self.steps_S[window.stop - 1]) > int(steps[-1]):
                continue
            away = float(sums[window.stop] - sums[window.start]) / number
            if not abs(away) <= max(window.limit, floor):
                yield self._departure(window, away, own_S[window.start : window.stop])

    def _departure(self, window: Window, away: float, own: Array) -> Departure:
        centre = float(self.centre_S[window.start : window.stop].mean())
        value = (
            float(np.nanmean(np.where(np.isfinite(own), own, np.nan))) if np.isfinite(own).any() else math.nan
        )
        ends = (centre - window.limit * self.spread, centre + window.limit * self.spread)
        if self.is_logarithm:
            value, ends = math.exp(value), (math.exp(ends[0]), math.exp(ends[1]))
        return Departure(
            tag=self.tag,
            window=window,
            steps=(int(self.steps_S[window.start]), int(self.steps_S[window.stop - 1])),
            value=value,
            low=ends[0],
            high=ends[1],
            excess=abs(away) / window.limit,
            is_above=away > 0,
        )


def windows_of(number: int) -> list[tuple[int, int]]:
    """Return the windows of that many steps, in the order of their ends."""
    found = {(0, MIN_POINTS)} if number >= MIN_POINTS else set()
    length = _FIRST_STRETCH
    while length <= number:
        found |= {(stop - length, stop) for stop in range(length, number + 1, length)}
        length *= 2
    found |= {(0, number)} if MIN_POINTS < number < _FIRST_STRETCH else set()
    return sorted(found, key=lambda window: (window[1], window[0]))


def learn_bands(series: Mapping[str, tuple[Steps, Array]], false_alarms: float) -> list[Band]:
    """Learn the bands of series that differ between healthy runs.

    Args:
        series: by tag the common steps [S] and the values [N, S], all finite, of at least three runs.
        false_alarms: probability that any window of a healthy run leaves its band, for independent normal noise.
    """
    learned = {
        tag: _Departures(values_NS)
        for tag, (steps_S, values_NS) in series.items()
        if len(steps_S) >= MIN_POINTS
    }
    learned = {tag: one for tag, one in learned.items() if 0 < one.spread < math.inf}
    if not learned:
        return []
    degrees = next(iter(learned.values())).num_runs - 1
    variances = {tag: one.variances() for tag, one in learned.items()}
    prior = variance_prior(np.concatenate(list(variances.values())), degrees)
    each = false_alarms / sum(len(some) for some in variances.values())
    critical = limit_of_t(each, degrees + prior.degrees) * math.sqrt(1 + 1 / (degrees + 1))
    bands = []
    for tag, one in learned.items():
        windows = [
            Window(
                start, stop, critical * math.sqrt(prior.moderated(float(variance), degrees) / (stop - start))
            )
            for (start, stop), variance in zip(one.windows, variances[tag], strict=True)
        ]
        bands.append(
            Band(
                tag=tag,
                steps_S=series[tag][0],
                centre_S=one.centre_S,
                spread=one.spread,
                is_logarithm=one.is_logarithm,
                least=one.least,
                windows=windows,
            )
        )
    return bands


class _Departures:
    """How far each healthy run is from their mean, step by step."""

    def __init__(self, values_NS: Array) -> None:
        self.num_runs, number = values_NS.shape
        self.least = float(values_NS.min())
        self.is_logarithm = self.least > 0 and float(values_NS.max()) > _SPAN * self.least
        own_NS = np.log(values_NS) if self.is_logarithm else values_NS
        self.centre_S = own_NS.mean(axis=0)
        away_NS = own_NS - self.centre_S
        self.spread = math.sqrt(float((away_NS**2).sum()) / ((self.num_runs - 1) * number))
        self.windows = windows_of(number)
        self._away_NS = np.clip(away_NS / self.spread, -CLIP, CLIP) if self.spread > 0 else away_NS

    def variances(self) -> Array:
        """Return the variance between runs of each window's mean, times its steps: 1 for independent steps."""
        sums = np.stack([_cumulated(row) for row in self._away_NS])
        starts, stops = (np.array(ends) for ends in zip(*self.windows, strict=True))
        means_NW = (sums[:, stops] - sums[:, starts]) / (stops - starts)
        return np.asarray((means_NW**2).sum(axis=0) / (self.num_runs - 1) * (stops - starts))


def _cumulated(values: npt.NDArray[np.float64] | npt.NDArray[np.bool_]) -> Array:
    return np.concatenate([[0.0], np.cumsum(values)])


def _at(wanted_S: Steps, steps: Steps, values: Array) -> Array:
    """Return the values at some steps, NaN where there is none, infinity where there is one that is not finite."""
    if not len(steps):
        return np.full(len(wanted_S), np.nan)
    places = np.searchsorted(steps, wanted_S, side="right") - 1
    found = (places >= 0) & (steps[np.maximum(places, 0)] == wanted_S)
    seen = values[np.maximum(places, 0)]
    return np.where(found, np.where(np.isfinite(seen), seen, np.inf), np.nan)
