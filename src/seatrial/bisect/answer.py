"""The answer of a bisect: one value that the console, the HTML page and `result.json` all show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import History
from seatrial.bisect.likelihood import EITHER
from seatrial.bisect.outcomes import Run, RunOutcome
from seatrial.bisect.search import Conclusion, Search
from seatrial.bisect.task import Task
from seatrial.verdict import EXIT_BLOCKED, EXIT_FAIL, EXIT_PASS
from seatrial.words import counted

_SURE, _POWER = 1.645, 1.282
"""Normal quantiles: 5 % false alarms, 90 % power."""


@dataclass(frozen=True)
class End:
    """The results of the runs at one end."""

    runs: int
    fails: int
    values: tuple[float, ...]

    def describe(self, question: Question) -> str:
        """Return the results in a few words."""
        if self.runs == 0:
            return "not judged"
        if question is Question.PASS_FAIL:
            return f"failed {self.fails} of {self.runs}"
        if not self.values:
            return f"left no value in {counted(self.runs, 'run')}"
        spread = f" ± {np.std(self.values, ddof=1):.3g}" if len(self.values) > 1 else ""
        lost = f", {self.fails} runs without a value" if self.fails else ""
        runs = counted(len(self.values), "run")
        return f"{np.mean(self.values):.6g}{spread} ({runs}{lost})"


def end_of(history: History, observations: Sequence[Observation], position: int) -> End:
    """Return what was observed at one end."""
    seen = [item for item in observations if item.position in history.twins(position)]
    values = tuple(item.value for item in seen if item.value is not None)
    return End(len(seen), sum(item.failed for item in seen), values)


def runs_to_separate(good: End, bad: End, question: Question, smallest_rate_change: float) -> int | None:
    """Return how many runs of each end would distinguish them, if the observed difference is real.

    The comparison of two samples has 5 % false alarms and 90 % power; for rates the assumed difference is at least the
    smallest that counts as a culprit.

    Returns:
        None if an end was not run, has fewer than two values, or no difference was observed.
    """
    if not good.runs or not bad.runs:
        return None
    both = (_SURE + _POWER) ** 2
    if question is Question.PASS_FAIL:
        before = (good.fails + 0.5) / (good.runs + 1)
        after = (bad.fails + 0.5) / (bad.runs + 1)
        change = max(after - before, smallest_rate_change)
        variance = before * (1 - before) + after * (1 - after)
        return max(2, math.ceil(both * variance / change**2))
    if len(good.values) + len(bad.values) < 3 or not good.values or not bad.values:
        return None
    residuals = np.concatenate([np.subtract(e.values, np.mean(e.values)) for e in (good, bad)])
    variance = float((residuals**2).sum() / (len(residuals) - 2))
    change = float(np.mean(bad.values) - np.mean(good.values))
    if change == 0 or variance == 0:
        return None
    return max(2, math.ceil(2 * both * variance / change**2))


@dataclass(frozen=True)
class Suspicion:
    """One commit of the credible set."""

    commit: str
    subject: str
    probability: float
    is_merge: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a bisect concluded, from which evidence, at what cost."""

    conclusion: Conclusion
    sentence: str
    """The answer in one sentence."""
    suspects: tuple[Suspicion, ...]
    """The smallest set of commits that reaches the credibility, most probable first."""
    no_culprit: float
    """Probability that GOOD and BAD do not differ."""
    drift: float
    """Probability that the metric changes gradually."""
    good: str
    bad: str
    """What was observed at the two ends."""
    advice: str
    """What to do next; empty when the question is answered."""
    num_runs: int
    minutes: float
    exact: bool

    @property
    def cost(self) -> str:
        """Return how many runs were made and how long they took."""
        return f"{counted(self.num_runs, 'run')}, {self.minutes:.1f} minutes"

    @property
    def exit_code(self) -> int:
        """0: a culprit is named. 1: there is none. 3: undecided."""
        if self.conclusion is Conclusion.FOUND:
            return EXIT_PASS
        return EXIT_FAIL if self.conclusion in (Conclusion.NO_CULPRIT, Conclusion.DRIFT) else EXIT_BLOCKED


def answer_of(task: Task, search: Search, runs: Sequence[Run], conclusion: Conclusion) -> Answer:
    """Build the answer of a search that has stopped."""
    history = search.history
    good = end_of(history, search.observations, 0)
    bad = end_of(history, search.observations, history.bad_position)
    belief = search.stated()
    named = conclusion not in (Conclusion.NO_CULPRIT, Conclusion.DRIFT, Conclusion.END_UNTESTABLE)
    chosen = search.credible_set() if named else []
    suspects = tuple(
        Suspicion(c.sha, c.subject, float(belief.suspects_H[h]), len(c.parents) > 1)
        for h, c in ((h, history.suspects[h]) for h, _ in chosen)
    )
    needed = runs_to_separate(good, bad, task.question, task.smallest_rate_change)
    ends = {"good": good.describe(task.question), "bad": bad.describe(task.question)}
    return Answer(
        conclusion=conclusion,
        sentence=_sentence(search, runs, conclusion, suspects, ends),
        suspects=suspects,
        no_culprit=belief.no_culprit,
        drift=belief.drift,
        advice=_advice(task, search, conclusion, suspects, needed, ends),
        num_runs=sum(bool(run.evidence) for run in runs),
        minutes=sum(run.seconds for run in runs) / 60,
        exact=belief.exact,
        **ends,
    )


def _sentence(
    search: Search,
    runs: Sequence[Run],
    conclusion: Conclusion,
    suspects: Sequence[Suspicion],
    ends: dict[str, str],
) -> str:
    belief = search.stated()
    if conclusion is Conclusion.FOUND:
        if len(suspects) == 1:
            only = suspects[0]
            return (
                f"{only.commit[:12]} ({only.subject}) is the culprit with probability {only.probability:.3f}"
            )
        mass = sum(item.probability for item in suspects)
        return f"one of {len(suspects)} commits that no run can distinguish is the culprit (probability {mass:.3f})"
    if conclusion is Conclusion.DRIFT:
        with_time = belief.likelihoods.drift_with_time > 0.5
        how = "with time, at every commit" if with_time else "with the commits, over many of them"
        return (
            f"no single culprit: the metric drifts {how} (probability {belief.drift:.3f}): "
            f"GOOD {ends['good']}, BAD {ends['bad']}"
        )
    if conclusion is Conclusion.NO_CULPRIT:
        return (
            f"no culprit (probability {belief.no_culprit:.3f}): GOOD {ends['good']}, BAD {ends['bad']}; "
            + _why_no_culprit(search, runs)
        )
    if conclusion is Conclusion.END_UNTESTABLE:
        names = {
            search.history.good.sha: "GOOD",
            search.history.commit(search.history.bad_position).sha: "BAD",
        }
        last = next(
            (run for run in reversed(runs) if run.commit in names and run.outcome is not RunOutcome.PASS),
            None,
        )
        detail = f": {names[last.commit]} {last.commit[:12]}: {last.reason}" if last else ""
        return f"an end of the range could not be judged{detail}"
    if conclusion is Conclusion.CANNOT_NARROW:
        return (
            f"{len(suspects)} commits remain, and every commit whose run would distinguish them is untestable"
        )
    if "not judged" in ends.values():
        return "the budget ended before both ends had been run once"
    if belief.no_culprit > 1 - search.settings.credibility:
        return (
            f"the budget ended before GOOD ({ends['good']}) and BAD ({ends['bad']}) could be distinguished "
            f"(probability of no culprit {belief.no_culprit:.2f})"
        )
    return f"the budget ended with {len(suspects)} commits in the credible set"


_NOT_BAD, _NOT_GOOD = "BAD does not fail", "GOOD does not pass"


def _why_no_culprit(search: Search, runs: Sequence[Run]) -> str:
    failed = {item.failed for item in search.observations if item.position == search.history.bad_position}
    if search.question is Question.PASS_FAIL and True not in failed:
        return _NOT_BAD
    failed = {item.failed for item in search.observations if item.position == 0}
    if search.question is Question.PASS_FAIL and False not in failed:
        last = next((run for run in reversed(runs) if run.commit == search.history.good.sha), None)
        return f"{_NOT_GOOD}: {last.reason} ({last.evidence}/run.log)" if last else _NOT_GOOD
    return "the command is flaky at both ends alike"


def _advice(
    task: Task,
    search: Search,
    conclusion: Conclusion,
    suspects: Sequence[Suspicion],
    needed: int | None,
    ends: dict[str, str],
) -> str:
    if conclusion is Conclusion.FOUND and len(suspects) == 1:
        if suspects[0].is_merge or task.first_parent:
            sha = suspects[0].commit[:12]
            return f"if it is a merge, look inside it: seatrial bisect --good {sha}^1 --bad {sha} ..."
        return ""
    if conclusion is Conclusion.END_UNTESTABLE:
        return "choose another GOOD or BAD, or fix what prevents the verdict there"
    if conclusion is Conclusion.DRIFT and search.belief().likelihoods.drift_with_time > 0.5:
        return "find out what changes on the machines (load, clocks, caches, data); then run GOOD again"
    if conclusion is Conclusion.DRIFT:
        return "choose ends closer together, around the largest step of the drift"
    if conclusion is Conclusion.OUT_OF_BUDGET and "not judged" in ends.values():
        return "raise --budget or --max-runs, then continue with --resume"
    if (
        conclusion is Conclusion.OUT_OF_BUDGET
        and search.belief().no_culprit > 1 - search.settings.credibility
    ):
        runs = f"about {needed} runs of each end" if needed else "more runs of each end"
        return f"{runs} would distinguish them; a metric with less noise (longer window, fixed seeds) needs fewer"
    if conclusion in (Conclusion.OUT_OF_BUDGET, Conclusion.FOUND, Conclusion.CANNOT_NARROW):
        information = search.information()
        position = int(information.argmax())
        if information[position] > 0:
            return f"the most informative next run is at {search.history.commit(position).sha[:12]}"
        return "test a skipped commit by hand and add `git bisect good HASH` or `git bisect bad HASH` to the journal"
    if conclusion is Conclusion.NO_CULPRIT and task.question is Question.PASS_FAIL:
        why = _why_no_culprit(search, ())
        if why == _NOT_BAD:
            return "check that this command shows the fault on this machine, or choose a BAD where it does"
        if why == _NOT_GOOD:
            return "check that the command runs at all, or choose an older GOOD where it passes"
        return f"failure rates that change by less than {task.smallest_rate_change:g} are ignored: --smallest-change"
    if conclusion is Conclusion.NO_CULPRIT and task.worse is not None:
        return (
            f"only {task.worse} values of the metric count as worse: --worse {EITHER} searches for any change"
        )
    return ""
