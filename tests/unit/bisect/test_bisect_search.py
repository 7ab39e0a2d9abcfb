"""The search: how many runs, which answer, and what it refuses to claim."""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import Commit, History, suspect_weights
from seatrial.bisect.likelihood import MetricPrior, Noise, Settings, Worse
from seatrial.bisect.search import Conclusion, Probe, Search, Stop, Wait
from seatrial.bisect.simulate import (
    FailureRates,
    MetricShift,
    Moment,
    Strategy,
    measure,
    repeated_bisection,
    with_settings,
)
from seatrial.errors import UsageError

EXACT = Settings(noise=Noise.NONE)


@dataclass(frozen=True)
class SameEveryTime:
    """A deterministic command with a metric: its logs agree to the last bit."""

    question = Question.METRIC

    def run(self, moment: Moment, generator: np.random.Generator) -> Observation:
        """Run it once."""
        return Observation(
            position=0, failed=False, value=0.25 + 0.125 * moment.affected, fingerprint=str(moment.affected)
        )


def _search_all(search: Search, fails: Callable[[int], bool]) -> tuple[Stop, int]:
    runs = 0
    while isinstance(decision := search.decide(), Probe):
        search.record(Observation(position=decision.position, failed=fails(decision.position)))
        runs += 1
    assert isinstance(decision, Stop)
    return decision, runs


@pytest.mark.parametrize("num_suspects", [1, 2, 3, 7, 8, 20, 64, 100, 128])
def test_declared_determinism_costs_the_two_ends_and_a_binary_search(num_suspects: int) -> None:
    history = History.linear(num_suspects)
    most = math.ceil(math.log2(num_suspects))
    for culprit in range(num_suspects):
        search = Search(history, Question.PASS_FAIL, EXACT)
        stop, runs = _search_all(search, lambda p, c=culprit: p > c)
        assert stop.conclusion is Conclusion.FOUND
        assert int(search.belief().suspects_H.argmax()) == culprit
        # BAD is one of the suspects' runs when there is only one.
        assert runs <= most + 2


def test_the_number_of_runs_equals_that_of_git_bisect_plus_the_ends(tmp_path: Path) -> None:
    """Held to git itself on a line of 21 commits, over every culprit."""
    num_suspects = 21

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    git("init", "-q")
    for number in range(num_suspects + 1):
        (tmp_path / "n").write_text(str(number))
        git("add", "n")
        git("commit", "-qm", str(number))
    hashes = git("rev-list", "--reverse", "HEAD").split()
    theirs, ours = 0, 0
    for culprit in range(num_suspects):
        git("bisect", "start", hashes[-1], hashes[0])
        said = git("bisect", "run", "sh", "-c", f"test $(cat n) -le {culprit}")
        assert f"{hashes[culprit + 1]} is the first bad commit" in said
        theirs += said.count("running ")
        git("bisect", "reset")
        search = Search(History.linear(num_suspects), Question.PASS_FAIL, EXACT)
        ours += _search_all(search, lambda p, c=culprit: p > c)[1]
    assert ours <= theirs + 2 * num_suspects


def test_logs_that_agree_to_the_bit_make_a_metric_search_plain_without_a_declaration() -> None:
    figures = measure(SameEveryTime(), with_settings(Settings()), num_suspects=128, trials=40, seed=1)
    assert (figures.p90_runs, figures.share_right) == (9, 1.0)


def test_a_harmless_commit_that_changes_numbers_does_not_stop_a_deterministic_search() -> None:
    """Values are 1.0 before, 3.0 after, and a commit in between shifts the last digits of all that follow."""
    history = History.linear(32)
    search = Search(history, Question.METRIC)
    probed: list[int] = []
    while isinstance(decision := search.decide(), Probe):
        p = decision.position
        value = (3.0 if p > 20 else 1.0) + (0.01 * (p % 5))
        search.record(Observation(position=p, failed=False, value=value, fingerprint=f"{p // 2}"))
        probed.append(p)
    assert isinstance(decision, Stop)
    assert decision.conclusion is Conclusion.FOUND
    assert int(search.belief().suspects_H.argmax()) == 20


@pytest.mark.parametrize(
    ("world", "least_right", "most_median"),
    [
        (FailureRates(0.1, 0.9), 0.97, 24),
        pytest.param(FailureRates(0.2, 0.8), 0.93, 48, marks=pytest.mark.nightly),
        pytest.param(FailureRates(0.0, 0.5), 0.85, 70, marks=pytest.mark.nightly),
        (MetricShift(3.0), 0.96, 20),
        pytest.param(MetricShift(2.0), 0.91, 34, marks=pytest.mark.nightly),
        pytest.param(MetricShift(-6.0), 0.98, 14, marks=pytest.mark.nightly),
    ],
)
def test_noisy_searches_name_the_culprit_at_low_cost(
    world: FailureRates | MetricShift, least_right: float, most_median: float
) -> None:
    """Wide bounds (the exact figures are the benchmark's): a search that lost its way fails them by far."""
    figures = measure(world, with_settings(Settings()), num_suspects=64, trials=100, seed=11)
    assert figures.share_right >= least_right
    assert figures.median_runs <= most_median


@pytest.mark.parametrize(
    ("shift", "worse", "least_right", "most_median"),
    [
        pytest.param(3.0, None, 0.98, 17, marks=pytest.mark.nightly),
        pytest.param(2.0, None, 0.94, 30, marks=pytest.mark.nightly),
        pytest.param(3.0, Worse.HIGHER, 0.98, 16, marks=pytest.mark.nightly),
        pytest.param(2.0, Worse.HIGHER, 0.94, 30, marks=pytest.mark.nightly),
    ],
)
def test_a_metric_whose_noise_is_learned_takes_few_runs(
    shift: float, worse: Worse | None, least_right: float, most_median: float
) -> None:
    """In docs/evidence/bisect.md they are 17 and 29.5: outliers, unequal noise and drifts cost three runs at 2 sd."""
    told = with_settings(Settings(metric=MetricPrior(worse=worse)))
    figures = measure(MetricShift(shift), told, num_suspects=128, trials=150, seed=17)
    assert figures.share_right >= least_right
    assert figures.median_runs <= most_median


@pytest.mark.nightly
def test_noise_that_earlier_runs_have_shown_saves_runs() -> None:
    """The figures of many searches are in docs/evidence/bisect.md."""
    healthy = np.array([statistics.NormalDist().inv_cdf((number + 0.5) / 12) for number in range(12)])
    known = MetricPrior(healthy=tuple((healthy / healthy.std(ddof=1)).tolist()))
    before, learned = (
        measure(MetricShift(3.0), with_settings(settings), num_suspects=128, trials=50, seed=19)
        for settings in (Settings(metric=known), Settings())
    )
    assert before.share_right >= 0.95
    assert before.median_runs <= learned.median_runs
    assert before.p90_runs < learned.p90_runs


def test_a_change_for_the_better_is_no_culprit_where_the_direction_is_declared() -> None:
    for worse, wanted in ((Worse.LOWER, Conclusion.FOUND), (Worse.HIGHER, Conclusion.NO_CULPRIT)):
        told = with_settings(Settings(metric=MetricPrior(worse=worse)))
        searches = [_named(MetricShift(-3.0), told, seed) for seed in range(30)]
        assert sum(conclusion is wanted for conclusion in searches) >= 28


def test_a_drift_that_has_only_begun_is_not_called_no_culprit_where_the_direction_is_known() -> None:
    """BAD is not yet worse than GOOD in the first runs, which alternate while the machine changes."""
    told = with_settings(Settings(metric=MetricPrior(worse=Worse.HIGHER)))
    drifting = MetricShift(0.0, with_time=6.0)
    figures = measure(drifting, told, num_suspects=64, trials=60, seed=5, wanted=Conclusion.DRIFT)
    assert figures.share_right >= 0.9


@pytest.mark.nightly
def test_a_weak_drift_with_the_commits_blames_no_commit() -> None:
    """With a normal model and a prior of 0.008, one search in four named a commit, and stated 0.966."""
    drifting, strategy = MetricShift(0.0, with_commits=3.0), with_settings(Settings(max_runs=80))
    figures = measure(drifting, strategy, num_suspects=128, trials=25, seed=3, wanted=Conclusion.DRIFT)
    assert figures.share_right >= 0.6
    assert figures.right_of_answers is not None and figures.right_of_answers >= 0.95


@pytest.mark.nightly
@pytest.mark.parametrize(
    "world",
    [
        MetricShift(3.0, noise_after=2.0),
        MetricShift(3.0, noise_after=0.5),
        MetricShift(3.0, outliers=0.05),
        MetricShift(3.0, outliers=0.05, outlier_noise=10.0),
    ],
)
def test_stated_probabilities_are_right_where_the_noise_is_not_normal_or_differs_between_the_sides(
    world: MetricShift,
) -> None:
    """Within two points and two standard errors."""
    figures = measure(world, with_settings(Settings()), num_suspects=128, trials=200, seed=23)
    assert figures.stated is not None and figures.right_of_answers is not None
    error = 2 * np.sqrt(figures.stated * (1 - figures.stated) / figures.trials)
    assert figures.right_of_answers == pytest.approx(figures.stated, abs=0.02 + error)


def _named(world: MetricShift, strategy: Strategy, seed: int) -> Conclusion:
    """Return how one search for a culprit in the middle ends."""
    generator = np.random.default_rng(seed)

    def run(position: int) -> Observation:
        return replace(world.run(Moment(position > 20, 0.0, 0), generator), position=position)

    return strategy(History.linear(40), run, Question.METRIC).conclusion


@pytest.mark.parametrize(
    "world",
    [
        FailureRates(0.1, 0.1),
        *(pytest.param(FailureRates(rate, rate), marks=pytest.mark.nightly) for rate in (0.5, 0.9)),
        MetricShift(0.0),
    ],
)
def test_a_command_that_is_alike_at_both_ends_gets_no_culprit(world: FailureRates | MetricShift) -> None:
    figures = measure(
        world,
        with_settings(Settings()),
        num_suspects=64,
        trials=60,
        seed=5,
        wanted=Conclusion.NO_CULPRIT,
    )
    assert figures.share_right >= 0.9


def test_plain_bisection_is_wrong_half_the_time_at_ten_percent_noise() -> None:
    """The problem that this part exists for, on the same worlds."""
    figures = measure(FailureRates(0.1, 0.9), repeated_bisection(1), num_suspects=128, trials=300, seed=2)
    assert 0.35 < figures.share_right < 0.6


def test_the_next_run_of_a_metric_is_chosen_by_what_is_likely_and_not_by_what_is_cautious() -> None:
    """Its information is the mutual information with the culprit under the prior that answers are stated with."""
    search = Search(History.linear(6), Question.METRIC)
    for position, value in ((0, 0.1), (6, 3.4), (3, 3.2), (2, 0.3)):
        search.record(Observation(position=position, failed=False, value=value))
    stated, cautious = search.stated(), search.belief()
    assert not np.allclose(stated.suspects_H, cautious.suspects_H, atol=1e-3)
    weights = np.append(stated.suspects_H, stated.no_culprit)
    weights /= weights.sum()
    before, after = stated.likelihoods.before_H1Q, stated.likelihoods.after_H1Q
    for position in (1, 4, 5):
        joint = np.array(
            [
                weights[h] * (after if h < 6 and search.history.affected_PH[position, h] else before)[h]
                for h in range(7)
            ]
        )
        apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
        mutual = float((joint * np.log(joint / apart)).sum()) * (1 - stated.drift)
        assert search.information()[position] == pytest.approx(mutual, abs=1e-5)


def test_both_ends_are_run_before_anything_else() -> None:
    search = Search(History.linear(10), Question.PASS_FAIL)
    first = search.decide()
    second = search.decide(pending=[0])
    assert isinstance(first, Probe) and isinstance(second, Probe)
    assert (first.position, second.position) == (0, 10)
    assert isinstance(search.decide(pending=[0, 10]), Wait)


def test_a_bad_that_passes_is_never_blamed() -> None:
    stop, _ = _search_all(Search(History.linear(16), Question.PASS_FAIL, EXACT), lambda p: False)
    assert stop.conclusion is Conclusion.NO_CULPRIT
    noisy, runs = _search_all(Search(History.linear(16), Question.PASS_FAIL), lambda p: False)
    assert noisy.conclusion is Conclusion.NO_CULPRIT
    assert runs < 20


def test_skipped_commits_leave_a_set_that_no_probe_can_split() -> None:
    search = Search(History.linear(16), Question.PASS_FAIL, EXACT)
    for position in (7, 8, 9):
        search.set_aside(position)
    stop, _ = _search_all(search, lambda p: p >= 8)
    assert stop.conclusion is Conclusion.FOUND
    assert sorted(suspect + 1 for suspect, _ in search.credible_set()) == [7, 8, 9, 10]


def test_an_untestable_end_stops_the_search() -> None:
    search = Search(History.linear(4), Question.PASS_FAIL)
    search.set_aside(0)
    assert search.decide() == Stop(Conclusion.END_UNTESTABLE)


def test_parallel_probes_differ_and_split_the_range() -> None:
    search = Search(History.linear(128), Question.PASS_FAIL)
    search.record(Observation(position=0, failed=False))
    search.record(Observation(position=128, failed=True))
    pending: list[int] = []
    for _ in range(3):
        decision = search.decide(pending)
        assert isinstance(decision, Probe)
        pending.append(decision.position)
    gaps = np.diff([0, *sorted(pending), 128])
    assert gaps.min() >= 20


def test_equal_content_shares_results_and_excludes_suspects() -> None:
    """Commit 2 is reverted by commit 3: neither can be the culprit alone, and a run of 1 speaks for 3."""
    good = Commit(sha="0", tree="a")
    trees = ["b", "c", "b", "d"]
    suspects = [Commit(sha=str(n + 1), parents=(str(n),), tree=tree) for n, tree in enumerate(trees)]
    history = History.of(good, suspects)
    assert suspect_weights(history).tolist() == [0.5, 0, 0, 0.5]
    search = Search(history, Question.PASS_FAIL, EXACT)
    stop, runs = _search_all(search, lambda p: p >= 4)
    assert (stop.conclusion, runs) == (Conclusion.FOUND, 3)
    assert search.credible_set() == [(3, 1.0)]


def test_no_difference_between_the_ends_is_refused() -> None:
    history = History.of(Commit(sha="0", tree="a"), [Commit(sha="1", parents=("0",), tree="a")])
    with pytest.raises(UsageError, match="do not differ"):
        suspect_weights(history)


def test_priors_turn_the_first_probe_towards_the_suspicious_commit() -> None:
    history = History.linear(64)
    factors = {commit.sha: 50.0 for commit in history.suspects[55:]}
    search = Search(history, Question.PASS_FAIL, EXACT, suspect_weights(history, factors))
    search.record(Observation(position=0, failed=False))
    search.record(Observation(position=64, failed=True))
    decision = search.decide()
    assert isinstance(decision, Probe) and decision.position > 55


def test_merges_are_searched_as_a_graph() -> None:
    """A fault on a side branch fails at its commit and at the merge, not on the main line beside it."""
    good = Commit(sha="g")
    main = [Commit(sha=f"m{n}", parents=(f"m{n - 1}" if n else "g",)) for n in range(6)]
    side = [Commit(sha=f"s{n}", parents=(f"s{n - 1}" if n else "m1",)) for n in range(6)]
    merge = Commit(sha="merge", parents=("m5", "s5"))
    history = History.of(good, [*main, *side, merge])
    for culprit in range(history.num_suspects):
        search = Search(history, Question.PASS_FAIL, EXACT)
        stop, runs = _search_all(search, lambda p, c=culprit: bool(history.affected_PH[p, c]))
        assert stop.conclusion is Conclusion.FOUND
        assert search.credible_set() == [(culprit, 1.0)]
        assert runs <= 7


def test_crashes_that_come_with_the_culprit_are_evidence_for_it() -> None:
    history = History.linear(32)
    search = Search(history, Question.METRIC)
    generator = np.random.default_rng(0)
    while isinstance(decision := search.decide(), Probe):
        crashed = decision.position > 12
        value = None if crashed else float(generator.normal())
        search.record(Observation(position=decision.position, failed=crashed, value=value))
    assert int(search.belief().suspects_H.argmax()) == 12


@pytest.mark.parametrize("question", list(Question))
def test_choosing_among_1024_commits_is_a_few_products_of_matrices(question: Question) -> None:
    """No bound of time (the benchmark has it): processor time against that of one pass over the whole matrix."""
    history = History.linear(1024)
    search = Search(history, question)
    generator = np.random.default_rng(0)
    for position in (0, 1024, 512, 256, 300):
        failed = position > 280
        value = float(generator.normal() + 3 * failed) if question is Question.METRIC else None
        search.record(Observation(position=position, failed=failed and value is None, value=value))

    def seconds(action: Callable[[], object], repeats: int) -> float:
        return min(_timed(action) for _ in range(repeats))

    def decide() -> object:
        search._belief = None
        return search.decide()

    matrix, columns = np.ones((1025, 1024)), np.ones((1024, 64))
    assert seconds(decide, 5) < 60 * seconds(lambda: matrix @ columns, 5)


def _timed(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started
