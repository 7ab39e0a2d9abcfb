"""Computes likelihoods from the results of runs: chooses the model and detects deterministic commands.

Determinism needs no extra run: if the logs of two runs agree to the last bit, they contain no noise. An exit status
alone cannot show this (a flaky command may also pass twice), so there the user must declare it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seatrial.bisect.history import BoolArray, FloatArray, History
from seatrial.bisect.likelihood import Likelihoods, Noise, Settings, Worse
from seatrial.bisect.metric_model import shift_likelihoods
from seatrial.bisect.pass_fail_model import Counted, pass_fail_likelihoods


def exact_likelihoods(affected_PH: BoolArray, failed_P: BoolArray, passed_P: BoolArray) -> Likelihoods | None:
    """Return the likelihoods if a run fails exactly when it contains the culprit.

    Returns:
        None if no hypothesis explains the results: the command is not deterministic.
    """
    num_hypotheses = affected_PH.shape[1]
    consistent_H = affected_PH[failed_P].all(axis=0) & ~affected_PH[passed_P].any(axis=0)
    no_culprit = not failed_P.any() or not passed_P.any()
    possible_H1 = np.append(consistent_H, no_culprit and not consistent_H.any())
    if not possible_H1.any():
        return None
    passes, fails = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    before, after = np.tile(passes, (num_hypotheses + 1, 1)), np.tile(fails, (num_hypotheses + 1, 1))
    if failed_P.any():
        before[-1] = fails
    else:
        after[-1] = passes
    return Likelihoods(log_H1=np.where(possible_H1, 0.0, -np.inf), before_H1Q=before, after_H1Q=after)


_RUNS_OF_A_BROKEN_COMMIT = 2
"""Lost runs after which a commit counts as broken: a single one may be an accident."""


class Question(enum.StrEnum):
    """What each run answers."""

    PASS_FAIL = "pass or fail"
    METRIC = "metric"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The result of one run."""

    position: int
    failed: bool
    """For a metric: the run left no finite value (it crashed or diverged)."""
    value: float | None = None
    lost: bool = False
    """The run failed without a result (it crashed, or its value is not finite), as at a broken commit."""
    fingerprint: str | None = None
    """Digest of everything logged that noise would change; None if the evidence cannot show noise."""


@dataclass(frozen=True)
class Model:
    """The likelihoods of the results, and how the results were interpreted."""

    likelihoods: Likelihoods
    exact: bool
    once_each: bool


def likelihoods_of(
    history: History, observations: Sequence[Observation], question: Question, settings: Settings
) -> Model:
    """Choose the model that fits the results, and apply it."""
    repeatable = settings.noise is Noise.NONE or shows_determinism(history, observations)
    if repeatable:
        exact = _exact(history, observations, question, settings)
        if exact is not None:
            return Model(exact, exact=True, once_each=True)
    once = repeatable and settings.noise is not Noise.NONE
    used = _one_per_content(history, observations) if once else list(observations)
    if question is Question.PASS_FAIL:
        aside = lost_runs_say_nothing(history, observations)
        counted = [item for item in used if not (aside and item.lost)]
        return Model(_counted(history, counted, settings), exact=False, once_each=once)
    return Model(_valued(history, used, settings), exact=False, once_each=once)


def shows_determinism(history: History, observations: Sequence[Observation]) -> bool:
    """Return whether two runs left equal fingerprints, and runs of equal content never left different ones."""
    by_content: dict[str, set[str | None]] = {}
    seen: list[str] = []
    for item in observations:
        content = history.content(item.position)
        by_content.setdefault(content, set()).add(item.fingerprint)
        if item.fingerprint is not None:
            seen.append(item.fingerprint)
    repeated = len(set(seen)) < len(seen)
    return repeated and all(len(prints) == 1 for prints in by_content.values())


def lost_runs_say_nothing(history: History, observations: Sequence[Observation]) -> bool:
    """Return whether BAD fails with results; runs without a result then broke for another reason."""
    at_bad = [item for item in observations if item.position in history.twins(history.bad_position)]
    return bool(at_bad) and not any(item.lost for item in at_bad)


def broken_positions(history: History, observations: Sequence[Observation]) -> set[int]:
    """Return positions between the ends of which all runs, at least two, were lost: broken, not noisy."""
    if not any(item.lost for item in observations) or not lost_runs_say_nothing(history, observations):
        return set()
    lost: Counter[str] = Counter()
    for item in observations:
        content = history.content(item.position)
        lost[content] = lost[content] + 1 if item.lost and lost[content] >= 0 else -1
    for end in (0, history.bad_position):
        lost.pop(history.content(end), None)
    contents = {content for content, count in lost.items() if count >= _RUNS_OF_A_BROKEN_COMMIT}
    return {p for p in range(history.num_suspects + 1) if history.content(p) in contents}


def _exact(
    history: History, observations: Sequence[Observation], question: Question, settings: Settings
) -> Likelihoods | None:
    """Return exact likelihoods, or None if the results do not show one clean switch."""
    if question is Question.METRIC:
        switched = _as_pass_fail(history, observations, settings)
        if switched is None:
            return None
        observations = switched
    failed = np.zeros(history.num_suspects + 1, dtype=np.bool_)
    passed = np.zeros(history.num_suspects + 1, dtype=np.bool_)
    for item in observations:
        (failed if item.failed else passed)[item.position] = True
    return exact_likelihoods(history.affected_PH, failed, passed)


def _as_pass_fail(
    history: History, observations: Sequence[Observation], settings: Settings
) -> list[Observation] | None:
    """Classify values as GOOD's or BAD's; None if one is neither (a harmless commit that changes numbers).

    If the direction is known and BAD is better, nothing failed.
    """
    ends = {
        position: next((item.value for item in observations if item.position == position), None)
        for position in (0, history.bad_position)
    }
    good, bad = ends[0], ends[history.bad_position]
    worse = settings.metric.worse
    if good is not None and bad is not None and _is_better(bad, good, worse):
        return [replace(item, failed=False) for item in observations]
    nearest = settings.noise is Noise.NONE
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


def _is_better(value: float, other: float, worse: Worse | None) -> bool:
    """Return whether a value is better than another; False if the direction is unknown."""
    return (value < other and worse is Worse.HIGHER) or (value > other and worse is Worse.LOWER)


def _one_per_content(history: History, observations: Sequence[Observation]) -> list[Observation]:
    """Keep one run per content; repeats of a deterministic run add nothing."""
    kept: dict[str, Observation] = {}
    for item in observations:
        kept.setdefault(history.content(item.position), item)
    return list(kept.values())


def _counted(history: History, observations: Sequence[Observation], settings: Settings) -> Likelihoods:
    counts: dict[int, list[int]] = {}
    for item in observations:
        counts.setdefault(history.twins(item.position)[0], [0, 0])[item.failed] += 1
    positions = np.array(sorted(counts), dtype=np.int64)
    ends = {history.twins(end)[0] for end in (0, history.bad_position)}
    counted = Counted(
        positions_R=positions,
        fails_R=np.array([counts[p][True] for p in positions.tolist()], dtype=np.float64),
        passes_R=np.array([counts[p][False] for p in positions.tolist()], dtype=np.float64),
        may_be_broken_R=np.array([p not in ends for p in positions.tolist()], dtype=np.bool_),
    )
    return pass_fail_likelihoods(history.affected_PH, counted, settings.smallest_rate_change)


def _valued(history: History, observations: Sequence[Observation], settings: Settings) -> Likelihoods:
    """Combine the values of runs that left one with the count of runs that left none."""
    valued = [item for item in observations if item.value is not None]
    positions = np.array([item.position for item in valued], dtype=np.float64)
    values = np.array([item.value for item in valued], dtype=np.float64)
    by_value = shift_likelihoods(history.affected_PH, positions, values, settings.metric)
    if len(valued) == len(observations) or lost_runs_say_nothing(history, observations):
        return by_value
    crashes = _counted(history, observations, settings)
    # A crash is as likely to come from the culprit as from something else.
    log_with, log_without = crashes.log_H1 + np.log(0.5), crashes.log_H1[-1] + np.log(0.5)
    log_crashes = np.logaddexp(log_with, log_without)
    share = np.exp(log_with - log_crashes)[:, None]
    before = share * crashes.before_H1Q + (1 - share) * crashes.before_H1Q[-1]
    after = share * crashes.after_H1Q + (1 - share) * crashes.after_H1Q[-1]
    return Likelihoods(
        log_drift=by_value.log_drift + float(log_without),
        drift_with_time=by_value.drift_with_time,
        log_H1=by_value.log_H1 + log_crashes,
        log_stated_H1=by_value.stated().log_H1 + log_crashes,
        log_expected_H1=by_value.expected().log_H1 + log_crashes,
        before_H1Q=_or_crash(before, by_value.before_H1Q),
        after_H1Q=_or_crash(after, by_value.after_H1Q),
        at={
            position: _or_crash(
                share * outcomes + (1 - share) * outcomes[-1],
                np.where(
                    np.append(history.affected_PH[position], False)[:, None],
                    by_value.after_H1Q,
                    by_value.before_H1Q,
                ),
            )
            for position, outcomes in crashes.at.items()
        },
    )


def _or_crash(crash_H1Q: FloatArray, value_H1Q: FloatArray) -> FloatArray:
    """Return the distribution over the bins of the value, with the outcome "no value" last."""
    return np.concatenate([crash_H1Q[:, :1] * value_H1Q, crash_H1Q[:, 1:]], axis=1)
