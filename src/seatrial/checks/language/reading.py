"""Points of a run log as a check reads them, with the guards: present, finite, enough.

What cannot be answered raises `UnansweredError`, which carries the reason: the check fails.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from seatrial.checks.language.functions import distinct
from seatrial.checks.language.nodes import Last, Positions, Range, SeriesRef
from seatrial.checks.language.ranges import describe, num_needed, select
from seatrial.evidence.runlog import RunLog, Series

FLAWS = ("", "NaN", "infinite", "null", "a division by zero", "too large to represent")
"""What can be wrong with a point; the index is the code in `Points.flaws`."""
NOT_A_NUMBER, INFINITE, NULL, ZERO_DIVISION, TOO_LARGE = 1, 2, 3, 4, 5
NUM_STEPS_NAMED = 5
"""Steps that a message names before it counts the rest."""
NUM_TAGS_LISTED = 6
"""Tags up to which a message lists all that a log has."""


class UnansweredError(Exception):
    """A check cannot be evaluated on this evidence."""

    def __init__(self, reason: str, *, is_lasting: bool = False) -> None:
        super().__init__(reason)
        self.is_lasting = is_lasting
        """More points would not change this: a logged value is not finite."""


@dataclass(frozen=True)
class Points:
    """Points of one series, or of several combined point by point; arrays share one length N, by step."""

    label: str
    """How the series is written in the check."""
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    flaws: npt.NDArray[np.uint8]
    """Code of what is wrong with each point, 0 where nothing is."""
    allowed: Mapping[str, npt.NDArray[np.bool_]]
    """Tag -> True where its non-finite value is allowed by name; such points are left out."""
    indices: Mapping[str, npt.NDArray[np.int64]]
    """Label of each series read -> place of each point in it."""

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def left_out(self) -> npt.NDArray[np.bool_]:
        """Return which points are left out."""
        return np.asarray(np.logical_or.reduce([np.zeros(len(self), dtype=np.bool_), *self.allowed.values()]))

    def where(self, mask: npt.NDArray[np.bool_]) -> Points:
        """Return the points that a mask (N,) keeps."""
        if mask.all():
            return self
        return Points(
            self.label,
            self.steps[mask],
            self.values[mask],
            self.flaws[mask],
            {tag: allowed[mask] for tag, allowed in self.allowed.items()},
            {label: index[mask] for label, index in self.indices.items()},
        )


@dataclass
class Tally:
    """What a check has read: the evidence that its verdict counts."""

    indices: dict[str, list[npt.NDArray[np.int64]]] = field(default_factory=dict)
    first: int | None = None
    last: int | None = None
    scalars: set[str] = field(default_factory=set)
    left_out: dict[str, set[int]] = field(default_factory=dict)
    """Tag -> steps left out because a non-finite value is allowed there."""
    notes: list[str] = field(default_factory=list)

    def add(self, points: Points) -> None:
        """Count points that were read."""
        for label, index in points.indices.items():
            self.indices.setdefault(label, []).append(index)
        if len(points):
            low, high = int(points.steps[0]), int(points.steps[-1])
            self.first = low if self.first is None else min(self.first, low)
            self.last = high if self.last is None else max(self.last, high)

    @property
    def num_samples(self) -> int:
        """Return the number of distinct points read, over all series."""
        return len(self.scalars) + sum(
            # One part holds each point once: sorting it would cost more than all the rest of a check.
            len(parts[0]) if len(parts) == 1 else len(distinct(np.sort(np.concatenate(parts))))
            for parts in self.indices.values()
        )

    @property
    def steps(self) -> tuple[int, int] | None:
        """Return the first and last step read."""
        return None if self.first is None or self.last is None else (self.first, self.last)


class Evidence:
    """The logs that a check reads, and the tally of what it read."""

    def __init__(self, logs: Mapping[str | None, RunLog], allow_nonfinite: Collection[str] = ()) -> None:
        self.logs = logs
        self.allow_nonfinite = frozenset(allow_nonfinite)
        self.tally = Tally()

    def read(self, reference: SeriesRef) -> Points | float:
        """Return all points of a series, or the bare number that the log holds under the tag.

        Raises:
            UnansweredError: the tag is missing, or holds no scalars.
        """
        log = self.logs[reference.run]
        if reference.tag in log.series:
            return self._points(reference, log.series[reference.tag])
        if reference.tag in log.scalars:
            return self._scalar(reference.label, reference.tag, log.scalars[reference.tag])
        raise UnansweredError(_missing(reference, log))

    def read_point(self, reference: SeriesRef, key: str) -> float:
        """Return the value at one step; where it was logged more than once, the last one written.

        Raises:
            UnansweredError: the tag or the step is missing, or a value there is not finite.
        """
        step = as_step(key)
        points = self.read(reference)
        if isinstance(points, float):
            raise UnansweredError(
                f"{reference.label} holds one number, {points:.6g}, and no steps: compare it directly"
            )
        if step is None:
            raise UnansweredError(f'"{key}" is not a step of {reference.label}: {span(points)}')
        at = points.where(points.steps == step)
        if not len(at):
            raise UnansweredError(f"step {key} is not in {reference.label}: {span(points)}")
        if len(at) > 1:
            self.tally.notes.append(
                f"step {step} of {reference.label} has {len(at)} points; the last one counts"
            )
        kept = self.guard(at, None)
        last = kept.where(np.arange(len(kept)) == len(kept) - 1)
        self.tally.add(last)
        return float(last.values[0])

    def choose(self, points: Points, chosen: Range | None, min_samples: int) -> Points:
        """Return the points of a range, counted as read.

        Raises:
            UnansweredError: fewer than `min_samples` points, or one that is not finite.
        """
        if not len(points):
            raise UnansweredError(f"no samples: {points.label} is empty")
        inside = points.where(select(chosen, points.steps))
        if not len(inside):
            hint = (
                "; to choose by step number write steps(first, last)" if isinstance(chosen, Positions) else ""
            )
            raise UnansweredError(
                f"no samples: {describe(chosen)} of {points.label} are none; {span(points)}{hint}"
            )
        logged = distinct(points.steps)
        if (needed := num_needed(chosen, logged)) > len(logged):
            raise UnansweredError(
                f"not enough samples: {points.label} has {len(logged)} logged steps, asked for {needed}"
            )
        kept = self.guard(inside, chosen)
        if len(kept) < min_samples:
            raise UnansweredError(
                f"not enough samples: {len(kept)} of {points.label}, at least {min_samples} are needed"
            )
        self.tally.add(kept)
        return kept

    def guard(self, points: Points, chosen: Range | None) -> Points:
        """Return the points without those left out by permission.

        Raises:
            UnansweredError: one that is not finite, or none is left.
        """
        left_out = points.left_out
        flawed = points.where((points.flaws > 0) & ~left_out)
        if len(flawed):
            self.tally.add(points)
            raise UnansweredError(
                _flaws_in_words(flawed), is_lasting=not isinstance(chosen, Last | Positions)
            )
        for tag, mask in points.allowed.items():
            steps = {int(step) for step in points.steps[mask]}
            self.tally.left_out.setdefault(tag, set()).update(steps)
        kept = points.where(~left_out)
        if not len(kept):
            raise UnansweredError(f"no samples: no point of {points.label} is finite in {describe(chosen)}")
        return kept

    def _points(self, reference: SeriesRef, series: Series) -> Points:
        """Return a series with what is wrong with each of its points."""
        flaws = np.zeros(len(series), dtype=np.uint8)
        flaws[np.isnan(series.values)] = NOT_A_NUMBER
        flaws[np.isinf(series.values)] = INFINITE
        if series.nulls is not None:
            flaws[series.nulls] = NULL
        allowed = {reference.tag: flaws > 0} if reference.tag in self.allow_nonfinite else {}
        order = np.arange(len(series), dtype=np.int64)
        if len(series) > 1 and bool((np.diff(series.steps) < 0).any()):
            order = np.argsort(series.steps, kind="stable").astype(np.int64)
        return Points(
            reference.label,
            series.steps[order],
            series.values[order],
            flaws[order],
            {tag: mask[order] for tag, mask in allowed.items()},
            {reference.label: order},
        )

    def _scalar(self, label: str, tag: str, value: float) -> float:
        if not np.isfinite(value):
            name = "NaN" if np.isnan(value) else "infinite"
            permitted = "; a bare number cannot be left out, though allow_nonfinite names it"
            raise UnansweredError(f"{label} is {name}" + (permitted if tag in self.allow_nonfinite else ""))
        self.tally.scalars.add(label)
        return float(value)


def as_step(key: str) -> int | None:
    """Return the step that a key means, or None when it is a name."""
    return int(key) if key.isascii() and key.isdecimal() and len(key) <= 18 else None


def span(points: Points) -> str:
    """Say how many points there are and where."""
    if not len(points):
        return "it is empty"
    return f"it has {len(points)} points, steps {points.steps[0]} to {points.steps[-1]}"


def listed(steps: Sequence[int]) -> str:
    """Name the first few steps, and count the rest."""
    more = f" and {len(steps) - NUM_STEPS_NAMED} more" if len(steps) > NUM_STEPS_NAMED else ""
    return ", ".join(str(step) for step in steps[:NUM_STEPS_NAMED]) + more


def _flaws_in_words(flawed: Points) -> str:
    """Name what is not finite, and the steps."""
    parts = []
    for code in np.unique(flawed.flaws):
        steps = distinct(flawed.steps[flawed.flaws == code]).tolist()
        parts.append(f"{FLAWS[code]} at step{'s' if len(steps) > 1 else ''} {listed(steps)}")
    return f"{flawed.label} is " + " and ".join(parts)


def _missing(reference: SeriesRef, log: RunLog) -> str:
    """Say that a tag is missing, with the nearest names that exist."""
    owner = "the log" if reference.run is None else f'the log of run "{reference.run}"'
    if reference.tag in log.unread:
        return f'"{reference.tag}" in {owner} holds {log.unread[reference.tag]}, not scalars'
    names = [name for name in log.tags() if name != reference.tag and name not in log.read_as]
    if not names:
        return f'"{reference.tag}" is missing: {owner} holds no scalars at all'
    near = nearest(reference.tag, names)
    if len(names) <= NUM_TAGS_LISTED:
        hint = f"it holds {', '.join(names)}"
    elif near:
        hint = f"nearest of its {len(names)} tags: {', '.join(near)}"
    else:
        hint = f"none of its {len(names)} tags is near it; seatrial tags LOGS lists them"
    return f'"{reference.tag}" is not in {owner}; {hint}'


def nearest(tag: str, names: Collection[str], count: int = 3) -> list[str]:
    """Return the names that are most like a tag, or that end as it does."""
    tail = tag.rsplit("/", 1)[-1]
    same_tail = [name for name in names if name.rsplit("/", 1)[-1] == tail and name != tag]
    close = difflib.get_close_matches(tag, list(names), n=count, cutoff=0.6)
    return list(dict.fromkeys([*close, *same_tail]))[:count]
