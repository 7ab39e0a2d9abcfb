"""Steps that a series should have and has not.

Some writers drop a value that is not finite (prime-rl's file monitor), so that a run full of NaN shows as holes in
an otherwise clean series.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seatrial.evidence.readers.attempts import is_time_stepped
from seatrial.evidence.runlog import Series

_REGULAR = 0.5
_MAX_HOLES = 1_000_000


def stride_of(series: Series) -> int | None:
    """Return the distance between the steps of a series that is logged regularly; None where it is not.

    A series is regular when at least half of the distances between its steps are the same and every other one is a
    multiple of it.
    """
    distances = np.diff(series.steps)
    distances = distances[distances > 0]
    if not len(distances):
        return None
    stride = int(np.median(distances))
    regular = (distances == stride).mean() >= _REGULAR and not (distances % stride).any()
    return stride if distances.min() == stride and regular else None


def missing_steps(
    series: Series, *, first: int | None = None, last: int | None = None
) -> npt.NDArray[np.int64]:
    """Return the steps where a series that is logged regularly has no point; none of a series that is not.

    Args:
        series: what was logged.
        first: a step from which on it should have points; its own first step when None.
        last: a step up to which it should have points; its own last step when None.
    """
    none = np.zeros(0, dtype=np.int64)
    if first is None and last is None and _is_even(series.steps):
        return none
    stride = stride_of(series)
    if stride is None:
        return none
    begin, end = int(series.steps[0]), int(series.steps[-1])
    if first is not None and first < begin:
        begin -= (begin - first) // stride * stride
    end = end if last is None else max(end, last)
    if (end - begin) // stride > len(series) + _MAX_HOLES:
        return none
    return np.setdiff1d(np.arange(begin, end + 1, stride, dtype=np.int64), series.steps)


def _is_even(steps: npt.NDArray[np.int64]) -> bool:
    """Say whether all distances between steps are the same: then none is missing. Most series of a log are so."""
    if len(steps) < 3:
        return True
    distances = steps[1:] - steps[:-1]
    return bool((distances == distances[0]).all())


def dropped_steps(series: dict[str, Series]) -> dict[str, npt.NDArray[np.int64]]:
    """Return, for series of one writer that drops what is not finite, the steps whose value it probably dropped.

    The writer was there from the first to the last step of any of its series. A series that is logged as often as
    any should have points from the first of these on, one that is logged more rarely from its own first.
    """
    strides = {tag: stride for tag, one in series.items() if (stride := stride_of(one)) is not None}
    if not strides:
        return {}
    first = min(int(series[tag].steps[0]) for tag in strides)
    last = max(int(series[tag].steps[-1]) for tag in strides)
    often = min(strides.values())
    holes = {
        tag: missing_steps(series[tag], first=first if stride == often else None, last=last)
        for tag, stride in strides.items()
    }
    return {tag: steps for tag, steps in holes.items() if len(steps)}


def describe_missing(series: dict[str, Series]) -> list[str]:
    """Return a note on the series that have holes, or nothing."""
    steady = {tag: one for tag, one in series.items() if not is_time_stepped(tag)}
    holes = {tag: missing for tag, one in steady.items() if len(missing := missing_steps(one))}
    if not holes:
        return []
    ranked = sorted(holes, key=lambda tag: (-len(holes[tag]), tag))
    shown = []
    for tag in ranked[:3]:
        steps = ", ".join(str(step) for step in holes[tag][:5])
        shown.append(f"{tag} has none at {steps}" + (" ..." if len(holes[tag]) > 5 else ""))
    more = f"; so do {len(ranked) - 3} more tags" if len(ranked) > 3 else ""
    return [f"steps without a value: {'; '.join(shown)}{more}"]
