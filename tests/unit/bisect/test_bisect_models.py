"""The likelihoods and the expected information, held to brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from seatrial.bisect.exact import exact_likelihoods
from seatrial.bisect.history import Commit, History
from seatrial.bisect.likelihood import Likelihoods, expected_information, posterior
from seatrial.bisect.passfail import Counted, pass_fail_likelihoods
from seatrial.bisect.shift import shift_likelihoods


def _counted(fails: list[float], passes: list[float]) -> Counted:
    """Return the counts of every position, ends included."""
    positions = np.arange(len(fails))
    return Counted(
        positions, np.array(fails), np.array(passes), (positions > 0) & (positions < len(fails) - 1)
    )


def _merge_history() -> History:
    """GOOD - a - b - m with a side branch s (from a) merged by m."""
    good = Commit(sha="g")
    return History.of(
        good,
        [
            Commit(sha="a", parents=("g",)),
            Commit(sha="b", parents=("a",)),
            Commit(sha="s", parents=("a",)),
            Commit(sha="m", parents=("b", "s")),
        ],
    )


def test_a_commit_affects_exactly_its_descendants() -> None:
    affected = _merge_history().affected_PH
    assert affected.tolist() == [
        [False, False, False, False],
        [True, False, False, False],
        [True, True, False, False],
        [True, False, True, False],
        [True, True, True, True],
    ]


def test_expected_information_is_the_mutual_information_of_outcome_and_culprit() -> None:
    generator = np.random.default_rng(3)
    affected = _merge_history().affected_PH
    weights = generator.dirichlet(np.ones(5))
    before, after = generator.dirichlet(np.ones(3), size=5), generator.dirichlet(np.ones(3), size=5)
    after[-1] = before[-1]
    told = expected_information(
        affected.astype(np.float32),
        weights,
        Likelihoods(log_H1=np.zeros(5), before_H1Q=before, after_H1Q=after),
    )
    for position in range(5):
        joint = np.array(
            [weights[h] * (after[h] if h < 4 and affected[position, h] else before[h]) for h in range(5)]
        )
        independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
        assert told[position] == pytest.approx(float((joint * np.log(joint / independent)).sum()), abs=2e-6)


def test_pass_fail_evidence_prefers_the_commit_where_failures_begin() -> None:
    history = History.linear(4)
    counted = _counted([0.0, 0, 0, 5, 5], [5.0, 5, 5, 0, 0])
    told = pass_fail_likelihoods(history.affected_PH, counted, 0.35)
    assert int(np.argmax(told.log_H1)) == 2


def test_pass_fail_depends_only_on_the_counts_of_each_side() -> None:
    history = History.linear(3)
    one = pass_fail_likelihoods(history.affected_PH, _counted([0.0, 1, 0, 2], [2.0, 1, 1, 0]), 0.35)
    other = pass_fail_likelihoods(history.affected_PH, _counted([1.0, 0, 0, 2], [1.0, 2, 1, 0]), 0.35)
    assert one.log_H1[1] == pytest.approx(other.log_H1[1])


def test_equal_rates_at_both_ends_raise_no_culprit_in_proportion_to_the_runs() -> None:
    history = History.linear(8)
    prior = np.append(np.full(8, 0.1), 0.2)
    odds = []
    for runs in (10.0, 20.0, 40.0):
        fails, passes = np.zeros(9), np.zeros(9)
        fails[[0, 8]] = passes[[0, 8]] = runs / 2
        counted = _counted(fails.tolist(), passes.tolist())
        belief = posterior(pass_fail_likelihoods(history.affected_PH, counted, 0.35), prior)
        odds.append(math.log(belief[-1] / belief[:-1].sum()))
    assert odds[2] - odds[1] > 1.5 * (odds[1] - odds[0]) > 1.5


def test_metric_likelihood_agrees_with_numerical_integration() -> None:
    """The closed form over the mean, and the grid over sd and shift, against quadrature of the same prior."""
    history = History.linear(3)
    positions = np.array([0, 0, 1, 2, 3, 3], dtype=np.float64)
    values = np.array([0.1, -0.3, 0.2, 2.6, 2.9, 2.2])
    told = shift_likelihoods(history.affected_PH, positions, values)

    def log_likelihood(after: np.ndarray) -> float:
        def inner(log_sd: float, log_shift: float, sign: float) -> float:
            sd, shift = math.exp(log_sd), sign * 2.4 * math.exp(0.2 * log_shift)
            rest = values - shift * sd * after
            squares = float(((rest - rest.mean()) ** 2).sum())
            return math.exp(-0.5 * log_shift**2 - squares / (2 * sd**2)) * sd ** -(len(values) - 1)

        overall = float(values.std(ddof=1))
        low, high = math.log(0.06 * overall), math.log(2.0 * overall)
        total = sum(integrate.dblquad(inner, -1.8, 1.8, low, high, args=(sign,))[0] for sign in (1.0, -1.0))
        return math.log(total)

    exact = [log_likelihood(history.affected_PH[positions.astype(int), h].astype(float)) for h in range(3)]
    assert np.diff(told.log_H1[:-1]) == pytest.approx(np.diff(exact), abs=0.15)


def test_metric_predictions_are_centred_on_the_values_of_each_side() -> None:
    history = History.linear(2)
    positions = np.array([0] * 12 + [2] * 12, dtype=np.float64)
    values = np.concatenate(
        [stats.norm.ppf((np.arange(12) + 0.5) / 12), 6 + stats.norm.ppf((np.arange(12) + 0.5) / 12)]
    )
    told = shift_likelihoods(history.affected_PH, positions, values)
    bins = told.before_H1Q.shape[1]
    assert np.argmax(told.before_H1Q[0]) < bins / 2 < np.argmax(told.after_H1Q[0])


def test_equal_values_teach_nothing() -> None:
    told = shift_likelihoods(History.linear(3).affected_PH, np.array([0.0, 3.0]), np.array([1.0, 1.0]))
    assert np.ptp(told.log_H1) == 0


@pytest.mark.parametrize(
    ("failed", "passed", "possible"),
    [
        ([3], [0], {0, 1, 2}),
        ([2, 3], [0, 1], {1}),
        ([3], [0, 2], {2}),
        ([], [0, 3], {"none"}),
        ([0, 3], [], {"none"}),
    ],
)
def test_exact_results_rule_suspects_out(failed: list[int], passed: list[int], possible: set[object]) -> None:
    history = History.linear(3)
    fails, passes = np.zeros(4, dtype=bool), np.zeros(4, dtype=bool)
    fails[failed], passes[passed] = True, True
    told = exact_likelihoods(history.affected_PH, fails, passes)
    assert told is not None
    left = {h for h in range(3) if told.log_H1[h] == 0} | ({"none"} if told.log_H1[3] == 0 else set())
    assert left == possible


def test_contradicting_exact_results_are_refused() -> None:
    fails, passes = np.array([False, True, False, True]), np.array([True, False, True, False])
    assert exact_likelihoods(History.linear(3).affected_PH, fails, passes) is None
