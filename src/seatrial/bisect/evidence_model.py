"""From the results of runs to likelihoods: which model applies, and whether the command is deterministic.

Determinism needs no run of its own: when the logs of two runs agree to the last bit, there is no noise in them.
An exit status alone cannot show that (a flaky command also passes twice), so there it must be declared.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seatrial.bisect.exact import exact_likelihoods
from seatrial.bisect.history import History
from seatrial.bisect.likelihood import Likelihoods
from seatrial.bisect.passfail import pass_fail_likelihoods
from seatrial.bisect.settings import Noise, Settings
from seatrial.bisect.shift import shift_likelihoods


class Question(enum.StrEnum):
    """What is asked of each run."""

    PASS_FAIL = "pass or fail"
    METRIC = "metric"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The result of one run."""

    position: int
    failed: bool
    """For a metric: the run left no finite value (it crashed or diverged)."""
    value: float | None = None
    fingerprint: str | None = None
    """Digest of what the run logged that noise would change; None when its evidence cannot show noise."""


@dataclass(frozen=True)
class Model:
    """The likelihoods of the results, and how they were read."""

    likelihoods: Likelihoods
    exact: bool
    once_each: bool


def likelihoods_of(
    history: History, observations: Sequence[Observation], question: Question, settings: Settings
) -> Model:
    """Choose the model that the results allow, and apply it."""
    repeatable = settings.noise is Noise.NONE or shows_determinism(history, observations)
    if repeatable:
        exact = _exact(history, observations, question, declared=settings.noise is Noise.NONE)
        if exact is not None:
            return Model(exact, exact=True, once_each=True)
    once = repeatable and settings.noise is not Noise.NONE
    used = _one_per_content(history, observations) if once else list(observations)
    if question is Question.PASS_FAIL:
        return Model(_counted(history, used, settings), exact=False, once_each=once)
    return Model(_valued(history, used, settings), exact=False, once_each=once)


def shows_determinism(history: History, observations: Sequence[Observation]) -> bool:
    """Return whether two runs left equal fingerprints and no two runs of equal content left different ones."""
    by_content: dict[str, set[str | None]] = {}
    seen: list[str] = []
    for item in observations:
        content = history.content(item.position)
        by_content.setdefault(content, set()).add(item.fingerprint)
        if item.fingerprint is not None:
            seen.append(item.fingerprint)
    repeated = len(set(seen)) < len(seen)
    return repeated and all(len(prints) == 1 for prints in by_content.values())


def _exact(
    history: History, observations: Sequence[Observation], question: Question, declared: bool
) -> Likelihoods | None:
    """Return exact likelihoods, or None when the results are not those of one clean switch."""
    if question is Question.METRIC:
        switched = _as_pass_fail(history, observations, nearest=declared)
        if switched is None:
            return None
        observations = switched
    failed = np.zeros(history.num_suspects + 1, dtype=np.bool_)
    passed = np.zeros(history.num_suspects + 1, dtype=np.bool_)
    for item in observations:
        (failed if item.failed else passed)[item.position] = True
    return exact_likelihoods(history.affected_PH, failed, passed)


def _as_pass_fail(
    history: History, observations: Sequence[Observation], nearest: bool
) -> list[Observation] | None:
    """Read values as GOOD's or BAD's; None when one is neither (a harmless commit that changes numbers)."""
    ends = {
        position: next((item.value for item in observations if item.position == position), None)
        for position in (0, history.bad_position)
    }
    good, bad = ends[0], ends[history.bad_position]
    result: list[Observation] = []
    for item in observations:
        if item.value == good:
            failed = False
        elif item.value == bad:
            failed = True
        elif nearest and item.value is not None and good is not None and bad is not None:
            failed = abs(item.value - bad) < abs(item.value - good)
        else:
            return None
        result.append(replace(item, failed=failed))
    return result


def _one_per_content(history: History, observations: Sequence[Observation]) -> list[Observation]:
    """Keep one run of each content: its repeats say nothing new."""
    kept: dict[str, Observation] = {}
    for item in observations:
        kept.setdefault(history.content(item.position), item)
    return list(kept.values())


def _counted(history: History, observations: Sequence[Observation], settings: Settings) -> Likelihoods:
    fails, passes = np.zeros(history.num_suspects + 1), np.zeros(history.num_suspects + 1)
    for item in observations:
        (fails if item.failed else passes)[item.position] += 1
    return pass_fail_likelihoods(history.affected_PH, fails, passes, settings.smallest_rate_change)


def _valued(history: History, observations: Sequence[Observation], settings: Settings) -> Likelihoods:
    """Combine the values of the runs that left one with the count of those that did not."""
    valued = [item for item in observations if item.value is not None]
    positions = np.array([item.position for item in valued], dtype=np.float64)
    values = np.array([item.value for item in valued], dtype=np.float64)
    by_value = shift_likelihoods(history.affected_PH, positions, values, settings.metric_sd)
    if len(valued) == len(observations):
        return by_value
    crashes = _counted(history, observations, settings)
    # Crashes come with the culprit or, as likely, have nothing to do with it.
    log_with, log_without = crashes.log_H1 + np.log(0.5), crashes.log_H1[-1] + np.log(0.5)
    log_crashes = np.logaddexp(log_with, log_without)
    share = np.exp(log_with - log_crashes)[:, None]
    before = share * crashes.before_H1Q + (1 - share) * crashes.before_H1Q[-1]
    after = share * crashes.after_H1Q + (1 - share) * crashes.after_H1Q[-1]
    return Likelihoods(
        log_H1=by_value.log_H1 + log_crashes,
        before_H1Q=_or_crash(before, by_value.before_H1Q),
        after_H1Q=_or_crash(after, by_value.after_H1Q),
    )


def _or_crash(
    crash_H1Q: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    value_H1Q: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return the distribution over the bins of the value, and last the run without one."""
    return np.concatenate([crash_H1Q[:, :1] * value_H1Q, crash_H1Q[:, 1:]], axis=1)
