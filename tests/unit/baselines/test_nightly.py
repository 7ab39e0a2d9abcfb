"""A baseline of eight repeats serves one nightly run: it passes unchanged, whatever the noise, and a shift fails."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from seatrial.comparisons.baseline_compare import Wanted, compare, sensitivity
from seatrial.comparisons.baselines import learn
from seatrial.statistics.robust import check_summary
from seatrial.verdict import Outcome, combine

from .conftest import PROVENANCE, learned, make_log, noisy_runs
from .noise_kinds import NOISE_KINDS, white

NUM_TRIALS = 250
STEPS = 30


def judge(baseline, runs, **options):
    return compare(baseline, {f"new {number}": run for number, run in enumerate(runs)}, **options)


def outcomes_of(num_repeats: int, num_new: int, wanted: Wanted) -> set[Outcome]:
    verdicts = judge(learned(noisy_runs(num_repeats, 0)), noisy_runs(num_new, 1), wanted=wanted)
    return {verdict.outcome for verdict in verdicts}


@pytest.mark.parametrize("num_new", [1, 3])
@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_an_unchanged_run_passes_whatever_the_noise(kind, num_new: int) -> None:
    """At most 1 % fail, three standard errors allowed, and none is Blocked; runs end at up to five steps apart."""
    random = np.random.default_rng(7)
    outcomes = []
    for _ in range(NUM_TRIALS):
        runs = [
            make_log(list(values[: STEPS - int(random.integers(6))]))
            for values in kind(random, 8 + num_new, STEPS)
        ]
        shortest = min(len(run.series["train/loss"]) for run in runs[:8])
        new = [run for run in runs[8:] if len(run.series["train/loss"]) >= shortest]
        if new:
            outcomes.append(combine(judge(learned(runs[:8]), new)))
    assert len(outcomes) > 0.8 * NUM_TRIALS
    assert set(outcomes) <= {Outcome.PASS, Outcome.FAIL}
    alarms = outcomes.count(Outcome.FAIL) / len(outcomes)
    assert alarms <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / len(outcomes))


@pytest.mark.parametrize("num_new", [1, 2, 3, 6])
def test_the_smallest_visible_shift_is_found_with_the_power_stated(num_new: int) -> None:
    found = 0
    for seed in range(NUM_TRIALS):
        baseline = learned(noisy_runs(8, 2 * seed))
        visible = judge(baseline, noisy_runs(num_new, 0))[0].details["smallest_visible_shift_in_sd"]
        sign = 1 if seed % 2 else -1
        found += (
            combine(judge(baseline, noisy_runs(num_new, 2 * seed + 1, shift=sign * visible))) is Outcome.FAIL
        )
    assert found / NUM_TRIALS >= 0.95 - 2 * math.sqrt(0.05 * 0.95 / NUM_TRIALS)


def test_a_verdict_states_the_shift_that_it_can_see_in_units_of_the_metric() -> None:
    baseline = learned(noisy_runs(8, 0))
    verdict = judge(baseline, noisy_runs(1, 1))[1]
    shift = verdict.details["smallest_visible_shift_in_sd"]
    spread = np.std(baseline.metrics["train/loss"].means, ddof=1)
    assert f"a shift of {shift * spread:.2g}" in verdict.reason.replace(
        f"{shift * spread:.3g}", f"{shift * spread:.2g}"
    )
    assert 7 < shift < 10


def test_so_many_runs_as_are_said_to_be_enough_are_not_blocked() -> None:
    """Each of the ways that the one Blocked verdict names."""
    wanted = Wanted(shift_in_sd=3.0)
    verdicts = judge(learned(noisy_runs(8, 0)), noisy_runs(3, 1), wanted=wanted)
    assert [verdict.name for verdict in verdicts if "enough are" in verdict.reason] == ["number of runs"]
    told = re.search(
        r"enough are (\d+) new runs .*, or (\d+) repeats with 3 new, or (\d+) of both", verdicts[0].reason
    )
    assert told is not None
    new_runs, repeats, both = map(int, told.groups())
    for enough, fewer in (
        ((8, new_runs), (8, new_runs - 1)),
        ((repeats, 3), (repeats - 1, 3)),
        ((both, both), (both - 1, both - 1)),
    ):
        assert Outcome.BLOCKED not in outcomes_of(*enough, wanted)
        assert Outcome.BLOCKED in outcomes_of(*fewer, wanted)


def test_what_a_sample_sees_is_said_in_one_sentence_with_the_runs_that_see_more() -> None:
    baseline = learned(noisy_runs(8, 0))
    words = sensitivity(baseline, 1)
    assert words is not None
    assert "1 new against 8 repeats detect shifts of a mean of 9.6 standard" in words
    assert "3 need" in words
    assert sensitivity(learned([make_log([1.0, 2.0])] * 5), 1) is None


def test_repeats_of_unequal_lengths_are_compared_where_all_have_steps() -> None:
    random = np.random.default_rng(0)
    lengths = [30, 28, 30, 27, 29, 30, 30, 28]
    runs = [make_log(list(white(random, 1, length)[0])) for length in lengths]
    baseline = learned(runs)
    metric = baseline.metrics["train/loss"]
    assert (metric.steps[-1], metric.num_points) == (27, tuple(lengths))
    for length in (27, 30, 35):
        verdicts = judge(baseline, [make_log(list(white(random, 1, length)[0]))])
        assert combine(verdicts) is Outcome.PASS
        assert verdicts[1].steps == (1, 27)
    short = judge(baseline, [make_log(list(white(random, 1, 26)[0]))])
    assert (short[0].outcome, "does not have 1 of the 27 steps" in short[0].reason) == (Outcome.FAIL, True)


def test_a_repeat_that_stopped_early_is_not_learned_from() -> None:
    logs = {name: make_log([1.0] * length) for name, length in (("a", 30), ("b", 23), ("c", 30))}
    baseline, faults = learn(logs, ["train/loss"], window=10, provenance=PROVENANCE)
    assert baseline is None
    assert [fault.reason.split(",")[0] for fault in faults] == ["b has 23 points to step 23"]


def test_a_longer_run_that_is_not_finite_after_the_baselines_steps_fails() -> None:
    baseline = learned(noisy_runs(8, 0))
    values = [*noisy_runs(1, 1)[0].series["train/loss"].values, math.nan]
    assert "step 21" in judge(baseline, [make_log(values)])[0].reason


def test_one_of_several_runs_that_is_far_off_fails_and_is_named() -> None:
    """The spread of the new runs does not hide it."""
    runs = [*noisy_runs(2, 1), *noisy_runs(1, 2, shift=20.0)]
    failed = [
        verdict for verdict in judge(learned(noisy_runs(8, 0)), runs) if verdict.outcome is Outcome.FAIL
    ]
    assert any("in new 2 alone" in verdict.reason for verdict in failed)


def test_the_same_is_found_whichever_direction_and_unit() -> None:
    from seatrial.statistics.robust import Rates

    random = np.random.default_rng(3)
    old, new = random.normal(size=8), random.normal(size=2) + 9
    rates = Rates(test=0.0025, metric=0.01)
    one = check_summary(old, new, rates)
    other = check_summary(5 - 1000 * old, 5 - 1000 * new, rates)
    assert not one.holds
    assert (other.t, other.critical) == pytest.approx((-one.t, one.critical))
