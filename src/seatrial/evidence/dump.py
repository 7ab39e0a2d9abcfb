"""Writes a run log as metrics.json in NeMo RL's form, with its provenance.

NaN and infinities are written as the bare words `NaN`, `Infinity`, `-Infinity`: NeMo RL's own writer does so, and
Python's json, jq and NeMo RL's checker read them. An explicit null stays null. What was lost while reading goes
into the provenance, so that a check on the dump is Blocked as it would be on the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.errors import BlockedError
from seatrial.evidence import quick_json
from seatrial.evidence.readers.metrics_json import FORM, PROVENANCE_KEY
from seatrial.evidence.runlog import RunLog, Series


def lines(log: RunLog) -> Iterator[str]:
    """Yield the document line by line: provenance first, then one line per tag, sorted by name.

    Raises:
        BlockedError: a tag has the name under which the provenance is stored.
    """
    if PROVENANCE_KEY in log.tags():
        raise BlockedError(
            f"the log has a tag named {PROVENANCE_KEY!r}, under which the dump says where it came from; rename the tag"
        )
    yield "{"
    yield f"{_text(PROVENANCE_KEY)}: {json.dumps(_provenance(log))}"
    for tag in sorted({*log.series, *log.scalars}):
        content = _points_text(log.series[tag]) if tag in log.series else json.dumps(log.scalars[tag])
        yield f",{_text(tag)}: {content}"
    yield "}"


def points(series: Series) -> Mapping[str, float | None]:
    """Return the points of a series by step, as text.

    The clock of a time-stepped series restarts in each attempt. Here each attempt is set to seconds since the
    first one began, and samples of one second follow each other, so that none hides another.
    """
    steps = series.steps if _is_unique(series.steps) else _unrolled(series)
    values: list[float | None] = series.values.tolist()
    if series.nulls is not None:
        values = [None if null else value for value, null in zip(values, series.nulls.tolist(), strict=True)]
    texts = _texts(steps.tobytes())
    if bool((steps[1:] > steps[:-1]).all()):
        return dict(zip(texts, values, strict=True))
    return {texts[place]: values[place] for place in np.argsort(steps, kind="stable").tolist()}


@lru_cache(maxsize=2)
def _texts(steps: bytes) -> list[str]:
    """Return the steps of a series as text; most tags of a run have the same ones."""
    texts: list[str] = np.frombuffer(steps, dtype=np.int64).astype(str).tolist()
    return texts


def _points_text(series: Series) -> str:
    found = points(series)
    quick = quick_json.of_finite(found) if bool(np.isfinite(series.values).all()) else None
    return json.dumps(found) if quick is None else quick


def _provenance(log: RunLog) -> dict[str, Any]:
    disputed = {tag: one.disputed.tolist() for tag, one in log.series.items() if one.disputed is not None}
    unrolled = [tag for tag, one in log.series.items() if not _is_unique(one.steps)]
    return {
        "form": FORM,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "sources": list(log.sources),
        "damage": [asdict(item) for item in log.damage],
        "notes": list(log.notes),
        "unread": dict(log.unread),
        "seconds_since_first_attempt": sorted(unrolled),
        **({"disputed": disputed} if disputed else {}),
        **({"runs": [list(run) for run in log.runs]} if log.runs else {}),
        **({"dropped": {tag: steps.tolist() for tag, steps in log.dropped.items()}} if log.dropped else {}),
    }


def _unrolled(series: Series) -> npt.NDArray[np.int64]:
    """Return the steps of a time-stepped series as distinct seconds since its first attempt began."""
    steps = series.steps.copy()
    if series.attempts is not None and series.wall_times is not None:
        begins = series.wall_times - series.steps
        first = float(begins[series.attempts == series.attempts.min()].min())
        for attempt in np.unique(series.attempts):
            mine = series.attempts == attempt
            steps[mine] += round(float(begins[mine].min()) - first)
    order = np.argsort(steps, kind="stable")
    # The k-th point in order is at least one second after the one before it.
    ranked = steps[order] - np.arange(len(steps))
    steps[order] = np.maximum.accumulate(ranked) + np.arange(len(steps))
    return steps


def _is_unique(steps: npt.NDArray[np.int64]) -> bool:
    return len(steps) < 2 or bool((np.diff(steps) > 0).all()) or len(np.unique(steps)) == len(steps)


def _text(name: str) -> str:
    return json.dumps(name)
