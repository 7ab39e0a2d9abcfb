"""Merges the attempts of one run: who wrote when, who superseded whom, and what was abandoned.

A run that is restarted from a checkpoint writes some steps a second time and abandons others. The newest attempt
counts. Points of an older attempt at or after the step where a newer one took over are abandoned: they belong to
weights that were thrown away. Attempts are ordered by the time of their events, not by that of the files, which
changes when files are copied."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.readers.points import Points, Segment, join_points
from seatrial.evidence.runlog import Series
from seatrial.words import counted


def account(series: dict[str, Series], abandoned_steps: list[npt.NDArray[np.int64]]) -> list[str]:
    """Describe abandoned steps and duplicates, the tags with most of them first."""
    notes = []
    abandoned = {tag: one.abandoned for tag, one in series.items() if one.abandoned}
    if abandoned:
        steps = np.concatenate(abandoned_steps)
        notes.append(
            f"left out, logged by abandoned attempts: {counted(sum(abandoned.values()), 'point')} at steps "
            f"{steps.min()} to {steps.max()} ({_most(abandoned)})"
        )
    conflicts = {tag: one.conflicts for tag, one in series.items() if one.conflicts}
    if conflicts:
        notes.append(
            f"written again with another value, of which the last counts: "
            f"{counted(sum(conflicts.values()), 'point')} ({_most(conflicts)})"
        )
    repeats = sum(one.duplicates - one.conflicts for one in series.values())
    if repeats:
        notes.append(f"written again with the same value: {counted(repeats, 'point')}")
    return notes


def _most(counts: dict[str, int]) -> str:
    ranked = sorted(counts, key=lambda tag: (-counts[tag], tag))
    shown = ", ".join(f"{tag} {counts[tag]}" for tag in ranked[:5])
    return shown + (f" and {len(ranked) - 5} more tags" if len(ranked) > 5 else "")


def some(names: Collection[str]) -> str:
    ranked = sorted(names)
    return ", ".join(ranked[:5]) + (f" and {len(ranked) - 5} more" if len(ranked) > 5 else "")


TIME_STEPPED_PREFIXES = ("ray/",)
"""Tags whose step is seconds since the process started: NeMo RL's Ray monitor (nemo_rl/utils/logger.py)."""


class Merged(NamedTuple):
    """The series of a run, and notes on how they were merged."""

    series: dict[str, Series]
    notes: list[str]
    runs: list[list[str]]
    """As `RunLog.runs`."""
    parts: dict[str, dict[str, Series]]
    """As `RunLog.parts`."""


@dataclass
class _Attempt:
    segments: list[Segment]
    resume_step: int | None = None
    end: float = -np.inf
    tags: set[str] = field(default_factory=set)
    _holding: dict[str, list[Segment]] = field(default_factory=dict)
    _num_indexed: int = 0

    def holding(self, tag: str) -> list[Segment]:
        """Return the segments that hold a tag, in order; many runs in one folder have many segments."""
        for part in self.segments[self._num_indexed :]:
            for name in part.points:
                self._holding.setdefault(name, []).append(part)
        self._num_indexed = len(self.segments)
        return self._holding.get(tag, [])


def is_time_stepped(tag: str) -> bool:
    """Say whether the step of a tag is a clock that starts at 0 in every attempt."""
    return tag.startswith(TIME_STEPPED_PREFIXES)


def _is_clocked(tag: str, part: Segment) -> bool:
    return tag in part.time_stepped or is_time_stepped(tag)


def merge(segments: Sequence[Segment], *, lanes_are_runs: bool = False) -> Merged:
    """Merge the segments of one run.

    Args:
        segments: What each process wrote.
        lanes_are_runs: True where lanes are separate runs, never attempts of one another.

    Returns:
        One series per tag, and notes on attempts, abandoned steps, duplicates and writers kept apart.
    """
    notes: list[str] = []
    ordered = sorted(segments, key=lambda part: (-np.inf if part.start is None else part.start, part.source))
    apart = _keep_lanes_apart(ordered, lanes_are_runs, notes)
    attempts = _attempts(ordered)
    _note_attempts(attempts, notes)
    tags = dict.fromkeys(tag for part in ordered for tag in part.points)
    abandoned_steps: list[npt.NDArray[np.int64]] = []
    series = {tag: _series(tag, attempts, abandoned_steps) for tag in tags}
    notes += account(series, abandoned_steps)
    runs = _runs(attempts)
    sources = [list(dict.fromkeys(part.source for one in run for part in one.segments)) for run in runs]
    parts = _parts_of_lanes(series, ordered, apart)
    for number, run in enumerate(runs[:-1], start=1):
        earlier = {
            tag: _series(tag, run, []) for tag in dict.fromkeys(tag for one in run for tag in one.tags)
        }
        parts[f"run {number} of {len(runs)} ({sources[number - 1][0]})"] = earlier
    return Merged(series, notes, sources if len(runs) > 1 else [], parts)


def _parts_of_lanes(
    series: dict[str, Series], segments: Sequence[Segment], apart: set[str]
) -> dict[str, dict[str, Series]]:
    """Return the series of each lane under their own names, where several lanes wrote the same tags."""
    lanes = sorted({part.lane for part in segments} - {"."}) if apart else []
    renamed = {f"{lane}/{tag}" for lane in lanes for tag in apart}
    common = {tag: one for tag, one in series.items() if tag not in renamed}
    parts = {}
    for lane in lanes:
        names = {tag: f"{lane}/{tag}" for tag in apart}
        own = {tag: replace(series[name], tag=tag) for tag, name in names.items() if name in series}
        if own:
            parts[lane] = common | own
    return parts


def _runs(attempts: list[_Attempt]) -> list[list[_Attempt]]:
    """Return the attempts of each run where some start again instead of continuing the ones before them.

    A resumed run continues at a later step than its first. An attempt that begins at or before the first step of
    everything so far continues nothing: it is another run, or one whose clock is wrong.
    """
    runs: list[list[_Attempt]] = []
    first: int | None = None
    for attempt in attempts:
        begins = _first_step(attempt) if attempt.resume_step is None else attempt.resume_step
        if not runs or (begins is not None and first is not None and begins <= first):
            runs.append([attempt])
        else:
            runs[-1].append(attempt)
        if begins is not None:
            first = begins if first is None else min(first, begins)
    return runs


def _first_step(attempt: _Attempt) -> int | None:
    """Return the first step of an attempt; set-up work, logged once at step 0, is none."""
    steps = [
        int(points.steps.min())
        for part in attempt.segments
        for tag, points in part.points.items()
        if len(points) and not _is_clocked(tag, part) and not (len(points) == 1 and points.steps[0] == 0)
    ]
    return min(steps, default=None)


def _keep_lanes_apart(segments: list[Segment], always: bool, notes: list[str]) -> set[str]:
    """Rename a tag that several lanes write at the same time: these are different series, not attempts.

    Returns:
        The old names of the renamed tags.
    """
    spans: dict[str, dict[str, tuple[float, float]]] = {}
    for part in segments:
        for tag, points in part.points.items():
            low, high = _span(points)
            lanes = spans.setdefault(tag, {})
            before = lanes.get(part.lane, (low, high))
            lanes[part.lane] = (min(low, before[0]), max(high, before[1]))
    apart = {tag for tag, lanes in spans.items() if len(lanes) > 1 and _overlap(list(lanes.values()))}
    if always:
        apart = set(spans) if len({part.lane for part in segments}) > 1 else set()
    for part in segments:
        if part.lane != ".":
            names = {tag: f"{part.lane}/{tag}" if tag in apart else tag for tag in part.points}
            part.points = {names[tag]: points for tag, points in part.points.items()}
            part.time_stepped = frozenset(names[tag] for tag in part.time_stepped)
    if apart:
        notes.append(
            "written by several writers, whose name (folder, file, or run) now precedes the tag: "
            f"{some(apart)}"
        )
    return apart


def _span(points: Points) -> tuple[float, float]:
    """Return when a tag was first and last written; without times that is any time."""
    if points.wall_times is None or not len(points):
        return -np.inf, np.inf
    return float(points.wall_times.min()), float(points.wall_times.max())


def _overlap(spans: list[tuple[float, float]]) -> bool:
    spans = sorted(spans)
    return any(after[0] < before[1] for before, after in itertools.pairwise(spans))


def _attempts(segments: list[Segment]) -> list[_Attempt]:
    """Group segments, oldest first: one begins a new attempt when it continues tags after the last one ended."""
    attempts: list[_Attempt] = []
    for part in segments:
        tags = {tag for tag in part.points if not _is_clocked(tag, part)} or set(part.points)
        follows = attempts and (
            part.resume_step is not None
            or (tags & attempts[-1].tags and (part.start is None or part.start >= attempts[-1].end))
        )
        if not attempts or follows:
            attempts.append(_Attempt([]))
        attempt = attempts[-1]
        attempt.segments.append(part)
        attempt.tags |= tags
        attempt.end = max(attempt.end, -np.inf if part.end is None else part.end)
    known: set[str] = set()
    for attempt in attempts:
        attempt.resume_step = _resume_step(attempt, known)
        known |= attempt.tags
    return attempts


def _resume_step(attempt: _Attempt, known: set[str]) -> int | None:
    """Return the step from which an attempt took over: said by its writer, else where most of its tags begin.

    Tags of set-up work, logged once at step 0 in each attempt, say nothing about it.
    """
    said = [part.resume_step for part in attempt.segments if part.resume_step is not None]
    if said:
        return min(said)
    firsts: Counter[int] = Counter()
    for tag in known & attempt.tags:
        steps = [part.points[tag].steps for part in attempt.segments if tag in part.points]
        first = min((int(held.min()) for held in steps if len(held)), default=None)
        only_zero = first == 0 and sum(len(held) for held in steps) == 1
        if (
            first is not None
            and not only_zero
            and not any(_is_clocked(tag, part) for part in attempt.segments)
        ):
            firsts[first] += 1
    return max(firsts, key=lambda step: (firsts[step], step)) if firsts else None


def _series(tag: str, attempts: list[_Attempt], abandoned_steps: list[npt.NDArray[np.int64]]) -> Series:
    """Merge the points of one tag, oldest attempt first; append the abandoned steps to `abandoned_steps`."""
    parts: list[Points] = []
    numbers: list[int] = []
    for number, attempt in enumerate(attempts):
        held = [part.points[tag] for part in attempt.holding(tag)]
        if held:
            parts.append(_by_time(join_points(held)) if len(held) > 1 else held[0])
            numbers.append(number)
    points = join_points(parts)
    owner = np.repeat(np.array(numbers, dtype=np.int64), [len(part) for part in parts])
    if is_time_stepped(tag) or any(tag in part.time_stepped for one in attempts for part in one.holding(tag)):
        order = np.argsort(points.steps, kind="stable")
        return _finish(tag, points.take(order), owner[order], len(attempts))
    is_abandoned = _find_abandoned(points.steps, owner, attempts)
    if is_abandoned.any():
        abandoned_steps.append(points.steps[is_abandoned])
    return _newest(tag, points, owner, is_abandoned, len(attempts))


def _by_time(points: Points) -> Points:
    if points.wall_times is None:
        return points
    return points.take(np.argsort(points.wall_times, kind="stable"))


def _find_abandoned(
    steps: npt.NDArray[np.int64], owner: npt.NDArray[np.int64], attempts: list[_Attempt]
) -> npt.NDArray[np.bool_]:
    """Return which points a newer attempt abandoned: those at or after the step where it took over this tag."""
    is_abandoned = np.zeros(len(steps), dtype=np.bool_)
    for number in range(1, len(attempts)):
        attempt = attempts[number]
        own = steps[owner == number]
        limits = [] if attempt.resume_step is None else [attempt.resume_step]
        limits += [int(own.min())] if len(own) else []
        if limits:
            is_abandoned |= (owner < number) & (steps >= min(limits))
    return is_abandoned


def _newest(
    tag: str,
    points: Points,
    owner: npt.NDArray[np.int64],
    is_abandoned: npt.NDArray[np.bool_],
    num_attempts: int,
) -> Series:
    """Keep the last point of each step, and count what it superseded."""
    steps = points.steps
    if len(steps) < 2 or (not is_abandoned.any() and bool((np.diff(steps) > 0).all())):
        return _finish(tag, points, owner, num_attempts)
    # Abandoned points sort before the points that live, so the last one of each step lives if any does.
    order = np.lexsort((np.arange(len(steps)), ~is_abandoned, steps))
    last = np.append(np.diff(steps[order]) != 0, True)
    keeper = order[np.flatnonzero(last)[np.cumsum(last) - last]]
    superseded = ~last
    values = points.values
    mine, kept = values[order], values[keeper]
    differs = (mine != kept) & ~(np.isnan(mine) & np.isnan(kept))
    disputed = superseded & differs & (owner[order] == owner[keeper]) & ~is_abandoned[keeper]
    alive = order[last & ~is_abandoned[order]]
    return _finish(
        tag,
        points.take(alive),
        owner[alive],
        num_attempts,
        int(is_abandoned.sum()),
        int(superseded.sum()),
        int((superseded & differs).sum()),
        np.unique(steps[order][disputed]) if disputed.any() else None,
    )


def _finish(
    tag: str,
    points: Points,
    owner: npt.NDArray[np.int64],
    num_attempts: int,
    abandoned: int = 0,
    duplicates: int = 0,
    conflicts: int = 0,
    disputed: npt.NDArray[np.int64] | None = None,
) -> Series:
    return Series(
        tag=tag,
        steps=points.steps,
        values=points.values,
        wall_times=points.wall_times,
        nulls=points.nulls if points.nulls is not None and points.nulls.any() else None,
        attempts=owner if num_attempts > 1 else None,
        abandoned=abandoned,
        duplicates=duplicates,
        conflicts=conflicts,
        disputed=disputed,
    )


def _note_attempts(attempts: list[_Attempt], notes: list[str]) -> None:
    for number, attempt in enumerate(attempts[1:], start=1):
        where = "" if attempt.resume_step is None else f", which took over at step {attempt.resume_step}"
        sources = some({part.source for part in attempt.segments})
        notes.append(f"attempt {number} of the run is {sources}{where}")
