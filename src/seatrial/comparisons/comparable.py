"""Can a run be compared with another, step by step? Every step finite, none missing, none added."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seatrial.checks.language.reading import nearest
from seatrial.evidence.runlog import RunLog, Series
from seatrial.verdict import Outcome

_STEPS_TOLD = 5


def nonfinite(series: Series) -> str | None:
    """Say at which steps a series is not finite; None when it is everywhere."""
    bad = series.steps[~np.isfinite(series.values)]
    if not len(bad):
        return None
    more = f" and {len(bad) - _STEPS_TOLD} more" if len(bad) > _STEPS_TOLD else ""
    return f"not finite at step{'s' if len(bad) > 1 else ''} {', '.join(map(str, bad[:_STEPS_TOLD]))}{more}"


def why_not_comparable(
    tag: str, steps: Sequence[int], source: str, log: RunLog, *, longer: bool = False
) -> tuple[Outcome, str] | None:
    """Say why a series cannot be compared with one that has these steps; None when it can.

    Args:
        tag: the series.
        steps: those that it is to have.
        source: where the run lies, for the message.
        log: the run.
        longer: whether it may go on after the last of these steps.

    Returns:
        Blocked and the reason where the log is damaged; Fail where the run did not leave what is needed.
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
        return Outcome.FAIL, f"{source} {_other_steps(series, steps)}"
    return None


def _other_steps(series: Series, wanted: Sequence[int]) -> str:
    have = [int(step) for step in series.steps]
    absent = sorted(set(wanted) - set(have))
    added = sorted(set(have) - set(wanted))
    words = []
    if absent:
        words.append(f"lacks {len(absent)} of the {len(wanted)} steps, the first {absent[0]}")
    if added:
        words.append(f"has {len(added)} steps more, the first {added[0]}")
    return " and ".join(words) or "has its steps in another order, or twice"
