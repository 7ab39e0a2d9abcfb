"""Run logs made by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from seatrial.evidence.runlog import Damage, RunLog, Series

Points = Mapping[int, float] | Sequence[tuple[int, float]]
MakeLog = Callable[..., RunLog]


def _series(tag: str, points: Points) -> Series:
    pairs = list(points.items()) if isinstance(points, Mapping) else list(points)
    return Series(
        tag=tag,
        steps=np.array([step for step, _ in pairs], dtype=np.int64),
        values=np.array([np.nan if value is None else value for _, value in pairs], dtype=np.float64),
        nulls=np.array([value is None for _, value in pairs], dtype=np.bool_),
    )


@pytest.fixture(scope="session")
def make_log() -> MakeLog:
    """Return a maker of run logs: tag -> {step: value} or (step, value) pairs; None is an explicit null."""

    def make(
        series: Mapping[str, Points],
        scalars: Mapping[str, float] | None = None,
        damage: Sequence[str] = (),
        unread: Mapping[str, str] | None = None,
        other_tags: Sequence[str] = (),
    ) -> RunLog:
        return RunLog(
            sources=["made by hand"],
            series={tag: _series(tag, points) for tag, points in series.items()},
            scalars=dict(scalars or {}),
            damage=[Damage(path="events.1", what=what) for what in damage],
            unread=dict(unread or {}),
            other_tags=other_tags,
        )

    return make
