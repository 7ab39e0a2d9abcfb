"""Which values of a metric are worse is read off the series that it follows."""

import numpy as np
import pytest

from seatrial.bisect.likelihood import Worse
from seatrial.bisect.task import INCREASING, direction_of
from seatrial.checks.language.functions import FUNCTIONS


@pytest.mark.parametrize(
    ("metric", "worse"),
    [
        ('mean(data["train/reward"], -6, -1)', Worse.LOWER),
        ('last(data["validation/accuracy"])', Worse.LOWER),
        ('min(data["eval/loss"])', Worse.HIGHER),
        ('data["timing/train/total_step_time"]["40"]', Worse.HIGHER),
        ('quantile(data["train/reward"], 0.1)', Worse.LOWER),
        ('1 - mean(data["train/reward"])', Worse.HIGHER),
        ('-100 * mean(data["train/reward"]) + 3', Worse.HIGHER),
        ('mean(data["train/reward"]) / -2 - 1', Worse.HIGHER),
        ('mean(-data["train/reward"])', Worse.HIGHER),
        ('mean(data["reward/mean"])', Worse.LOWER),
        ('mean(data["val_accuracies_avg"])', Worse.LOWER),
    ],
)
def test_a_metric_that_follows_one_series_is_worse_where_the_series_is(metric: str, worse: Worse) -> None:
    found = direction_of(metric)
    assert found is not None
    assert found.worse is worse


@pytest.mark.parametrize(
    "metric",
    [
        pytest.param('mean(data["train/loss"])', id="a loss of a policy is neither better high nor low"),
        pytest.param('mean(data["my_own_number"])', id="unknown"),
        pytest.param('std(data["train/reward"])', id="a spread"),
        pytest.param('slope(data["train/reward"])', id="a slope"),
        pytest.param('count(data["train/reward"])', id="a count"),
        pytest.param('abs(mean(data["train/reward"]))', id="a distance"),
        pytest.param('0 * mean(data["train/reward"])', id="follows nothing"),
        pytest.param('1 / mean(data["train/reward"])', id="a reciprocal may change its sign"),
        pytest.param('mean(data["train/reward"]) - mean(data["eval/loss"])', id="two series"),
        pytest.param('mean(run("other")["train/reward"])', id="of another run"),
    ],
)
def test_nothing_is_said_of_what_a_metric_does_not_plainly_follow(metric: str) -> None:
    assert direction_of(metric) is None


def test_every_aggregate_that_follows_its_series_does_not_fall_when_a_value_rises() -> None:
    """By the functions themselves, on series whose values rise one by one."""

    random = np.random.default_rng(5)
    steps = np.arange(1, 9)
    for name in INCREASING:
        for _ in range(50):
            values = random.normal(size=8)
            raised = values.copy()
            raised[random.integers(8)] += random.exponential()
            before, after = (FUNCTIONS[name].compute(steps, held, 0.3) for held in (values, raised))
            assert after >= before - 1e-12, name
