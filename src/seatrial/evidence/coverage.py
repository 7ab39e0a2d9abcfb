"""Steps that a series should have and has not.

Some writers drop a value that is not finite (prime-rl's file monitor), so that a run full of NaN shows as holes in
an otherwise clean series.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seatrial.evidence.attempts import is_time_stepped
from seatrial.evidence.runlog import Series

_REGULAR = 0.5
_MAX_HOLES = 1_000_000


def missing_steps(series: Series) -> npt.NDArray[np.int64]:
    """Return the steps between the first and the last where a series that is logged regularly has no point.

    A series is regular when at least half of the distances between its steps are the same and every other one is a
    multiple of it; of others nothing is known, and the answer is empty.
    """
    none = np.zeros(0, dtype=np.int64)
    distances = np.diff(series.steps)
    distances = distances[distances > 0]
    if not len(distances):
        return none
    stride = int(np.median(distances))
    if distances.min() != stride or (distances == stride).mean() < _REGULAR or (distances % stride).any():
        return none
    first, last = int(series.steps[0]), int(series.steps[-1])
    if (last - first) // stride > len(series) + _MAX_HOLES:
        return none
    return np.setdiff1d(np.arange(first, last + 1, stride, dtype=np.int64), series.steps)


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
