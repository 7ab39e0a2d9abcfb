"""Broken commits are facts and not many samples, a drift is no commit's fault, and what is stated is right as often."""

from __future__ import annotations

import numpy as np
import pytest

from seatrial.bisect.evidence_model import Observation, Question
from seatrial.bisect.history import History
from seatrial.bisect.likelihood import Settings
from seatrial.bisect.search import Conclusion, Probe, Search, Stop
from seatrial.bisect.simulate import FailureRates, MetricShift, measure, with_settings


def _searched(question: Question, culprit: int, gone: range, seed: int) -> tuple[Search, Stop, int]:
    """Search where the runs of some positions leave nothing; return also how many of them were run."""
    search, generator, wasted = Search(History.linear(40), question), np.random.default_rng(seed), 0
    while isinstance(decision := search.decide(), Probe):
        p = decision.position
        wasted += p in gone
        if p in gone:
            search.record(Observation(position=p, failed=True, lost=True))
        elif question is Question.METRIC:
            value = float(generator.normal() + 4 * (p > culprit))
            search.record(Observation(position=p, failed=False, value=value))
        else:
            search.record(
                Observation(position=p, failed=bool(generator.random() < (0.9 if p > culprit else 0.1)))
            )
    assert isinstance(decision, Stop)
    return search, decision, wasted


@pytest.mark.parametrize("question", list(Question))
@pytest.mark.parametrize("first", [20, 21, 22])
def test_broken_commits_beside_the_culprit_widen_the_answer(question: Question, first: int) -> None:
    """Positions 21 to 23 crash every time; the culprit, suspect c20, is the first, the second or the third of them."""
    gone = range(21, 24)
    search, stop, wasted = _searched(question, first, gone, seed=first)
    assert stop.conclusion is Conclusion.FOUND
    named = {suspect for suspect, _ in search.credible_set()}
    assert {20, 21, 22} <= named <= {20, 21, 22, 23}
    assert wasted <= 2 * len(gone)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("culprit", [20, 24])
def test_four_broken_commits_in_a_row_hide_no_culprit_at_their_edge(culprit: int, seed: int) -> None:
    """They crash, BAD does not: that four of them crash must not speak for a culprit where the crashes begin."""
    search, stop, wasted = _searched(Question.METRIC, culprit, range(21, 25), seed=seed)
    assert stop.conclusion is Conclusion.FOUND
    assert {suspect for suspect, _ in search.credible_set()} == {20, 21, 22, 23, 24}
    assert wasted == 8


def test_a_broken_commit_far_from_the_culprit_costs_two_runs_and_no_certainty() -> None:
    search, stop, wasted = _searched(Question.METRIC, 30, range(20, 21), seed=3)
    assert stop.conclusion is Conclusion.FOUND
    assert wasted <= 2
    assert [suspect for suspect, _ in search.credible_set()] == [30]


@pytest.mark.parametrize("question", list(Question))
def test_where_bad_itself_crashes_crashing_is_the_fault(question: Question) -> None:
    search = Search(History.linear(32), question)
    generator = np.random.default_rng(1)
    while isinstance(decision := search.decide(), Probe):
        crashed = decision.position > 12
        value = float(generator.normal()) if question is Question.METRIC and not crashed else None
        search.record(Observation(position=decision.position, failed=crashed, value=value, lost=crashed))
    assert decision == Stop(Conclusion.FOUND)
    assert [suspect for suspect, _ in search.credible_set()] == [12]


def test_repeating_a_commit_that_always_fails_teaches_no_more_than_that_it_may_be_broken() -> None:
    """Later commits pass: the odds that this one is broken, and not the culprit, do not fall with its repeats."""
    beliefs = []
    for repeats in (3, 30):
        search = Search(History.linear(16), Question.PASS_FAIL)
        for position, failed, times in ((0, False, 3), (16, True, 3), (8, True, repeats), (10, False, 3)):
            for _ in range(times):
                search.record(Observation(position=position, failed=failed))
        beliefs.append(search.belief().suspects_H[10:].sum())
    assert beliefs[0] > 0.4
    assert beliefs[1] > beliefs[0] - 0.1


@pytest.mark.parametrize(
    "world", [MetricShift(0.0, with_commits=8.0), MetricShift(0.0, with_time=6.0)], ids=["commits", "time"]
)
def test_a_drift_is_seen_as_such(world: MetricShift) -> None:
    figures = measure(
        world,
        with_settings(Settings()),
        num_suspects=64,
        trials=40,
        seed=7,
        wanted=Conclusion.DRIFT,
    )
    assert figures.share_right >= 0.85


def test_both_ends_that_rise_with_time_are_a_drift_with_time() -> None:
    search = Search(History.linear(16), Question.METRIC)
    generator = np.random.default_rng(2)
    for number in range(12):
        value = float(0.5 * number + 0.3 * generator.normal())
        search.record(Observation(position=16 * (number % 2), failed=False, value=value))
    belief = search.belief()
    assert belief.drift > 0.95
    assert belief.likelihoods.drift_with_time > 0.9
    assert search.decide() == Stop(Conclusion.DRIFT)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "rates",
    [(0.05, 0.6), (0.0, 0.5), (0.5, 1.0)],
)
def test_asymmetric_rates_are_stated_as_they_are_right(rates: tuple[float, float]) -> None:
    """Three standard errors of 120 trials, and the two points that are allowed."""
    figures = measure(
        FailureRates(*rates), with_settings(Settings()), num_suspects=128, trials=120, seed=4040
    )
    assert figures.stated is not None and figures.right_of_answers is not None
    error = (figures.stated * (1 - figures.stated) / 120) ** 0.5
    assert figures.right_of_answers >= figures.stated - 0.02 - 3 * error


def test_what_is_stated_of_a_drift_is_one_probability_of_several_that_sum_to_one() -> None:
    """A drift is a hypothesis beside each suspect and "no culprit", when a search goes on and when it has ended."""
    search = Search(History.linear(16), Question.METRIC)
    generator = np.random.default_rng(2)
    for number in range(9):
        value = float(0.5 * number + 0.3 * generator.normal())
        search.record(Observation(position=16 * (number % 2), failed=False, value=value))
    for belief in (search.belief(), search.stated()):
        assert 0.3 < belief.drift < 1
        assert belief.suspects_H.sum() + belief.no_culprit + belief.drift == pytest.approx(1.0)
