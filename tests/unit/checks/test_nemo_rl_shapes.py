"""The 36 shapes of NeMo RL's 855 expressions (commit 7ea279a): read, and judged as its checker judges them.

Each shape stands beside the same words in Python, where the names have the meanings that NeMo RL's checker gives them
(tests/check_metrics.py; described in our own words below). On finite, complete data of steps 1..N both
say the same, except that a range of more steps than were logged fails here.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping

import pytest

from seatrial.checks import evaluate_check, parse_check
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome

from .conftest import MakeLog

Points = Mapping[str, float]
TAGS = (
    "train/loss", "train/reward", "train/token_mult_prob_error", "timing/train/total_step_time",
    "train/avg_trajectory_age", "gen_fleet/shards/dead", "validation/accuracy", "router/serving_backends",
)  # fmt: skip


def chosen(points: Points, start: int, end: int) -> list[float]:
    """Steps from `start` to before `end`; a negative bound, and an end of 0, count from one past the last step."""
    low = start if start >= 0 else start + len(points) + 1
    high = end if end > 0 else end + len(points) + 1
    if low < 1 or high > len(points) + 1:
        raise statistics.StatisticsError(
            "the range asks for steps that were not logged; theirs averages the rest"
        )
    return [value for step, value in points.items() if low <= int(step) < high]


def mean(points: Points, start: int = 1, end: int = 0, ignore_top_p: float = 0.0) -> float:
    """Mean of a range without its largest values."""
    values = sorted(chosen(points, start, end))
    return statistics.fmean(values[: max(1, int(len(values) * (1 - ignore_top_p)))])


def median(points: Points) -> float:
    """Middle value."""
    return statistics.median(points.values())


def ratio_above(points: Points, threshold: float) -> float:
    """Share of values that reach a threshold."""
    return statistics.fmean(value >= threshold for value in points.values())


def least(points: Points) -> float:
    """Smallest value."""
    return min(points.values())


def most(points: Points) -> float:
    """Largest value."""
    return max(points.values())


Theirs = Callable[[Mapping[str, Points], float], bool]
SHAPES: tuple[tuple[str, Theirs], ...] = (
    ('data["train/loss"]["20"] < 1.5', lambda data, score: data["train/loss"]["20"] < 1.5),
    (
        'median(data["train/token_mult_prob_error"]) < 1.1',
        lambda data, score: median(data["train/token_mult_prob_error"]) < 1.1,
    ),
    (
        'max(data["train/token_mult_prob_error"]) < 1.05',
        lambda data, score: most(data["train/token_mult_prob_error"]) < 1.05,
    ),
    ('data["train/reward"]["30"] > 0.4', lambda data, score: data["train/reward"]["30"] > 0.4),
    (
        'mean(data["timing/train/total_step_time"], -6, -1) < 0.63',
        lambda data, score: mean(data["timing/train/total_step_time"], -6, -1) < 0.63,
    ),
    ('max(data["train/reward"]) > 0', lambda data, score: most(data["train/reward"]) > 0),
    ('min(data["train/reward"]) > 0.2', lambda data, score: least(data["train/reward"]) > 0.2),
    (
        'mean(data["train/token_mult_prob_error"]) < 1.05',
        lambda data, score: mean(data["train/token_mult_prob_error"]) < 1.05,
    ),
    (
        'mean(data["timing/train/total_step_time"], 2) < 15',
        lambda data, score: mean(data["timing/train/total_step_time"], 2) < 15,
    ),
    ("data['train/reward']['last'] < 0.5", lambda data, score: data["train/reward"]["last"] < 0.5),
    ('data["train/reward"]["20"] > -0.45', lambda data, score: data["train/reward"]["20"] > -0.45),
    ('data["train/reward"]["20"] >= 0.5', lambda data, score: data["train/reward"]["20"] >= 0.5),
    (
        'max(data["train/avg_trajectory_age"]) <= 1',
        lambda data, score: most(data["train/avg_trajectory_age"]) <= 1,
    ),
    ('len(data["train/loss"]) == 3', lambda data, score: len(data["train/loss"]) == 3),
    (
        'min(data["gen_fleet/shards/dead"]) >= 1',
        lambda data, score: least(data["gen_fleet/shards/dead"]) >= 1,
    ),
    ('mean(data["train/reward"]) > 0.1', lambda data, score: mean(data["train/reward"]) > 0.1),
    (
        "data['train/token_mult_prob_error']['last'] > 1.0",
        lambda data, score: data["train/token_mult_prob_error"]["last"] > 1.0,
    ),
    ('data["score"] >= 0.2396', lambda data, score: score >= 0.2396),
    ('"2" in data["validation/accuracy"]', lambda data, score: "2" in data["validation/accuracy"]),
    ('min(data["train/loss"]) < 0.5', lambda data, score: least(data["train/loss"]) < 0.5),
    ('max(data["train/reward"]) > -1.5', lambda data, score: most(data["train/reward"]) > -1.5),
    (
        'mean(data["train/reward"], -6, -1) > 0.5',
        lambda data, score: mean(data["train/reward"], -6, -1) > 0.5,
    ),
    ('mean(data["train/reward"], 2, 5) > 0.5', lambda data, score: mean(data["train/reward"], 2, 5) > 0.5),
    ('min(data["train/reward"]) > -0.9', lambda data, score: least(data["train/reward"]) > -0.9),
    ('data["score"] < 0.2', lambda data, score: score < 0.2),
    (
        'max(data["router/serving_backends"]) == 1',
        lambda data, score: most(data["router/serving_backends"]) == 1,
    ),
    ('data["train/loss"]["1"] == 2', lambda data, score: data["train/loss"]["1"] == 2),
    (
        'mean(data["train/loss"], -11, -1) < 1.1 * data["train/loss"]["1"]',
        lambda data, score: mean(data["train/loss"], -11, -1) < 1.1 * data["train/loss"]["1"],
    ),
    (
        'data["train/loss"]["10"] < 0.9 * data["train/loss"]["1"]',
        lambda data, score: data["train/loss"]["10"] < 0.9 * data["train/loss"]["1"],
    ),
    (
        'ratio_above(data["train/token_mult_prob_error"], 1.05) < 0.02',
        lambda data, score: ratio_above(data["train/token_mult_prob_error"], 1.05) < 0.02,
    ),
    (
        'mean(data["timing/train/total_step_time"], -1) < 11.5',
        lambda data, score: mean(data["timing/train/total_step_time"], -1) < 11.5,
    ),
    ("data['train/reward']['last'] >= 0.5", lambda data, score: data["train/reward"]["last"] >= 0.5),
    (
        'mean(data["train/token_mult_prob_error"], ignore_top_p=0.05) < 1.1',
        lambda data, score: mean(data["train/token_mult_prob_error"], ignore_top_p=0.05) < 1.1,
    ),
    (
        '(data["train/loss"]["1"] - mean(data["train/loss"], -6, -1)) / data["train/loss"]["1"] > 0.1',
        lambda data, score: (
            (data["train/loss"]["1"] - mean(data["train/loss"], -6, -1)) / data["train/loss"]["1"] > 0.1
        ),
    ),
    ('abs(median(data["train/loss"])) < 0.1', lambda data, score: abs(median(data["train/loss"])) < 0.1),
    ('data["train/loss"]["3"] <= 5.9', lambda data, score: data["train/loss"]["3"] <= 5.9),
)
assert len({text for text, _ in SHAPES}) == 36


def logged(seed: int) -> tuple[dict[str, dict[str, float]], float]:
    """Return finite series of steps 1..N, each at a level of its own with or without noise, and a bare number."""
    generator = random.Random(seed)
    steps = [str(step) for step in range(1, generator.choice([1, 3, 30, 45]) + 1)]

    def series() -> dict[str, float]:
        level = generator.choice([-2.0, 0.0, 0.05, 0.3, 1.0, 1.04, 2.0, 20.0])
        noise = generator.choice([0.0, 0.02, 1.0])
        return {step: level + noise * generator.uniform(-1, 1) for step in steps}

    return {tag: series() for tag in TAGS}, generator.uniform(0, 0.4)


def judged_by_them(theirs: Theirs, data: dict[str, dict[str, float]], score: float) -> Outcome:
    try:
        return Outcome.PASS if theirs(data, score) else Outcome.FAIL
    except (KeyError, statistics.StatisticsError, ZeroDivisionError):
        return Outcome.FAIL


@pytest.mark.parametrize(("text", "theirs"), SHAPES, ids=[text for text, _ in SHAPES])
def test_a_shape_is_judged_as_theirs(text: str, theirs: Theirs, make_log: MakeLog) -> None:
    check = parse_check(text)
    seen = set()
    for seed in range(60):
        data, score = logged(seed)
        series = make_log(
            {tag: {int(step): value for step, value in points.items()} for tag, points in data.items()}
        ).series
        log = RunLog(sources=["made"], series=series, scalars={"score": score})
        # 'last' stands for a shell variable that was not set: no step has that name, and both say Fail.
        verdict = evaluate_check(check, log, ranges={})
        assert verdict.outcome is judged_by_them(theirs, data, score), (seed, verdict)
        seen.add(verdict.outcome)
    assert seen == ({Outcome.FAIL} if "last" in text else {Outcome.PASS, Outcome.FAIL})
