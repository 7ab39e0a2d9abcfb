"""What one process wrote into one place between two (re)starts, before attempts are put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from seatrial.evidence.readers.numbers import Number

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(kw_only=True)
class Points:
    """The points of one tag in the order of writing; arrays have one length N."""

    steps: Steps
    values: Floats
    wall_times: Floats | None = None
    nulls: Flags | None = None

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.steps)

    def take(self, index: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Points:
        """Return the points that an index array or a mask picks."""
        return Points(
            steps=self.steps[index],
            values=self.values[index],
            wall_times=None if self.wall_times is None else self.wall_times[index],
            nulls=None if self.nulls is None else self.nulls[index],
        )


def join_points(parts: Iterable[Points]) -> Points:
    """Concatenate points; times are kept only where every part has them."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    walls = [part.wall_times for part in parts if part.wall_times is not None]
    nulls = [np.zeros(len(part), dtype=np.bool_) if part.nulls is None else part.nulls for part in parts]
    return Points(
        steps=np.concatenate([part.steps for part in parts]),
        values=np.concatenate([part.values for part in parts]),
        wall_times=np.concatenate(walls) if len(walls) == len(parts) else None,
        nulls=np.concatenate(nulls) if any(part.nulls is not None for part in parts) else None,
    )


@dataclass(kw_only=True)
class Segment:
    """Points of all tags that one process wrote between two (re)starts."""

    source: str
    """File they come from."""
    lane: str = "."
    """Writers in one lane continue each other; in TensorBoard this is the sub-directory."""
    start: float | None = None
    """Seconds since the epoch of the first event, where the format has times."""
    end: float | None = None
    """Seconds since the epoch of the last event."""
    resume_step: int | None = None
    """First step that the writer itself said it would write again (TensorBoard's SessionLog)."""
    points: dict[str, Points] = field(default_factory=dict)
    time_stepped: frozenset[str] = frozenset()
    """Tags whose step is a clock that starts anew in each attempt."""


class PointBuffer:
    """Collects the points of one tag row by row."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._values: list[float] = []
        self._walls: list[float] = []
        self._nulls: list[bool] = []

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self._steps)

    def add(self, step: int, number: Number, wall_time: float | None = None) -> None:
        """Append a point."""
        self._steps.append(step)
        self._values.append(number.value)
        self._nulls.append(number.null)
        if wall_time is not None:
            self._walls.append(wall_time)

    def points(self) -> Points:
        """Return what was collected; times only when every point has one."""
        return Points(
            steps=np.array(self._steps, dtype=np.int64),
            values=np.array(self._values, dtype=np.float64),
            wall_times=np.array(self._walls, dtype=np.float64)
            if len(self._walls) == len(self._steps)
            else None,
            nulls=np.array(self._nulls, dtype=np.bool_) if any(self._nulls) else None,
        )
