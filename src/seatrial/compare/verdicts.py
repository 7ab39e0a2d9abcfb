"""Verdicts of one trial on both sides: what HEAD broke, what it fixed, what was broken before.

HEAD broke a verdict if it fails in every run at HEAD and in none at BASE, with two seeds or more on each side; or,
where it fails in some runs only, if Fisher's exact test says so at 5 %. One run is never enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from scipy.stats import fisher_exact

from seatrial.compare.runs import Sample
from seatrial.trials.results import TrialState
from seatrial.verdict import Outcome, Verdict, combine

MIN_SEEDS = 2
"""Runs on each side without which nothing counts as broken."""
SIGNIFICANT = 0.05
"""Largest p-value of the test on verdicts that fail in some runs only."""
KIND = "compared"
"""Detail of a verdict: the kind of the difference, one of the constants below."""
BROKE, FIXED, BEFORE, SAME = "HEAD broke", "fixed", "broken before", "same"
UNSURE, BLOCKED, APART = "too few runs", "blocked", "not comparable"
JUDGED = "the trial is judged on a side"
_OF_SEED = re.compile(r"^seed \d+: ")


@dataclass(frozen=True)
class Tally:
    """One verdict in the runs of one side."""

    runs: Sequence[Verdict | None]
    """None: the run has no such verdict."""

    def _num(self, *outcomes: Outcome) -> int:
        return sum(run is not None and run.outcome in outcomes for run in self.runs)

    @cached_property
    def passes(self) -> int:
        """Runs that passed."""
        return self._num(Outcome.PASS)

    @cached_property
    def fails(self) -> int:
        """Runs that failed."""
        return self._num(Outcome.FAIL)

    @cached_property
    def blocked(self) -> int:
        """Runs that the environment prevented."""
        return self._num(Outcome.BLOCKED)

    @property
    def judged(self) -> int:
        """Runs with an answer."""
        return self.passes + self.fails

    def reason(self, *outcomes: Outcome) -> str:
        """Return the reason of the first run with one of these outcomes; of any run if none has it."""
        known = [run for run in self.runs if run is not None]
        wanted = [run for run in known if run.outcome in outcomes]
        return (wanted or known)[0].reason if known else "this run has no such verdict"

    def words(self) -> str:
        """Return how many runs failed: `fails in 2 of 2 seeds`."""
        if not self.judged:
            return f"not judged in {len(self.runs)} seed{'s' * (len(self.runs) != 1)}"
        number, verb = (self.fails, "fails") if self.fails else (self.passes, "passes")
        return f"{verb} in {number} of {self.judged} seed{'s' * (self.judged != 1)}"


def compare_trial(base: Sequence[Sample], head: Sequence[Sample]) -> list[Verdict]:
    """Return a verdict for each verdict of a trial, in the order of the runs at HEAD; Blocked if no side judged it.

    Args:
        base: runs of the trial at BASE.
        head: runs of it at HEAD.
    """
    base_runs, head_runs = ([_by_name(sample) for sample in samples] for samples in (base, head))
    names = list(dict.fromkeys(name for run in (*head_runs, *base_runs) for name in run))
    base_good, head_good = (
        bool(samples) and all(sample.result.outcome is Outcome.PASS for sample in samples)
        for samples in (base, head)
    )
    found = [
        _side_by_side(
            name,
            Tally([_or_pass(run.get(name), base_good) for run in base_runs]),
            Tally([_or_pass(run.get(name), head_good) for run in head_runs]),
        )
        for name in names
    ]
    if _all_blocked(base) and _all_blocked(head):
        found.insert(0, _not_judged(head[0]))
    if not any(verdict.details[KIND] == BROKE for verdict in found):
        return found
    return [_consequence(verdict) for verdict in found]


def _all_blocked(samples: Sequence[Sample]) -> bool:
    return bool(samples) and all(sample.result.outcome is Outcome.BLOCKED for sample in samples)


def _not_judged(sample: Sample) -> Verdict:
    """Return Blocked for a trial that neither side could judge: what passed before it was blocked is no comparison."""
    reason = next(one.reason for one in sample.result.verdicts if one.outcome is Outcome.BLOCKED)
    return Verdict(
        name=JUDGED,
        outcome=Outcome.BLOCKED,
        reason=f"blocked on both sides: {reason}",
        details={KIND: BLOCKED},
    )


def differs(verdicts: Sequence[Verdict]) -> bool:
    """Return whether HEAD may have broken something, so that more runs of the trial are needed to know."""
    return any(verdict.details[KIND] in (BROKE, UNSURE) for verdict in verdicts)


def _by_name(sample: Sample) -> dict[str, Verdict]:
    """Return the verdicts of a run by name; those of a trial's own seeds are one."""
    found: dict[str, list[Verdict]] = {}
    for verdict in sample.result.verdicts:
        found.setdefault(_OF_SEED.sub("", verdict.name), []).append(verdict)
    merged = {}
    for name, verdicts in found.items():
        whole = combine(verdicts)
        merged[name] = next((one for one in verdicts if one.outcome is whole), verdicts[0])
    if sample.result.state is not TrialState.CONCLUDED:
        merged["the trial concludes"] = Verdict(
            name="the trial concludes",
            outcome=Outcome.BLOCKED,
            reason=f"the run ended while the trial was {sample.result.state.value}",
        )
    return merged


def _or_pass(verdict: Verdict | None, good: bool) -> Verdict | None:
    """Return a verdict; where a trial passed without it, a Pass: some verdicts exist only if they fail."""
    if verdict is not None or not good:
        return verdict
    return Verdict(name="passed", outcome=Outcome.PASS, reason="the trial passed without it", num_samples=1)


def _side_by_side(name: str, base: Tally, head: Tally) -> Verdict:
    outcome, kind, reason = _difference(base, head)
    return Verdict(
        name=name,
        outcome=outcome,
        reason=reason,
        value=f"BASE {base.words()}, HEAD {head.words()}",
        bound="HEAD fails nothing that BASE passes",
        num_samples=base.judged + head.judged,
        details={KIND: kind},
    )


def _difference(base: Tally, head: Tally) -> tuple[Outcome, str, str]:
    """Return the outcome of two tallies, the kind of the difference, and the reason."""
    counts = f"HEAD {head.words()}, BASE {base.words()}"
    if not head.judged:
        if base.passes and head.blocked:
            reason = f"blocked at HEAD, where BASE passes: {head.reason(Outcome.BLOCKED)}"
            return Outcome.BLOCKED, BLOCKED, reason
        where = "on both" if not base.judged else "at HEAD"
        return Outcome.SKIPPED, APART, f"not judged {where}: {head.reason(Outcome.BLOCKED)}"
    if not base.judged:
        if head.fails and base.blocked:
            why = f"fails at HEAD, blocked at BASE ({base.reason(Outcome.BLOCKED)})"
            reason = f"{why}: {head.reason(Outcome.FAIL)}"
            return Outcome.BLOCKED, BLOCKED, reason
        does = "fails" if head.fails else "passes"
        return Outcome.SKIPPED, APART, f"{does} at HEAD, not judged at BASE: {base.reason(Outcome.BLOCKED)}"
    if not head.fails:
        if base.fails:
            return Outcome.PASS, FIXED, f"fixed: {counts}; at BASE: {base.reason(Outcome.FAIL)}"
        return Outcome.PASS, SAME, f"passes on both: {counts}"
    why = head.reason(Outcome.FAIL)
    if base.fails * head.judged >= head.fails * base.judged:
        return Outcome.SKIPPED, BEFORE, f"broken before: {counts}: {why}"
    if _is_broken(base, head):
        return Outcome.FAIL, BROKE, f"HEAD broke it: {counts}: {why}"
    more = f"--seeds {max(5, 2 * head.judged)}"
    return Outcome.BLOCKED, UNSURE, f"too few runs to know: {counts}; give {more}: {why}"


def _is_broken(base: Tally, head: Tally) -> bool:
    if not base.fails and not head.passes:
        return min(base.judged, head.judged) >= MIN_SEEDS
    table = [[head.fails, head.passes], [base.fails, base.passes]]
    return bool(fisher_exact(table, alternative="greater").pvalue <= SIGNIFICANT)


def _consequence(verdict: Verdict) -> Verdict:
    """Return what could not be judged in a trial that HEAD broke as Skipped: the failure is the reason."""
    if verdict.details[KIND] != BLOCKED:
        return verdict
    return Verdict(
        name=verdict.name,
        outcome=Outcome.SKIPPED,
        reason=f"not judged because of the failure in this trial: {verdict.reason}",
        num_samples=verdict.num_samples,
        details={KIND: APART},
    )
