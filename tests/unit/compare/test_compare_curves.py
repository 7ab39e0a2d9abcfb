"""Curves and speed of two sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.unit.compare.samples import sample, write_log

from seatrial.compare.curves import compare_curves
from seatrial.compare.runs import Sample
from seatrial.compare.verdicts import KIND
from seatrial.verdict import Outcome

STEPS = 12
Side = Callable[..., list[Sample]]


def curves(seed: int, shift: Mapping[str, float]) -> dict[str, Sequence[float]]:
    """Return curves of refrl's names with noise between seeds."""
    noise = np.random.default_rng(seed).normal(size=(3, STEPS))
    made = {"train/reward": 0.5 + 0.01 * noise[0], "train/loss": 0.02 * noise[1]}
    made |= {"train/grad_norm": 1 + 0.1 * noise[2], "train/gen_kl_error": 1e-4 + 1e-6 * noise[1]}
    found = {tag: (values + shift.get(tag, 0.0)).tolist() for tag, values in made.items()}
    found["train/token_mult_prob_error"] = found["train/num_verifier_errors"] = [1.0] * STEPS
    return {
        **found,
        "train/lr": [0.1] * STEPS,
        "timing/train/total_step_time": [1.0 + 0.01 * (seed % 6)] * STEPS,
    }


@pytest.fixture
def side(tmp_path: Path) -> Side:
    """Return a function that makes the runs of a side."""

    def make(
        name: str, num_seeds: int, shift: Mapping[str, float] | None = None, slower: float = 1.0
    ) -> list[Sample]:
        return [
            sample(
                seed,
                {"check": "P"},
                seconds=slower * (10 + 0.1 * seed),
                logs={
                    ".": write_log(tmp_path / name / str(seed) / "metrics.json", curves(seed, shift or {}))
                },
            )
            for seed in range(num_seeds)
        ]

    return make


def outcomes(base: list[Sample], head: list[Sample]) -> dict[str, tuple[Outcome, str]]:
    return {one.name: (one.outcome, one.details[KIND]) for one in compare_curves(base, head)}


def test_equal_curves_pass_with_one_seed(side: Side) -> None:
    found = outcomes(side("base", 1), side("head", 1))
    assert found["curves"][0] is Outcome.PASS


def test_a_different_curve_of_one_seed_is_named_and_concludes_nothing(side: Side) -> None:
    base, head = side("base", 1), side("head", 1, {"train/reward": -5.0})
    found = {one.name: one for one in compare_curves(base, head)}
    assert found["curves"].outcome is Outcome.SKIPPED
    assert "train/reward" in found["curves"].reason
    assert "--seeds 5" in found["curves"].reason
    assert not any(one.outcome is Outcome.FAIL for one in found.values())


def test_a_curve_that_got_worse_beyond_the_noise_is_broken(side: Side) -> None:
    found = outcomes(side("base", 6), side("head", 6, {"train/reward": -0.2}))
    assert found["curve train/reward"][0] is Outcome.FAIL
    assert found["curves"][0] is Outcome.PASS


def test_a_curve_that_got_better_is_no_failure(side: Side) -> None:
    found = outcomes(side("base", 6), side("head", 6, {"train/reward": 0.2}))
    assert found["curve train/reward"][0] is Outcome.PASS


def test_a_curve_without_a_good_direction_is_named_alone(side: Side) -> None:
    found = outcomes(side("base", 6), side("head", 6, {"train/grad_norm": 3.0}))
    assert found["curve train/grad_norm"][0] is Outcome.SKIPPED


def test_noise_of_other_seeds_is_no_difference(side: Side) -> None:
    """HEAD draws other random numbers: curves differ at each seed, and no conclusion is drawn against it."""
    base = side("base", 6)
    others = side("head", 12)[6:]
    head = [sample(seed, {"check": "P"}, seconds=10, logs=one.logs) for seed, one in enumerate(others)]
    assert not [name for name, (outcome, _) in outcomes(base, head).items() if outcome is Outcome.FAIL]


def test_a_slower_head_is_broken_with_five_seeds_and_not_judged_with_one(side: Side) -> None:
    many = outcomes(side("base", 5), side("head", 5, slower=1.5))
    assert many["speed: seconds of the trial"][0] is Outcome.FAIL
    assert many["speed: seconds a step"][0] is Outcome.PASS
    assert (
        outcomes(side("a", 1), side("b", 1, slower=1.5))["speed: seconds of the trial"][0] is Outcome.SKIPPED
    )
    assert outcomes(side("c", 5), side("d", 5, slower=0.5))["speed: seconds of the trial"][0] is Outcome.PASS


def test_a_series_that_head_no_longer_logs_is_named(side: Side, tmp_path: Path) -> None:
    base = side("base", 1)
    less = {tag: values for tag, values in curves(0, {}).items() if tag != "train/reward"}
    head = [sample(0, {"check": "P"}, logs={".": write_log(tmp_path / "less" / "metrics.json", less)})]
    found = {one.name: one for one in compare_curves(base, head)}
    assert "train/reward" in found["curves: series"].reason
