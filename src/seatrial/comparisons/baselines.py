"""Baselines: the results of repeated runs of one configuration, and so the noise that a new run may show.

A baseline keeps the values of each repeat, not only their mean, so every number of a comparison can be recomputed.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from seatrial.comparisons.comparable import nonfinite
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.runlog import RunLog, Series
from seatrial.vocabulary import MACHINE_UNITS, canonical, recognise

DEFAULT_WINDOW = 10
"""Points at the end of a series that the final-window mean covers."""
MIN_REPEATS = 2
MIN_SHARE_OF_STEPS = 0.8
"""A repeat with fewer than this fraction of the longest one's steps stopped early and is invalid."""
_MAX_MAGNITUDE = 1e150
"""Squares of larger values overflow."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MetricBaseline(_Record):
    """One metric in N repeats."""

    final_window_means: tuple[FiniteFloat, ...] = Field(min_length=MIN_REPEATS)
    """Mean over the last `window` points of each repeat."""
    means: tuple[FiniteFloat, ...] = Field(min_length=MIN_REPEATS)
    """Mean over all points of each repeat."""
    steps: tuple[int, ...] = Field(min_length=1)
    """The steps logged in every repeat; steps of only the longer repeats are excluded."""
    trajectories: tuple[tuple[FiniteFloat, ...], ...]
    """Value at each step, by repeat."""
    num_points: tuple[int, ...] = ()
    """Steps that each repeat logged, if the lengths differ; empty otherwise."""

    @model_validator(mode="after")
    def _shapes(self) -> MetricBaseline:
        lengths = {len(self.means), len(self.final_window_means), len(self.trajectories)}
        if len(lengths) != 1 or {len(row) for row in self.trajectories} != {len(self.steps)}:
            raise ValueError("the numbers of repeats or of steps disagree")
        return self


class Provenance(_Record):
    """Where a baseline comes from."""

    commit: str | None
    """None: the folder is not in a git checkout (only with `dirty`)."""
    dirty: bool
    """Recorded, on request, from a tree with uncommitted changes."""
    dirty_files: tuple[str, ...] = ()
    packages: dict[str, str | None]
    """Versions in the recording environment; None: not installed."""
    host: dict[str, Any]
    """Devices, processor, platform."""
    command: tuple[str, ...] = ()
    """The repeated command with secrets redacted; empty if existing logs were read."""


class Baseline(_Record):
    """A recorded baseline: the content of its file."""

    schema_version: Literal[1] = 1
    created_at: datetime
    expires_at: datetime | None
    provenance: Provenance
    sources: tuple[str, ...] = Field(min_length=MIN_REPEATS)
    """Log of each repeat."""
    window: Annotated[int, Field(ge=1)]
    metrics: dict[str, MetricBaseline] = Field(min_length=1)

    @property
    def num_repeats(self) -> int:
        """How many runs it was learned from."""
        return len(self.sources)

    @model_validator(mode="after")
    def _repeats(self) -> Baseline:
        for tag, metric in self.metrics.items():
            if len(metric.means) != len(self.sources):
                raise ValueError(f"{tag} has {len(metric.means)} repeats, the baseline {len(self.sources)}")
        return self

    def expired(self, now: datetime) -> bool:
        """Return whether the baseline is too old to be used."""
        return self.expires_at is not None and now >= self.expires_at

    def to_text(self) -> str:
        """Return the JSON text of its file."""
        return self.model_dump_json(indent=1) + "\n"


class Fault(NamedTuple):
    """Why a series cannot be learned from or compared."""

    tag: str
    reason: str


def load_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Raises:
        UsageError: the file does not exist.
        BlockedError: the file is damaged, or of another schema version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(
            f"no baseline {path}; make one: seatrial baseline record --output {path} LOGS LOGS ..."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BlockedError(f"baseline {path} cannot be read: {error}") from error
    try:
        return Baseline.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BlockedError(f"baseline {path} is damaged: {place}: {first['msg']}; record it again") from error


def choose_tags(logs: Sequence[RunLog], patterns: Sequence[str]) -> list[str]:
    """Return the tags to record: those that match a pattern, or the training metrics that the vocabulary knows.

    Raises:
        UsageError: a pattern matches nothing; or there is no pattern and the stack is not recognised.
    """
    tags = sorted(set.intersection(*(set(log.series) for log in logs)))
    if patterns:
        for pattern in patterns:
            if not fnmatch.filter(tags, pattern):
                raise UsageError(
                    f"--metric {pattern}: no series of that name in all {len(logs)} runs; see: seatrial tags LOGS"
                )
        return [tag for tag in tags if any(fnmatch.fnmatchcase(tag, pattern) for pattern in patterns)]
    stack = recognise(logs[0].tags())
    known = {tag: canonical(tag, stack) for tag in tags}
    chosen = [tag for tag, metric in known.items() if metric and metric.unit not in MACHINE_UNITS]
    if not chosen:
        raise UsageError(
            "the stack that wrote these logs is not recognised; name what to record: --metric TAG ..."
        )
    return chosen


def learn(
    logs: Mapping[str, RunLog],
    tags: Sequence[str],
    *,
    window: int,
    provenance: Provenance,
    created_at: datetime | None = None,
    expires_at: datetime | None = None,
) -> tuple[Baseline | None, list[Fault]]:
    """Learn a baseline from repeats of one run.

    Args:
        logs: log by source, one per repeat, in order.
        tags: series to keep; each must be in every log.
        window: points of the final-window mean.
        provenance: where the runs come from.
        created_at: now by default.
        expires_at: when the baseline expires; None: never.

    Returns:
        The baseline, or None with all faults of the repeats.
    """
    faults = [
        Fault(source, f"part of the log is lost: {item.what}")
        for source, log in logs.items()
        for item in log.damage
    ]
    metrics = {}
    for tag in tags:
        series = [log.series[tag] for log in logs.values()]
        wrong = _faults(tag, series, list(logs))
        faults += wrong
        if not wrong:
            metrics[tag] = _metric(series, window)
    if faults:
        return None, faults
    baseline = Baseline(
        created_at=created_at or datetime.now(UTC).replace(microsecond=0),
        expires_at=expires_at,
        provenance=provenance,
        sources=tuple(logs),
        window=window,
        metrics=metrics,
    )
    return baseline, []


def final_window_mean(values: np.ndarray[Any, Any], window: int) -> float:
    """Return the mean of the last `window` points, or of all if there are fewer."""
    return float(values[-window:].mean())


def _faults(tag: str, series: Sequence[Series], sources: Sequence[str]) -> list[Fault]:
    faults = []
    for item, source in zip(series, sources, strict=True):
        if not len(item):
            faults.append(Fault(tag, f"no points in {source}"))
        elif reason := nonfinite(item):
            faults.append(Fault(tag, f"{reason} in {source}: nothing can be compared with that"))
        elif np.abs(item.values).max() > _MAX_MAGNITUDE:
            faults.append(Fault(tag, f"values in {source} are too large to take a mean and a spread of"))
    return faults or _step_faults(tag, series, sources)


def _step_faults(tag: str, series: Sequence[Series], sources: Sequence[str]) -> list[Fault]:
    """Return a fault for each repeat whose steps are not those of the longest one, or end long before it."""
    longest = max(range(len(series)), key=lambda number: len(series[number]))
    steps = series[longest].steps
    return [
        Fault(
            tag,
            f"{source} has {len(item)} points to step {item.steps[-1]}, {sources[longest]} has {len(steps)}"
            f" to step {steps[-1]}: repeats log the same steps, or at least the first {MIN_SHARE_OF_STEPS:.0%} of them",
        )
        for item, source in zip(series, sources, strict=True)
        if len(item) < MIN_SHARE_OF_STEPS * len(steps) or not np.array_equal(item.steps, steps[: len(item)])
    ]


def _metric(series: Sequence[Series], window: int) -> MetricBaseline:
    """Return the baseline of the steps that all repeats have."""
    lengths = [len(item) for item in series]
    common = [item.values[: min(lengths)] for item in series]
    return MetricBaseline(
        final_window_means=tuple(final_window_mean(values, window) for values in common),
        means=tuple(float(values.mean()) for values in common),
        steps=tuple(int(step) for step in series[0].steps[: min(lengths)]),
        trajectories=tuple(tuple(float(value) for value in values) for values in common),
        num_points=tuple(lengths) if len(set(lengths)) > 1 else (),
    )
