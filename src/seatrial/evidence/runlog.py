"""What a run logged: series of scalars by tag, and everything that was lost while reading.

Arrays of a series share one length N and one order (by step, then by time of writing).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A part of the evidence that could not be read."""

    path: str
    """File that is damaged."""
    what: str
    """What is wrong and what was lost, as one sentence: `truncated after step 49: 17 bytes of a record`."""
    offset: int | None = None
    """Byte (binary formats) or line (text formats) where it starts."""
    tag: str | None = None
    """The one tag whose values are lost; None where more may be."""
    is_cut: bool = False
    """Only the end is missing, as when a run was killed or still writes; everything before it was read."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One scalar metric over steps. Steps need not start at 0, be contiguous, or be unique."""

    tag: str
    steps: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    """NaN and infinities are kept; where `nulls` is set the value is NaN."""
    wall_times: npt.NDArray[np.float64] | None = None
    """Seconds since the epoch, when the format has them."""
    nulls: npt.NDArray[np.bool_] | None = None
    """True where the log holds an explicit null instead of a number; None when there are no nulls."""
    attempts: npt.NDArray[np.int64] | None = None
    """Which attempt of the run wrote each point (0 is the oldest); None when there was one."""
    abandoned: int = 0
    """Points of abandoned attempts past the resume point, left out of the arrays."""
    duplicates: int = 0
    """Points left out because the same step was written again later; abandoned ones that were redone are among them."""
    conflicts: int = 0
    """Those of the duplicates whose later value was another one."""
    disputed: npt.NDArray[np.int64] | None = None
    """Steps for which one attempt wrote two values that differ, so that nothing says which is meant."""

    def __len__(self) -> int:
        """Return the number of points."""
        return len(self.steps)


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """All that was read from one log directory or file."""

    sources: Sequence[str]
    """Files read, in the order of reading."""
    series: Mapping[str, Series]
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Bare numbers without a step, as evaluation scripts write them (`{"score": 0.3}`)."""
    damage: Sequence[Damage] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    """Tags that are present and hold no scalars, with their kind: `{"weights/hist": "histogram"}`."""
    notes: Sequence[str] = ()
    """Facts about the reading that a user should see: conflicts, abandoned steps, merged attempts."""
    truncated_tags: bool = False
    """True when only some tags were requested, so `series` does not list all that exist."""
    dropped: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    """Where the writer drops values that are not finite: steps by tag whose value it probably dropped."""
    other_tags: Sequence[str] = ()
    """Tags that exist and were not requested (only with a tag filter)."""
    runs: Sequence[Sequence[str]] = ()
    """Where the files look like several runs rather than attempts of one: the sources of each, the oldest first."""
    read_as: Mapping[str, str] = field(default_factory=dict)
    """Tags of `series` that the log holds under another name of the same metric, and that name."""
    parts: Mapping[str, Mapping[str, Series]] = field(default_factory=dict)
    """Where several runs or writers are in the log: the series of each writer, and of each run before the last."""
    total_steps: int | None = None
    """The last step that the run is to reach, where the log says it."""

    def only(self, tags: Collection[str]) -> RunLog:
        """Return the log with these tags alone, as if no others had been requested."""
        others = {*self.series, *self.scalars} - set(tags)
        return replace(
            self,
            series={tag: one for tag, one in self.series.items() if tag in tags},
            scalars={tag: value for tag, value in self.scalars.items() if tag in tags},
            dropped={tag: steps for tag, steps in self.dropped.items() if tag in tags},
            truncated_tags=True,
            other_tags=sorted({*self.other_tags, *others}),
        )

    def tags(self) -> list[str]:
        """Return every tag known to exist, read or not, sorted."""
        return sorted({*self.series, *self.scalars, *self.unread, *self.other_tags})
