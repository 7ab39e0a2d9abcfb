"""Earlier healthy runs from the command line: logs, or a recorded baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from seatrial.comparisons.baselines import Baseline, load_baseline
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.configuration import Options, find_configuration
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog, Series
from seatrial.rules.healthy import HealthyRuns

_HEAD = 4096
"""Bytes at the start of a recorded baseline that contain its schema and date."""


def healthy_runs(paths: Sequence[Path], watched: Path) -> HealthyRuns:
    """Return the logs of healthy runs; a file of `seatrial baseline record` has several.

    Args:
        paths: logs of any form, or recorded baselines.
        watched: the log that is compared with them.

    Raises:
        UsageError: the watched log is among them, or one is named twice.
        BlockedError: one cannot be read, a part before its end is damaged, or a recorded baseline has expired.
    """
    places = [path.resolve() for path in paths]
    if watched.resolve() in places:
        raise UsageError(f"--baseline names {watched} itself: a judged run cannot be its own baseline")
    if len(set(places)) != len(places):
        raise UsageError("--baseline names a log twice: each healthy run counts once")
    found = [one for path in paths for one in _read(path)]
    return HealthyRuns(logs=[log for log, _ in found], configurations=[options for _, options in found])


def _read(path: Path) -> Iterator[tuple[RunLog, Options | None]]:
    if _is_recorded(path):
        yield from ((log, None) for log in _recorded(load_baseline(path), path))
        return
    try:
        log = read_logs(path)
    except BlockedError as error:
        raise BlockedError(f"--baseline: {error}") from error
    if not any(len(series) for series in log.series.values()):
        raise BlockedError(f"--baseline {path}: it holds no series; leave this run out")
    lost = [item for item in log.damage if not item.is_cut]
    if lost:
        raise BlockedError(f"--baseline {path}: {lost[0].what}; leave this run out")
    yield log, find_configuration(path)


def _is_recorded(path: Path) -> bool:
    if not path.is_file() or path.suffix != ".json":
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return b'"schema_version"' in head and b'"created_at"' in head


def _recorded(baseline: Baseline, path: Path) -> Iterator[RunLog]:
    """Yield a log of each repeat of a recorded baseline.

    Raises:
        BlockedError: it has expired.
    """
    if baseline.expired(datetime.now(UTC)):
        raise BlockedError(
            f"--baseline {path}: it expired on {baseline.expires_at:%Y-%m-%d}; record it again"
        )
    for number, source in enumerate(baseline.sources):
        series = {
            tag: Series(
                tag=tag,
                steps=np.array(metric.steps, dtype=np.int64),
                values=np.array(metric.trajectories[number], dtype=np.float64),
            )
            for tag, metric in baseline.metrics.items()
        }
        yield RunLog(sources=[source], series=series)
