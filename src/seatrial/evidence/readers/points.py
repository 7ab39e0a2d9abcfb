"""Values, points and segments: what every reader makes of a log before attempts are merged.

A gap, a null and a NaN are different facts about a run: a gap is a missing step, a null was written as one, and a NaN
came out of the arithmetic. Each reader keeps them apart with `decode`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_NAMES = {
    "nan": math.nan,
    "+nan": math.nan,
    "-nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "+infinity": math.inf,
    "-infinity": -math.inf,
}

MAX_STEP = 2**63 - 1


class Number(NamedTuple):
    """One logged value."""

    value: float
    """The number; NaN where `null` is set."""
    null: bool = False
    """The log holds an explicit null."""


def decode(raw: Any) -> Number | None:
    """Return the number in a JSON value or a cell of text; None if it is not a number.

    Booleans count as 0 and 1, as loggers of this field write flags. Text counts when it is a decimal number or
    the name of NaN or an infinity: some writers make JSON valid that way.
    """
    if raw is None:
        return Number(math.nan, null=True)
    if isinstance(raw, float):
        return Number(raw)
    if isinstance(raw, int):
        return Number(_float_of_int(raw))
    if isinstance(raw, str):
        return _decode_text(raw)
    return None


def decode_step(raw: Any) -> int | None:
    """Return the step in a JSON value or text; None if it is not a whole number of 64 bits.

    Text may include the total number of steps: `1/438` is step 1.
    """
    if type(raw) is int:
        return raw if -MAX_STEP - 1 <= raw <= MAX_STEP else None
    if isinstance(raw, bool):
        return None
    if isinstance(raw, str):
        if len(raw) > 32:
            return None
        step, _, last = raw.partition("/")
        raw = step if last.strip().isdecimal() else raw
        try:
            raw = int(raw)
        except ValueError:
            number = _decode_text(raw)
            raw = None if number is None else number.value
    if isinstance(raw, float):
        # At the bounds a float may be an integer beyond them.
        if not -(2.0**63) < raw < 2.0**63 or raw != int(raw):
            return None
        raw = int(raw)
    if isinstance(raw, int) and -MAX_STEP - 1 <= raw <= MAX_STEP:
        return raw
    return None


def _decode_text(text: str) -> Number | None:
    word = text.strip()
    named = _NAMES.get(word.lower())
    if named is not None:
        return Number(named)
    # float() also takes underscores, which no logger writes as part of a number.
    if not word or len(word) > 400 or "_" in word:
        return None
    try:
        return Number(float(word))
    except ValueError:
        return None


def _float_of_int(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


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
    """Tags whose step is a clock that restarts in each attempt."""


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
