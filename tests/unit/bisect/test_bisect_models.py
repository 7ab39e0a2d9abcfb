"""The likelihoods and the expected information, held to brute force."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from seatrial.bisect.evidence_model import exact_likelihoods
from seatrial.bisect.history import Commit, History
from seatrial.bisect.likelihood import Likelihoods, MetricPrior, Worse, expected_information, posterior
from seatrial.bisect.metric_model import shift_likelihoods
from seatrial.bisect.pass_fail_model import Counted, pass_fail_likelihoods


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


CAUTIOUS, CAUTIOUS_SD_KNOWN, STATED = (2.4, 0.2), (2.0, 0.2), (3.5, 0.4)
Normal = tuple[float, float]


def shift_prior(shift: np.ndarray, *parts: tuple[float, Normal]) -> np.ndarray:
    """Return the density of a mixture of log-normal sizes of shift."""
    return np.sum(
        [share * stats.lognorm(spread, scale=centre).pdf(shift) for share, (centre, spread) in parts], axis=0
    )


def tails() -> list[tuple[float, Any]]:
    """Return the two kinds of noise with their prior probabilities."""
    return [(0.8, stats.norm()), (0.2, stats.t(3))]


def log_marginal(
    values: np.ndarray,
    after: np.ndarray | None,
    cautious: Normal | None,
    scales: np.ndarray,
    healthy: tuple[float, ...] = (),
) -> float:
    """Return the log marginal likelihood of values by brute force over location, scale, ratio of scales and shift.

    The densities are scipy's, and the shift is enumerated itself. `after` None: one location and one scale.
    """
    locations = np.linspace(values.min() - 1, values.max() + 1, 81)[:, None]
    parts = ((1.0, STATED),) if cautious is None else ((0.9, cautious), (0.1, STATED))
    sizes = np.linspace(0.6, 9.0, 85)
    weights = shift_prior(sizes, *parts) * (sizes[1] - sizes[0]) / 2
    total = 0.0
    for share, noise in tails():
        for scale in scales:
            of_healthy = 1.0
            if healthy:
                grid = np.linspace(min(healthy) - 2, max(healthy) + 2, 161)
                of_healthy = (
                    np.exp(noise.logpdf((healthy - grid[:, None]) / scale) - math.log(scale))
                    .prod(axis=1)
                    .sum()
                )
                of_healthy *= grid[1] - grid[0]
            if after is None:
                density = noise.logpdf((values - locations) / scale) - math.log(scale)
                total += share * of_healthy * float(np.exp(density.sum(axis=1)).sum())
                continue
            before = (noise.logpdf((values - locations) / scale) - math.log(scale))[:, ~after].sum(axis=1)
            for chance, ratio in ((0.1, 0.5), (0.8, 1.0), (0.1, 2.0)):
                for sign in (1.0, -1.0):
                    moved = values[after] - (locations + sign * scale * sizes)[..., None]
                    density = noise.logpdf(moved / (scale * ratio)) - math.log(scale * ratio)
                    both = np.exp(before[:, None] + density.sum(axis=-1)) @ weights
                    total += share * of_healthy * chance * float(both.sum())
    return math.log(total)


@pytest.mark.parametrize("values", [[0.1, -0.3, 0.2, 2.6, 2.9, 2.2], [0.1, -0.3, 9.0, 2.6, 2.9, 1.0]])
@pytest.mark.parametrize("is_stated", [False, True])
def test_metric_likelihood_agrees_with_brute_force(values: list[float], is_stated: bool) -> None:
    """With an outlier too; "no culprit" among them. The grid is coarse: a fifth of a nat may be missing."""
    history = History.linear(3)
    positions, seen = np.array([0, 0, 1, 2, 3, 3]), np.array(values)
    told = shift_likelihoods(history.affected_PH, positions.astype(float), seen)
    scales = float(seen.std(ddof=1)) * 2.0 ** np.arange(-3.5, 1.01, 0.5)
    cautious = None if is_stated else CAUTIOUS
    exact = [log_marginal(seen, history.affected_PH[positions, h], cautious, scales) for h in range(3)]
    exact.append(log_marginal(seen, None, cautious, scales))
    log_H1 = told.stated().log_H1 if is_stated else told.log_H1
    assert np.diff(log_H1) == pytest.approx(np.diff(exact), abs=0.2)


def test_an_outlier_costs_less_than_with_normal_noise_and_more_noise_after_the_culprit_is_expected() -> None:
    """A value 8 sd off among those before the culprit, and values after it of three times the spread."""
    history = History.linear(2)
    positions = np.repeat([0.0, 1.0, 2.0], 6)
    side = np.array([-1.2, -0.6, -0.2, 0.2, 0.6, 1.2])
    for values in (
        np.concatenate([side, np.append(side[:-1], 8.0), 4 + side]),
        np.concatenate([side, side, 5 + 3 * side]),
    ):
        told = shift_likelihoods(history.affected_PH, positions, values)
        assert told.log_H1[1] > max(told.log_H1[0], told.log_H1[-1]) + 4


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


@pytest.mark.parametrize("is_stated", [False, True])
def test_likelihood_at_a_known_deviation_agrees_with_brute_force(is_stated: bool) -> None:
    """What decides is more cautious than where the deviation is learned: shifts of 2 sd, not 2.4."""
    history = History.linear(3)
    positions, values = np.array([0, 0, 1, 2, 3]), np.array([0.1, -0.3, 1.2, 1.9, 2.6])
    told = shift_likelihoods(history.affected_PH, positions.astype(float), values, MetricPrior(sd=1.0))
    cautious = None if is_stated else CAUTIOUS_SD_KNOWN
    scale = np.array([1.0])
    exact = [log_marginal(values, history.affected_PH[positions, h], cautious, scale) for h in range(3)]
    exact.append(log_marginal(values, None, cautious, scale))
    log_H1 = told.stated().log_H1 if is_stated else told.log_H1
    assert np.diff(log_H1) == pytest.approx(np.diff(exact), abs=0.1)


def test_likelihood_with_earlier_runs_agrees_with_brute_force() -> None:
    """Their spread counts as that of the search's own runs; their level, which may be another machine's, does not."""
    history = History.linear(3)
    positions, values = np.array([0, 1, 2, 3]), np.array([0.1, 0.4, 1.9, 2.6])
    healthy = (0.3, -0.5, 0.9, -0.2, 0.1, 0.6)

    def told_of(level: float) -> Likelihoods:
        known = MetricPrior(healthy=tuple(level + value for value in healthy))
        return shift_likelihoods(history.affected_PH, positions.astype(float), values, known)

    scales = float(values.std(ddof=1)) * 2.0 ** np.arange(-3.5, 1.01, 0.5)
    exact = [
        log_marginal(values, history.affected_PH[positions, h], CAUTIOUS, scales, healthy) for h in range(3)
    ]
    exact.append(log_marginal(values, None, CAUTIOUS, scales, healthy))
    assert np.diff(told_of(0.0).log_H1) == pytest.approx(np.diff(exact), abs=0.1)
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
        bins = np.linspace(-3.2, 3.2, 16) * values.std(ddof=1)
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
