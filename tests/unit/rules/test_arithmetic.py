"""Figures that cannot be: each rule is quiet on sound ones, alarms on wrong ones, and passes what it cannot judge."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.rules.made_logs import Floats, log_of

from seatrial.evidence.runlog import Series
from seatrial.rules.engine import judge_streams, select
from seatrial.rules.rule import Level, Streams

NUMBER = 30
RANDOM = np.random.default_rng(0)
ADVANTAGE = 0.02 * RANDOM.standard_normal(NUMBER)
KL = np.linspace(0, 0.1, NUMBER)
ONE = np.ones(NUMBER)


def level_of(rule_id: str, columns: dict[str, Floats]) -> Level:
    """Return what one rule says of series under canonical names."""
    made = {
        name: [Series(tag=name, steps=np.arange(1, len(values) + 1), values=np.asarray(values, dtype=float))]
        for name, values in columns.items()
    }
    [item] = judge_streams(Streams(log=log_of({}), stack=None, by_name=made), select([rule_id]))
    return item.finding.level


def on_policy(loss: Floats) -> dict[str, Floats]:
    """Return a run whose ratios are all 1."""
    return {
        "loss": loss,
        "advantages/mean": ADVANTAGE,
        "ratio/min": ONE,
        "ratio/max": ONE,
        "kl/reference": KL,
    }


SOUND: dict[str, dict[str, Floats]] = {
    "loss-not-its-terms": on_policy(-ADVANTAGE + 0.01 * KL),
    "rows-lost-in-the-loss": {"rows/counted": 32 * ONE, "rows/batch": 16 * ONE},
    "lengths-do-not-add-up": {
        "length/prompt_mean": 5 * ONE,
        "length/completion_mean": 7.25 * ONE,
        "length/total_mean": 12.25 * ONE,
    },
    "endings-do-not-add-up": {"truncation_fraction": 0.75 * ONE, "termination_fraction": 0.25 * ONE},
    "ratio-out-of-order": {"ratio/min": 0.5 * ONE, "ratio/mean": ONE, "ratio/max": 2 * ONE},
    "reward-out-of-order": {"reward/min": 0 * ONE, "reward/mean": 0.5 * ONE, "reward/max": ONE},
    "length-out-of-order": {
        "length/completion_min": ONE,
        "length/completion_mean": 2 * ONE,
        "length/completion_max": 3 * ONE,
    },
    "verifier-errors": {"reward/verifier_errors": 0 * ONE, "rows/batch": 16 * ONE},
    "validation-repeats": {"validation/reward": np.array([0.1, 0.1, 0.2, 0.2, 0.3])},
    "step-time-adds-up": {"time/step": 1 + 0.01 * RANDOM.random(60)},
    "out-of-bounds": {"time/generation": ONE, "truncation_fraction": ONE, "entropy": -1e-9 * ONE},
    "likelihood-loss-negative": {"loss": ONE},
    "mismatch-kl-parts": {"mismatch/kl": 1e-13 * ONE},
    "mismatch-mult-prob-error-parts": {"mismatch/mult_prob_error": 1.01 * ONE},
}
WRONG: dict[str, dict[str, Floats]] = {
    "loss-not-its-terms": on_policy(ADVANTAGE + 0.01 * KL),
    "rows-lost-in-the-loss": {"rows/counted": 14 * ONE, "rows/batch": 16 * ONE},
    "lengths-do-not-add-up": {**SOUND["lengths-do-not-add-up"], "length/total_mean": 13 * ONE},
    "endings-do-not-add-up": {"truncation_fraction": 0.75 * ONE, "termination_fraction": 0.5 * ONE},
    "ratio-out-of-order": {**SOUND["ratio-out-of-order"], "ratio/mean": 3 * ONE},
    "reward-out-of-order": {**SOUND["reward-out-of-order"], "reward/mean": -ONE},
    "length-out-of-order": {**SOUND["length-out-of-order"], "length/completion_mean": 9 * ONE},
    "verifier-errors": {"reward/verifier_errors": 4 * ONE, "rows/batch": 16 * ONE},
    "validation-repeats": {"validation/reward": np.array([0.1, 0.12, 0.12, 0.12, 0.12])},
    "step-time-adds-up": {"time/step": np.cumsum(1 + 0.5 * RANDOM.random(60))},
    "out-of-bounds": {"time/generation": -ONE},
    "likelihood-loss-negative": {"loss": -0.01 * ONE},
    "mismatch-kl-parts": {"mismatch/kl": np.where(np.arange(NUMBER) < 1, 1e-13, 1e-4)},
    "mismatch-mult-prob-error-parts": {
        "mismatch/mult_prob_error": np.where(np.arange(NUMBER) < 1, 1 + 1e-6, 1.01)
    },
}


@pytest.mark.parametrize("rule_id", SOUND)
def test_what_can_be_is_quiet(rule_id: str) -> None:
    """Rounding, several updates a step and agreement in low precision among it."""
    assert level_of(rule_id, SOUND[rule_id]) is Level.QUIET


@pytest.mark.parametrize("rule_id", WRONG)
def test_what_cannot_be_is_an_alarm(rule_id: str) -> None:
    """The same series, with one of them wrong."""
    assert level_of(rule_id, WRONG[rule_id]) is Level.ALARM


def test_a_loss_of_another_reduction_is_not_judged() -> None:
    """It is no exact multiple of the mean advantage, so that nothing is said of the factor."""
    loss = -0.3 * ADVANTAGE + 0.01 * RANDOM.standard_normal(NUMBER)
    assert level_of("loss-not-its-terms", on_policy(loss)) is Level.QUIET
    off_policy = {**on_policy(ADVANTAGE), "ratio/max": 1.5 * ONE}
    assert level_of("loss-not-its-terms", off_policy) is Level.QUIET


def test_a_loss_may_be_negative_where_rewards_are_logged() -> None:
    """It is no likelihood there."""
    columns = {"loss": -ONE, "reward/mean": ONE}
    assert level_of("likelihood-loss-negative", columns) is Level.NOT_TRIGGERED


def test_advantages_of_one_sign_are_a_notice() -> None:
    """A running baseline gives them in healthy runs."""
    columns = {"advantages/min": 0.1 * ONE, "advantages/max": 0.2 * ONE}
    assert level_of("advantages-one-sided", columns) is Level.NOTICE
