"""The likelihoods and the expected information, held to brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from seatrial.bisect.evidence_model import exact_likelihoods
from seatrial.bisect.history import Commit, History
from seatrial.bisect.likelihood import Likelihoods, MetricPrior, Worse, expected_information, posterior
from seatrial.bisect.models import Counted, pass_fail_likelihoods, shift_likelihoods


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


@pytest.mark.parametrize(("centre", "spread", "is_stated"), [(2.4, 0.2, False), (3.5, 0.4, True)])
def test_metric_likelihood_agrees_with_numerical_integration(
    centre: float, spread: float, is_stated: bool
) -> None:
    """The closed form over the mean, and the grid over sd and shift, against quadrature of the same priors."""
    history = History.linear(3)
    positions = np.array([0, 0, 1, 2, 3, 3], dtype=np.float64)
    values = np.array([0.1, -0.3, 0.2, 2.6, 2.9, 2.2])
    told = shift_likelihoods(history.affected_PH, positions, values)
    log_H1 = told.stated().log_H1 if is_stated else told.log_H1

    def log_likelihood(after: np.ndarray) -> float:
        def inner(log_sd: float, log_shift: float, sign: float) -> float:
            sd, shift = math.exp(log_sd), sign * centre * math.exp(spread * log_shift)
            rest = values - shift * sd * after
            squares = float(((rest - rest.mean()) ** 2).sum())
            return math.exp(-0.5 * log_shift**2 - squares / (2 * sd**2)) * sd ** -(len(values) - 1)

        overall = float(values.std(ddof=1))
        low, high = math.log(0.06 * overall), math.log(2.0 * overall)
        total = sum(integrate.dblquad(inner, -1.8, 1.8, low, high, args=(sign,))[0] for sign in (1.0, -1.0))
        return math.log(total)

    exact = [log_likelihood(history.affected_PH[positions.astype(int), h].astype(float)) for h in range(3)]
    assert np.diff(log_H1[:-1]) == pytest.approx(np.diff(exact), abs=0.15)


def test_stated_likelihood_of_rates_agrees_with_numerical_integration() -> None:
    """Pairs of rates count in proportion to the fourth power of their difference."""
    history = History.linear(3)
    fails, passes = [0.0, 2, 9, 9], [9.0, 8, 1, 1]
    told = pass_fail_likelihoods(history.affected_PH, _counted(fails, passes), 0.35)

    def log_likelihood(first_after: int) -> float:
        before, after = (slice(None, first_after), slice(first_after, None))

        def inner(q: float, p: float) -> float:
            side = p ** sum(fails[before]) * (1 - p) ** sum(passes[before])
            return float((q - p) ** 4 * side * q ** sum(fails[after]) * (1 - q) ** sum(passes[after]))

        return math.log(integrate.dblquad(inner, 0, 0.65, lambda p: p + 0.35, 1)[0])

    exact = [log_likelihood(first) for first in (1, 2, 3)]
    assert np.diff(told.stated().log_H1[:-1]) == pytest.approx(np.diff(exact), abs=0.3)
    assert not np.allclose(told.stated().log_H1, told.log_H1, atol=0.05)


@pytest.mark.parametrize(("centre", "spread", "is_stated"), [(2.0, 0.2, False), (3.5, 0.4, True)])
def test_likelihood_at_a_known_deviation_agrees_with_numerical_integration(
    centre: float, spread: float, is_stated: bool
) -> None:
    """What decides is more cautious than where the deviation is learned: shifts of 2 sd, not 2.4."""
    history = History.linear(3)
    positions, values = np.array([0, 0, 1, 2, 3]), np.array([0.1, -0.3, 1.2, 1.9, 2.6])
    told = shift_likelihoods(history.affected_PH, positions.astype(float), values, MetricPrior(sd=1.0))

    def log_likelihood(after: np.ndarray) -> float:
        def inner(log_shift: float, sign: float) -> float:
            rest = values - sign * centre * math.exp(spread * log_shift) * after
            return math.exp(-0.5 * log_shift**2 - float(((rest - rest.mean()) ** 2).sum()) / 2)

        return math.log(sum(integrate.quad(inner, -2.5, 2.5, args=(sign,))[0] for sign in (1.0, -1.0)))

    exact = [log_likelihood(history.affected_PH[positions, h].astype(float)) for h in range(3)]
    log_H1 = told.stated().log_H1 if is_stated else told.log_H1
    assert np.diff(log_H1[:-1]) == pytest.approx(np.diff(exact), abs=0.05)


def test_likelihood_with_earlier_runs_agrees_with_numerical_integration() -> None:
    """Their spread counts as that of the search's own runs; their level, which may be another machine's, does not."""
    history = History.linear(3)
    positions, values = np.array([0, 1, 2, 3]), np.array([0.1, 0.4, 1.9, 2.6])
    healthy = (0.3, -0.5, 0.9, -0.2, 0.1, 0.6)

    def told_of(level: float) -> Likelihoods:
        known = MetricPrior(healthy=tuple(level + value for value in healthy))
        return shift_likelihoods(history.affected_PH, positions.astype(float), values, known)

    def log_likelihood(after: np.ndarray) -> float:
        def inner(log_sd: float, log_shift: float, sign: float) -> float:
            sd, shift = math.exp(log_sd), sign * 2.4 * math.exp(0.2 * log_shift)
            squares = sum(
                float(((rest - rest.mean()) ** 2).sum())
                for rest in (values - shift * sd * after, np.array(healthy))
            )
            free = len(values) - 1 + len(healthy) - 1
            return math.exp(-0.5 * log_shift**2 - squares / (2 * sd**2)) * sd**-free

        low, high = math.log(0.05), math.log(2.5)
        total = sum(integrate.dblquad(inner, -1.8, 1.8, low, high, args=(sign,))[0] for sign in (1.0, -1.0))
        return math.log(total)

    exact = [log_likelihood(history.affected_PH[positions, h].astype(float)) for h in range(3)]
    assert np.diff(told_of(0.0).log_H1[:-1]) == pytest.approx(np.diff(exact), abs=0.1)
    assert told_of(100.0).log_H1 == pytest.approx(told_of(0.0).log_H1)


def test_a_declared_direction_leaves_the_shifts_of_the_other_out() -> None:
    """Both directions together are the mean of the two, as either is as likely before."""
    history = History.linear(3)
    positions, values = np.array([0.0, 0, 1, 2, 3, 3]), np.array([0.1, -0.3, 0.2, 2.6, 2.9, 2.2])
    both, higher, lower = (
        shift_likelihoods(history.affected_PH, positions, values, MetricPrior(worse=worse))
        for worse in (None, Worse.HIGHER, Worse.LOWER)
    )
    mean = np.logaddexp(higher.log_H1, lower.log_H1) - math.log(2)
    assert both.log_H1 == pytest.approx(mean)
    assert higher.log_H1[1] > higher.log_H1[-1] > lower.log_H1[1]


def test_hypotheses_in_another_order_have_the_same_likelihoods_and_predictions() -> None:
    """Only the distinct ones are computed, and what is not told apart yet is equal."""
    affected = _merge_history().affected_PH
    positions, values = np.array([0.0, 4, 0, 2, 4]), np.array([0.3, 3.1, -0.2, 0.5, 2.8])
    told = shift_likelihoods(affected, positions, values)
    order = np.array([2, 0, 3, 1])
    mixed = shift_likelihoods(affected[:, order], positions, values)
    assert mixed.log_H1 == pytest.approx(np.append(told.log_H1[order], told.log_H1[-1]))
    assert mixed.after_H1Q[:-1] == pytest.approx(told.after_H1Q[:-1][order])
    assert told.log_H1[0] == told.log_H1[1] < told.log_H1[2] == told.log_H1[3]


def test_what_is_not_known_of_the_noise_widens_the_prediction() -> None:
    """The same spread of values, seen in four runs and in forty."""
    history = History.linear(1)
    widths = []
    for runs in (2, 20):
        side = stats.norm.ppf((np.arange(runs) + 0.5) / runs)
        values = np.concatenate([side / side.std(ddof=1), 4 + side / side.std(ddof=1)])
        told = shift_likelihoods(history.affected_PH, np.repeat([0.0, 1.0], runs), values)
        bins = np.linspace(
            *(np.array([values.min(), values.max()]) + np.array([-1.5, 1.5]) * values.std(ddof=1)), 16
        )
        chance = told.before_H1Q[0]
        widths.append(math.sqrt(chance @ bins**2 - (chance @ bins) ** 2))
    assert widths[0] > 1.2 * widths[1]
    assert widths[1] == pytest.approx(math.sqrt(1 + 1 / 40), rel=0.2)


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
