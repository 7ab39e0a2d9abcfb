"""Checks that a run can be compared with another one step by step: same steps, all values finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seatrial.checks.language.reading import nearest
from seatrial.evidence.runlog import RunLog, Series
from seatrial.verdict import Outcome

_MAX_STEPS_SHOWN = 5


def nonfinite(series: Series) -> str | None:
    """Return at which steps a series is not finite; None if it is finite everywhere."""
    bad = series.steps[~np.isfinite(series.values)]
    if not len(bad):
        return None
    more = f" and {len(bad) - _MAX_STEPS_SHOWN} more" if len(bad) > _MAX_STEPS_SHOWN else ""
    return (
        f"not finite at step{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad[:_MAX_STEPS_SHOWN]))}{more}"
    )


def why_not_comparable(
    tag: str, steps: Sequence[int], source: str, log: RunLog, *, longer: bool = False
) -> tuple[Outcome, str] | None:
    """Return why a series cannot be compared with one that has these steps; None if it can.

    Args:
        tag: the series.
        steps: the steps that it must have.
        source: path of the run, for the message.
        log: the run.
        longer: whether it may continue after the last of these steps.

    Returns:
        Blocked and the reason if the log is damaged; Fail if the run did not log what is needed.
    """
    if log.damage:
        return Outcome.BLOCKED, f"{log.damage[0].path} is damaged: {log.damage[0].what}"
    series = log.series.get(tag)
    if series is None:
        near = nearest(tag, log.tags())
        hint = f"; nearest: {', '.join(near)}" if near else ""
        return Outcome.FAIL, f"{tag!r} is not in {source}{hint}"
    if reason := nonfinite(series):
        return Outcome.FAIL, f"{reason} in {source}"
    have = series.steps[: len(steps)] if longer else series.steps
    if not np.array_equal(have, np.asarray(steps)):
        return Outcome.FAIL, f"{source} {_step_difference(series, steps)}"
    return None


def _step_difference(series: Series, wanted: Sequence[int]) -> str:
    have = [int(step) for step in series.steps]
    absent = sorted(set(wanted) - set(have))
    added = sorted(set(have) - set(wanted))
    words = []
    if absent:
        words.append(f"does not have {len(absent)} of the {len(wanted)} steps, the first {absent[0]}")
    if added:
        words.append(f"has {len(added)} additional steps, the first {added[0]}")
    return " and ".join(words) or "has its steps in another order, or twice"
