"""A run held to earlier healthy runs: what is the same in all of them, what varies, what is logged when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from tests.unit.rules.made_logs import Floats, healthy, log_of

from seatrial.evidence.runlog import RunLog, Series
from seatrial.rules.engine import Judged, judge_log, missing_metrics, select
from seatrial.rules.healthy import BASELINE, Baseline, HealthyRuns
from seatrial.rules.rule import Level

RULES = select(["baseline"])
Change = Callable[[dict[str, Floats]], None]


def columns(seed: int, number: int = 60) -> dict[str, Floats]:
    """Return a healthy run with a schedule that does not depend on the seed, and a number of rows."""
    made = healthy(seed, number)
    made["train/learning_rate"] = 1e-6 * (1 - np.arange(number) / 120)
    return {**made, "train/rows": np.full(number, 16.0)}


def beside(number: int = 5, **options: object) -> Baseline:
    """Return healthy runs of seeds 0, 1, ..."""
    return Baseline(runs=HealthyRuns(logs=[log_of(columns(seed)) for seed in range(number)]))


def said(made: Mapping[str, Floats] | RunLog, held: Baseline | None = None) -> dict[str, Judged]:
    """Return what each rule says of a run."""
    log = made if isinstance(made, RunLog) else log_of(made)
    return {item.rule.id: item for item in judge_log(log, RULES, baseline=held or beside())}


def levels(found: Mapping[str, Judged]) -> dict[str, Level]:
    """Return how loud each rule is."""
    return {name: item.finding.level for name, item in found.items()}


QUIET = dict.fromkeys(["baseline-same", "baseline-level", "baseline-steps"], Level.QUIET)


@pytest.mark.parametrize("seed", range(100, 130))
def test_a_healthy_run_of_another_seed_is_quiet(seed: int) -> None:
    """Whole, and begun only."""
    assert levels(said(columns(seed))) == QUIET
    assert Level.ALARM not in levels(said(columns(seed, 12))).values()


def doubled_rate(made: dict[str, Floats]) -> None:
    """The schedule is another one from step 31 on, by a part in a thousand."""
    made["train/learning_rate"][30:] *= 1.001


def rows_lost(made: dict[str, Floats]) -> None:
    """Two of sixteen rows are not there."""
    made["train/rows"][:] = 14


def entropy_off(made: dict[str, Floats]) -> None:
    """The entropy lies lower by a spread of five between runs, though far from collapse."""
    made["train/entropy"] -= 0.1


def late_lengths(made: dict[str, Floats]) -> None:
    """Completions grow by a third from step 21 on."""
    made["train/completions/mean_length"][20:] *= 1.33


def not_finite(made: dict[str, Floats]) -> None:
    """The gradient norm is NaN from step 11 on."""
    made["train/grad_norm"][10:] = np.nan


@pytest.mark.parametrize(
    ("change", "rule", "tag", "step"),
    [
        (doubled_rate, "baseline-same", "train/learning_rate", 32),
        (rows_lost, "baseline-same", "train/rows", 8),
        (entropy_off, "baseline-level", "train/entropy", 20),
        (late_lengths, "baseline-level", "train/completions/mean_length", 40),
        (not_finite, "baseline-level", "train/grad_norm", 40),
    ],
)
def test_what_no_identity_forbids_is_seen(change: Change, rule: str, tag: str, step: int) -> None:
    """By the rule, on the series, from the step; the verdict says what healthy runs show."""
    made = columns(77)
    change(made)
    found = said(made)
    assert {name for name, level in levels(found).items() if level is Level.ALARM} == {rule}
    finding = found[rule].finding
    assert (finding.tags[0], finding.step) == (tag, step)
    assert "5 healthy runs" in finding.reason
    assert "Next:" in found[rule].verdict.reason


def test_what_is_said_of_the_first_steps_does_not_change_later() -> None:
    """A log that grows alarms at the step at which the whole one does, and not before."""
    made = columns(77)
    late_lengths(made)
    held = beside()
    for length in range(1, 61):
        part = said({tag: values[:length] for tag, values in made.items()}, held)
        assert (levels(part)["baseline-level"] is Level.ALARM) == (length >= 40)


def test_a_spike_that_recovers_is_no_alarm() -> None:
    """Three points far away in one series, and three of one that never varies."""
    made = columns(77)
    made["train/grad_norm"][20:23] = 1e6
    made["train/rows"][40:43] = np.inf
    assert Level.ALARM not in levels(said(made)).values()


def test_clocks_are_not_compared() -> None:
    """Another machine: every step takes three times as long."""
    made = columns(77)
    made["train/step_time"] *= 3
    made["timing/generation"] = np.ones(60)
    runs = [log_of({**columns(seed), "timing/generation": np.full(60, 0.5)}) for seed in range(5)]
    assert levels(said(made, Baseline(runs=HealthyRuns(logs=runs)))) == QUIET


def test_series_that_are_missing_or_at_other_steps_are_named() -> None:
    """One that is not logged; one that is logged at every second step; one that nobody knew is a notice."""
    made = columns(77)
    del made["train/kl"]
    finding = said(made)["baseline-steps"].finding
    assert (finding.level, finding.tags, finding.step) == (Level.ALARM, ("train/kl",), 2)
    log = log_of(columns(77))
    sparse = Series(tag="train/kl", steps=np.arange(2, 61, 2), values=log.series["train/kl"].values[1::2])
    found = said(RunLog(sources=["made"], series={**log.series, "train/kl": sparse}))[
        "baseline-steps"
    ].finding
    assert (found.level, found.step) == (Level.ALARM, 1)
    added = said({**columns(77), "train/more": np.ones(60)})["baseline-steps"].finding
    assert (added.level, added.tags) == (Level.NOTICE, ("train/more",))


def test_a_run_that_began_lacks_nothing_yet() -> None:
    """Of the last steps not every series may be written; one or two points say nothing."""
    log = log_of(columns(77, 20))
    cut = {
        tag: Series(tag=tag, steps=one.steps[:-1], values=one.values[:-1]) if "kl" in tag else one
        for tag, one in log.series.items()
    }
    assert levels(said(RunLog(sources=["made"], series=cut)))["baseline-steps"] is Level.QUIET
    assert set(levels(said(columns(77, 2))).values()) <= {Level.QUIET, Level.NOT_TRIGGERED}


def test_another_form_of_log_is_held_by_what_its_tags_mean() -> None:
    """`loss` is `train/loss`; a log with few of the series is not held to them."""
    made = {
        tag.removeprefix("train/").replace("eval/", "eval_"): values for tag, values in columns(77).items()
    }
    assert levels(said(made)) == QUIET
    few = said({"train/loss": columns(0)["train/loss"], "train/kl": columns(0)["train/kl"]})
    assert set(levels(few).values()) == {Level.NOT_TRIGGERED}
    assert "another stack" in few["baseline-level"].finding.reason


def test_without_healthy_runs_it_is_not_triggered_and_names_what_would_arm_it() -> None:
    """`--missing` lists them among the inputs, first of all: one input, three rules."""
    judged = judge_log(log_of(columns(0)), RULES)
    assert {item.finding.level for item in judged} == {Level.NOT_TRIGGERED}
    [missing] = missing_metrics(judged)
    assert (missing.metric, missing.alone) == (BASELINE, 3)
    assert "--baseline" in missing.meaning


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([log_of(columns(seed)) for seed in range(3)], "3 healthy runs are given, at least 4"),
        ([*(log_of(columns(seed)) for seed in range(4)), log_of({})], "no series in common"),
    ],
)
def test_too_few_or_empty_healthy_runs_arm_nothing(runs: Sequence[RunLog], words: str) -> None:
    """Skipped with the reason."""
    found = said(columns(9), Baseline(runs=HealthyRuns(logs=runs)))
    assert set(levels(found).values()) == {Level.NOT_TRIGGERED}
    assert words in found["baseline-same"].finding.reason


def test_healthy_runs_that_are_not_finite_or_shorter_judge_what_is_left() -> None:
    """A series with NaN in one of them is left out; of runs of two lengths the common steps count."""
    first = columns(0)
    first["train/entropy"][5] = np.nan
    runs = [log_of(first), *(log_of(columns(seed, 40 + seed)) for seed in range(1, 5))]
    made = columns(77)
    entropy_off(made)
    found = said(made, Baseline(runs=HealthyRuns(logs=runs)))
    assert levels(found)["baseline-level"] is Level.QUIET
    late_lengths(made)
    assert levels(said(made, Baseline(runs=HealthyRuns(logs=runs))))["baseline-level"] is Level.ALARM


def test_another_configuration_arms_nothing_and_says_which_key() -> None:
    """Seeds and folders may differ."""
    options = [{"grpo.seed": seed, "policy.lr": 1e-6, "logger.log_dir": f"r{seed}"} for seed in range(6)]
    runs = HealthyRuns(logs=[log_of(columns(seed)) for seed in range(5)], configurations=options[:5])
    assert levels(said(columns(77), Baseline(runs=runs, configuration=options[5]))) == QUIET
    other = said(columns(77), Baseline(runs=runs, configuration={**options[5], "policy.lr": 2e-6}))
    assert set(levels(other).values()) == {Level.NOT_TRIGGERED}
    assert "another configuration: policy.lr differs" in other["baseline-level"].finding.reason
    mixed = HealthyRuns(logs=runs.logs, configurations=[*options[:4], {**options[4], "grpo.kl": 0}])
    assert (
        "several configurations: grpo.kl differ"
        in said(columns(77), Baseline(runs=mixed))["baseline-same"].finding.reason
    )
