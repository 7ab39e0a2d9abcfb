"""The series of a log under canonical names, and several of them on common steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seatrial.evidence.runlog import RunLog, Series
from seatrial.rules.healthy import Beside
from seatrial.vocabulary import Stack, canonical, plain_names, recognise, tag_of


@dataclass(frozen=True, kw_only=True)
class Streams:
    """A log as rules see it."""

    log: RunLog
    stack: Stack | None
    """The stack that wrote the log; None where nobody knows it, and its plain names are taken at their word."""
    by_name: Mapping[str, Sequence[Series]]
    """Every series by canonical name; the main one of several tags is the first."""
    beside: Beside | None = None
    """Earlier healthy runs of the same configuration, where they are given."""

    def one(self, name: str) -> Series | None:
        """Return the series of a canonical metric, or None."""
        found = self.by_name.get(name)
        return found[0] if found else None


def streams_of(log: RunLog, stack: Stack | None = None, beside: Beside | None = None) -> Streams:
    """Name the series of a log; the stack is recognised where none is given."""
    tags = log.tags()
    stack = stack or recognise(tags)
    by_name: dict[str, list[Series]] = {}
    for tag, series in log.series.items():
        metric = canonical(tag, stack)
        name = metric.name if metric else plain_names().get(tag) if stack is None else None
        if name is not None and len(series):
            by_name.setdefault(name, []).append(series)
    for name, several in by_name.items():
        first = tag_of(name, stack, [one.tag for one in several])
        several.sort(key=lambda one: (one.tag != first, one.tag))
    return Streams(log=log, stack=stack, by_name=by_name, beside=beside)


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """Several series on common steps."""

    steps: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[np.float64]]
    """Values by canonical name, each of the shape of `steps`; NaN where an optional series has no point."""


def align(needed: Mapping[str, Series], optional: Mapping[str, Series | None]) -> Aligned:
    """Put series on the steps that all needed ones have with a finite value."""
    first, *others = needed.values()
    steps = first.steps
    for other in others:
        if not _same(steps, other.steps):
            steps = np.intersect1d(steps, other.steps)
    columns = {name: _at(steps, series) for name, series in needed.items()}
    finite = np.logical_and.reduce([np.isfinite(values) for values in columns.values()])
    if not finite.all():
        steps = steps[finite]
        columns = {name: values[finite] for name, values in columns.items()}
    for name, series in optional.items():
        columns[name] = np.full(len(steps), np.nan) if series is None else _at(steps, series)
    return Aligned(steps=steps, columns=columns)


def _same(steps: npt.NDArray[np.int64], others: npt.NDArray[np.int64]) -> bool:
    return steps is others or (len(steps) == len(others) and bool((steps == others).all()))


def _at(steps: npt.NDArray[np.int64], series: Series) -> npt.NDArray[np.float64]:
    """Return the values of a series at some steps, NaN where it has none; of equal steps the last one counts."""
    if _same(steps, series.steps):
        return series.values
    places = np.searchsorted(series.steps, steps, side="right") - 1
    found = (places >= 0) & (series.steps[np.maximum(places, 0)] == steps)
    return np.where(found, series.values[np.maximum(places, 0)], np.nan)
