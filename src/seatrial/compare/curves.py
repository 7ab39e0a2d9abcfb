"""Curves and speed of a trial on both sides.

The same seed on both sides gives the same curves, to the bit, where the change does not touch the training: that
needs one run. Where they differ, the noise is learned from the runs of BASE with different seeds, and five are
needed (`seatrial.comparisons`); with fewer, the difference is named and nothing is concluded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from seatrial.compare.runs import Sample
from seatrial.compare.verdicts import APART, BROKE, FIXED, KIND, SAME
from seatrial.comparisons.baseline_compare import MIN_JUDGED, Wanted, compare
from seatrial.comparisons.baselines import DEFAULT_WINDOW, Provenance, choose_tags, learn
from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog, Series
from seatrial.statistics.robust import Rates, check_summary
from seatrial.verdict import Outcome, Verdict
from seatrial.vocabulary import canonical, recognise

ALPHA = Wanted().alpha
SMALLEST_SLOWDOWN = 0.05
"""A smaller relative change of speed is not reported as slower: two builds of one commit differ by as much."""
STEP_TIME = "time/step"
_SHOWN = 5


def compare_curves(base: Sequence[Sample], head: Sequence[Sample]) -> list[Verdict]:
    """Return the verdicts on the curves and on the speed of a trial that concluded on both sides.

    Args:
        base: runs of the trial at BASE.
        head: runs of it at HEAD.
    """
    heads = {sample.seed: sample for sample in head}
    pairs = [(sample, heads[sample.seed]) for sample in base if sample.seed in heads]
    names = [
        name
        for name in (pairs[0][0].logs if pairs else ())
        if all(name in one.logs for pair in pairs for one in pair)
    ]
    found: list[Verdict] = []
    for name in names:
        try:
            logs = [(read_logs(old.logs[name]), read_logs(new.logs[name])) for old, new in pairs]
        except BlockedError as error:
            found.append(_verdict(f"curves{_of(name)}", Outcome.SKIPPED, APART, str(error)))
            continue
        places = [(old.logs[name], new.logs[name]) for old, new in pairs]
        found += _curves(_of(name), logs, places)
        found += _speed(f"speed{_of(name)}: seconds a step", [tuple(map(_step_time, pair)) for pair in logs])
    seconds = [(old.result.seconds, new.result.seconds) for old, new in pairs]
    if names:
        found += _speed("speed: seconds of the trial", seconds)
    return found


def _of(name: str) -> str:
    """Return which of several runs of a trial a verdict is about."""
    return "" if name == "." else f" of {name}"


def _curves(
    of: str, logs: Sequence[tuple[RunLog, RunLog]], places: Sequence[tuple[Path, Path]]
) -> Iterator[Verdict]:
    name = f"curves{of}"
    both = [log for pair in logs for log in pair]
    lost = sorted({tag for old, new in logs for tag in old.series if tag not in new.series})
    if lost:
        reason = f"no longer logged at HEAD: {_listed(lost)}"
        yield _verdict(f"{name}: series", Outcome.SKIPPED, APART, reason)
    try:
        tags = choose_tags(both, [])
    except UsageError:
        tags = sorted(set.intersection(*(set(log.series) for log in both)))
    if not tags:
        yield _verdict(name, Outcome.SKIPPED, APART, "the runs have no series in common")
        return
    different = [
        tag for tag in tags if not all(_equal(old.series[tag], new.series[tag]) for old, new in logs)
    ]
    num_points = sum(len(new.series[tag]) for _, new in logs for tag in tags)
    seeds = f"{len(logs)} seed{'s' * (len(logs) != 1)}"
    if not different:
        reason = f"{len(tags)} series equal BASE's at every step, to the bit, with {seeds}"
        yield _verdict(name, Outcome.PASS, SAME, reason, num_samples=num_points)
    elif len(logs) < MIN_JUDGED:
        reason = (
            f"{len(different)} of {len(tags)} series differ from BASE's at the same seed ({_listed(different)}); "
            f"whether noise explains it is known from {MIN_JUDGED} seeds: give --seeds {MIN_JUDGED}"
        )
        yield _verdict(name, Outcome.SKIPPED, APART, reason, num_samples=num_points)
    else:
        yield from _beyond_noise(of, logs, places, different, len(tags))


def _equal(old: Series, new: Series) -> bool:
    return np.array_equal(old.steps, new.steps) and np.array_equal(old.values, new.values, equal_nan=True)


def _beyond_noise(
    of: str,
    logs: Sequence[tuple[RunLog, RunLog]],
    places: Sequence[tuple[Path, Path]],
    tags: Sequence[str],
    num_all: int,
) -> Iterator[Verdict]:
    """Yield a verdict for each series that moved further than the runs of BASE differ, and one for the others."""
    olds = {str(place): log for (place, _), (log, _) in zip(places, logs, strict=True)}
    news = {str(place): log for (_, place), (_, log) in zip(places, logs, strict=True)}
    provenance = Provenance(commit=None, dirty=False, packages={}, host={})
    baseline, faults = learn(olds, tags, window=DEFAULT_WINDOW, provenance=provenance)
    if baseline is None:
        reason = f"no noise can be learned from BASE: {faults[0].tag}: {faults[0].reason}"
        yield _verdict(f"curves{of}", Outcome.SKIPPED, APART, reason)
        return
    judged = compare(baseline, news)
    stack = recognise(logs[0][0].tags())
    moved = 0
    for tag in tags:
        failed = [one for one in judged if one.name.split(": ")[0] == tag and one.outcome is Outcome.FAIL]
        if not failed:
            continue
        moved += 1
        metric = canonical(tag, stack)
        first = failed[0]
        above = float(str(first.details.get("t", "nan")))
        better = (
            None
            if metric is None or metric.better is None or above != above
            else ((above > 0) == (metric.better == "higher"))
        )
        outcome, kind, words = {
            None: (
                Outcome.SKIPPED,
                APART,
                "moved further than noise explains; neither direction is known to be worse",
            ),
            True: (Outcome.PASS, FIXED, "better than noise explains"),
            False: (Outcome.FAIL, BROKE, "HEAD broke it: worse than noise explains"),
        }[better]
        reason = f"{words}: {first.name}: {first.reason}"
        yield _verdict(
            f"curve{of} {tag}",
            outcome,
            kind,
            reason,
            num_samples=max(1, first.num_samples),
            source=first.source,
        )
    reason = (
        f"{num_all - len(tags)} series equal BASE's to the bit, {len(tags) - moved} moved within the noise of "
        f"{len(logs)} seeds, {moved} beyond it (at most {ALPHA:g} false alarms over all)"
    )
    rest = sum(len(new.series[tag]) for _, new in logs for tag in tags)
    yield _verdict(
        f"curves{of}", Outcome.PASS if moved < num_all else Outcome.SKIPPED, SAME, reason, num_samples=rest
    )


def _step_time(log: RunLog) -> float | None:
    """Return the mean seconds of a step without the first, which warms up; None if the log does not say."""
    stack = recognise(log.tags())
    tag = next((tag for tag in log.series if (m := canonical(tag, stack)) and m.name == STEP_TIME), None)
    if tag is None or len(log.series[tag]) < 2:
        return None
    return float(log.series[tag].values[1:].mean())


def _speed(name: str, pairs: Sequence[tuple[float | None, ...]]) -> Iterator[Verdict]:
    """Yield the verdict on seconds at BASE and at HEAD, by seed."""
    old_N = np.array([pair[0] for pair in pairs if None not in pair], dtype=np.float64)
    new_N = np.array([pair[1] for pair in pairs if None not in pair], dtype=np.float64)
    if not len(old_N):
        return
    change = float(new_N.mean() / old_N.mean() - 1) if old_N.mean() > 0 else 0.0
    words = f"BASE {old_N.mean():.3g} s, HEAD {new_N.mean():.3g} s ({change:+.1%}) in {len(old_N)} seeds"
    if len(old_N) < MIN_JUDGED:
        reason = f"{words}; the noise is known from {MIN_JUDGED} seeds: give --seeds {MIN_JUDGED}"
        yield _verdict(name, Outcome.SKIPPED, APART, reason, num_samples=len(old_N))
        return
    deviation = check_summary(old_N, new_N, Rates(test=ALPHA, metric=ALPHA))
    if deviation.holds or deviation.in_sd < 0 or change < SMALLEST_SLOWDOWN:
        yield _verdict(
            name, Outcome.PASS, SAME, f"not slower than noise explains: {words}", num_samples=len(old_N)
        )
        return
    reason = f"HEAD broke it: slower than noise explains: {words}, {deviation.in_sd:.3g} sd"
    yield _verdict(name, Outcome.FAIL, BROKE, reason, num_samples=len(old_N))


def _listed(tags: Sequence[str]) -> str:
    more = f" and {len(tags) - _SHOWN} more" if len(tags) > _SHOWN else ""
    return ", ".join(tags[:_SHOWN]) + more


def _verdict(
    name: str, outcome: Outcome, kind: str, reason: str, *, num_samples: int = 0, source: str | None = None
) -> Verdict:
    return Verdict(
        name=name,
        outcome=outcome,
        reason=reason,
        num_samples=num_samples,
        source=source,
        details={KIND: kind},
    )
