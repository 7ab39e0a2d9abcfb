"""The answer of a bisect: one value from which every view is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.bisect.ends import end_of, runs_to_separate
from seatrial.bisect.evidence_model import Question
from seatrial.bisect.outcomes import RunOutcome
from seatrial.bisect.records import Run
from seatrial.bisect.search import Conclusion, Search
from seatrial.bisect.settings import EITHER
from seatrial.bisect.task import Task
from seatrial.verdict import EXIT_BLOCKED, EXIT_FAIL, EXIT_PASS


@dataclass(frozen=True)
class Suspicion:
    """One commit of the credible set."""

    commit: str
    subject: str
    probability: float
    is_merge: bool


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a bisect concluded, on what evidence, at what cost."""

    conclusion: Conclusion
    sentence: str
    """The answer in one sentence."""
    suspects: tuple[Suspicion, ...]
    """The fewest commits that hold the credibility, likeliest first."""
    no_culprit: float
    """Probability that GOOD and BAD do not differ."""
    drift: float
    """Probability that the metric changes little by little."""
    good: str
    bad: str
    """What was seen at the two ends."""
    advice: str
    """What would help next; empty when nothing is open."""
    num_runs: int
    minutes: float
    exact: bool

    @property
    def cost(self) -> str:
        """Say how many runs, and how long they took."""
        return f"{self.num_runs} run{'' if self.num_runs == 1 else 's'}, {self.minutes:.1f} minutes"

    @property
    def exit_code(self) -> int:
        """0: a culprit is named. 1: there is none. 3: not decided."""
        decided = {
            Conclusion.FOUND: EXIT_PASS,
            Conclusion.NO_CULPRIT: EXIT_FAIL,
            Conclusion.DRIFT: EXIT_FAIL,
        }
        return decided.get(self.conclusion, EXIT_BLOCKED)


def answer_of(task: Task, search: Search, runs: Sequence[Run], conclusion: Conclusion) -> Answer:
    """Draw the conclusion from a search that has stopped."""
    history = search.history
    good = end_of(history, search.observations, 0)
    bad = end_of(history, search.observations, history.bad_position)
    belief = search.stated()
    named = conclusion not in (Conclusion.NO_CULPRIT, Conclusion.DRIFT, Conclusion.END_UNTESTABLE)
    chosen = [(h, float(belief.suspects_H[h])) for h, _ in search.credible_set()] if named else []
    suspects = tuple(
        Suspicion(c.sha, c.subject, probability, len(c.parents) > 1)
        for c, probability in ((history.suspects[h], probability) for h, probability in chosen)
    )
    needed = runs_to_separate(good, bad, task.question, task.smallest_rate_change)
    told = {"good": good.describe(task.question), "bad": bad.describe(task.question)}
    return Answer(
        conclusion=conclusion,
        sentence=_sentence(search, runs, conclusion, suspects, told),
        suspects=suspects,
        no_culprit=belief.no_culprit,
        drift=belief.drift,
        advice=_advice(task, search, conclusion, suspects, needed, told),
        num_runs=sum(bool(run.evidence) for run in runs),
        minutes=sum(run.seconds for run in runs) / 60,
        exact=belief.exact,
        **told,
    )


def _sentence(
    search: Search,
    runs: Sequence[Run],
    conclusion: Conclusion,
    suspects: Sequence[Suspicion],
    told: dict[str, str],
) -> str:
    belief = search.stated()
    if conclusion is Conclusion.FOUND:
        if len(suspects) == 1:
            only = suspects[0]
            return (
                f"{only.commit[:12]} ({only.subject}) is the culprit with probability {only.probability:.3f}"
            )
        mass = sum(item.probability for item in suspects)
        return f"one of {len(suspects)} commits that no probe tells apart is the culprit (probability {mass:.3f})"
    if conclusion is Conclusion.DRIFT:
        with_time = belief.likelihoods.drift_with_time > 0.5
        how = "with time, whatever is run" if with_time else "with the commits, many of them"
        return (
            f"no single culprit: the metric drifts {how} (probability {belief.drift:.3f}): "
            f"GOOD {told['good']}, BAD {told['bad']}"
        )
    if conclusion is Conclusion.NO_CULPRIT:
        return (
            f"no culprit (probability {belief.no_culprit:.3f}): GOOD {told['good']}, BAD {told['bad']}; "
            + _why_no_culprit(search, runs)
        )
    if conclusion is Conclusion.END_UNTESTABLE:
        ends = {
            search.history.good.sha: "GOOD",
            search.history.commit(search.history.bad_position).sha: "BAD",
        }
        last = next(
            (run for run in reversed(runs) if run.commit in ends and run.outcome is not RunOutcome.PASS), None
        )
        told_of = f": {ends[last.commit]} {last.commit[:12]}: {last.reason}" if last else ""
        return f"an end of the range could not be judged{told_of}"
    if conclusion is Conclusion.CANNOT_NARROW:
        return f"{len(suspects)} commits remain, and every probe that would tell them apart is untestable"
    if "not judged" in told.values():
        return "the budget ended before both ends had been run once"
    if belief.no_culprit > 1 - search.settings.credibility:
        return (
            f"the budget ended before GOOD ({told['good']}) and BAD ({told['bad']}) could be distinguished "
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
    told: dict[str, str],
) -> str:
    if conclusion is Conclusion.FOUND and len(suspects) == 1:
        if suspects[0].is_merge or task.first_parent:
            sha = suspects[0].commit[:12]
            return f"if it is a merge, look inside it: seatrial bisect --good {sha}^1 --bad {sha} ..."
        return ""
    if conclusion is Conclusion.END_UNTESTABLE:
        return "give another GOOD or BAD, or mend what prevents the verdict there"
    if conclusion is Conclusion.DRIFT and search.belief().likelihoods.drift_with_time > 0.5:
        return "see what changes on the machines (load, clocks, caches, data); run GOOD again before you look further"
    if conclusion is Conclusion.DRIFT:
        return "give ends that lie nearer to one another, where one step of the drift is the largest"
    if conclusion is Conclusion.OUT_OF_BUDGET and "not judged" in told.values():
        return "raise --budget or --max-runs; --resume goes on from here"
    if (
        conclusion is Conclusion.OUT_OF_BUDGET
        and search.belief().no_culprit > 1 - search.settings.credibility
    ):
        runs = f"about {needed} runs of each end" if needed else "more runs of each end"
        return (
            f"{runs} would tell them apart; a metric with less noise (longer window, fixed seeds) needs fewer"
        )
    if conclusion in (Conclusion.OUT_OF_BUDGET, Conclusion.FOUND, Conclusion.CANNOT_NARROW):
        information = search.information()
        position = int(information.argmax())
        if information[position] > 0:
            return f"the next probe that would help most is {search.history.commit(position).sha[:12]}"
        return "test a skipped commit by hand and add `git bisect good HASH` or `git bisect bad HASH` to the journal"
    if conclusion is Conclusion.NO_CULPRIT and task.question is Question.PASS_FAIL:
        why = _why_no_culprit(search, ())
        if why == _NOT_BAD:
            return "see that the fault shows with this command on this machine, or give a BAD where it does"
        if why == _NOT_GOOD:
            return "see that the command runs at all, or give an older GOOD where it passes"
        return f"a change of the failure rate below {task.smallest_rate_change:g} is not looked for: --smallest-change"
    if conclusion is Conclusion.NO_CULPRIT and task.worse is not None:
        return f"only {task.worse} values of the metric were taken for worse: --worse {EITHER} looks for any change"
    return ""
