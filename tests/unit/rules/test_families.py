"""Each rule is quiet on runs that learn, speaks of its fault in time, and lets spikes and solved tasks pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.unit.rules.made_logs import NUM_STEPS, Floats, healthy, log_of, preference

from seatrial.evidence.runlog import Series
from seatrial.rules.engine import all_rules, judge_log, judge_streams, select
from seatrial.rules.rule import Level, Streams
from seatrial.verdict import Outcome
from seatrial.vocabulary import stack_named

Columns = dict[str, Floats]
Fault = Callable[[Columns], None]
AT = 60
"""Index of the first point that a made fault changes; its step is one more."""


def put(tag: str, value: float | Callable[[Floats], Floats], start: int = AT) -> Fault:
    """Return the fault that changes a column from a point on."""

    def change(columns: Columns) -> None:
        tail = columns[tag][start:]
        columns[tag][start:] = value(tail) if callable(value) else value

    return change


def together(*faults: Fault) -> Fault:
    """Return faults as one."""

    def change(columns: Columns) -> None:
        for fault in faults:
            fault(columns)

    return change


def test_no_reference_is_no_zero_kl(tmp_path: Path) -> None:
    """refrl logs a KL of 0 where its penalty is 0 and loads no reference: nothing to notice."""
    columns = healthy()
    columns["train/kl"] = np.zeros_like(columns["train/kl"])
    log = replace(log_of(columns), sources=[str(tmp_path / "metrics.jsonl")])
    (rule,) = select(["kl-zero"])
    assert judge_log(log, [rule])[0].finding.level is Level.NOTICE
    for penalty, level in ((0.01, Level.NOTICE), (0.0, Level.NOT_TRIGGERED)):
        config = {"config": {"loss_fn": {"reference_policy_kl_penalty": penalty}}}
        (tmp_path / "run_info.json").write_text(json.dumps(config))
        finding = judge_log(log, [rule])[0].finding
        assert finding.level is level
    assert "the run has no reference" in finding.reason


def test_messages_quote_the_names_of_series() -> None:
    """A series may be called `inf`: without quotes its name would read like a value."""
    columns = {**healthy(), "inf": np.full(NUM_STEPS, -np.inf)}
    (judged,) = judge_log(log_of(columns), select(["finite"]))
    assert judged.finding.reason.startswith('"inf" is -inf; ')


FAULTS: dict[str, tuple[Fault, int]] = {
    "finite": (put("train/loss", np.nan), 0),
    "gradient-zero": (put("train/grad_norm", 0.0), 4),
    "gradient-constant": (together(put("train/grad_norm", 0.7), put("train/loss", 0.1)), 5),
    "gradient-exploding": (put("train/grad_norm", lambda tail: 500 * tail), 10),
    "gradient-dead": (
        together(
            put("train/grad_norm", lambda tail: 1e-5 * tail), put("train/reward", lambda tail: 0 * tail)
        ),
        40,
    ),
    "entropy-explosion": (put("train/entropy", lambda tail: tail + 6), 5),
    "entropy-collapse": (
        together(put("train/entropy", 1e-3), put("train/reward", lambda tail: tail - tail + 0.3)),
        50,
    ),
    "kl-drift": (put("train/kl", lambda tail: tail + 6), 12),
    "kl-negative": (put("train/kl", lambda tail: tail - 0.5), 12),
    "clip-saturated": (put("train/clip_ratio/region_mean", 0.9), 12),
    "mismatch-logprobs": (put("train/sampling/sampling_logp_difference/mean", 0.8), 6),
    "mismatch-logprobs-grows": (put("train/sampling/sampling_logp_difference/mean", 0.2), 6),
    "mismatch-importance-ratio": (put("train/sampling/importance_sampling_ratio/mean", 3.0), 6),
    "groups-silent": (
        together(put("train/reward_std", 0.0), put("train/reward", lambda tail: tail - 0.4)),
        50,
    ),
    "groups-zero-variance": (
        together(put("train/frac_reward_zero_std", 1.0), put("train/reward", lambda tail: tail - 0.4)),
        50,
    ),
    "policy-deterministic": (
        together(put("train/loss", 1e-9), put("train/reward", lambda tail: tail - 0.4)),
        50,
    ),
    "length-collapse": (
        together(put("train/completions/mean_length", 2.0), put("train/reward", 0.1)),
        12,
    ),
    "reward-collapse": (put("train/reward", lambda tail: 0 * tail), 30),
    "reward-falls-at-once": (put("train/reward", lambda tail: 0 * tail), 20),
    "reward-below-its-best": (put("train/reward", lambda tail: 0 * tail), 16),
    "reward-freezes": (put("train/reward", 0.1), 40),
    "validation-below-its-best": (put("eval/reward", 0.0), 16),
    "loss-exploding": (put("train/loss", lambda tail: 1e6 * np.abs(tail)), 16),
    "scale-left": (put("train/kl", lambda tail: 1e5 * tail), 16),
    "validation-falls": (put("eval/reward", 0.0), 3),
    "learning-rate-huge": (put("train/learning_rate", 1.0), 0),
    "learning-rate-jumps": (put("train/learning_rate", lambda tail: 50 * tail), 1),
    "steps-repeat": (
        together(put("train/grad_norm", 0.7), put("train/loss", 0.1), put("train/reward", 0.4)),
        4,
    ),
}
"""What breaks a healthy run, by the rule that must say so, and how many points later at the latest."""

FROM_THE_START: dict[str, tuple[Fault, int]] = {
    "length-at-cap": (
        together(
            put("train/completions/clipped_ratio", 1.0, 0),
            put("train/reward", lambda tail: np.resize([0.1, 0.3], len(tail)), 0),
        ),
        40,
    ),
    "groups-never-differ": (put("train/reward_std", 0.0, 0), 10),
    "truncated-and-flat": (
        together(
            put("train/completions/clipped_ratio", 0.8, 0),
            put("train/reward", lambda tail: tail * 0 + 0.2, 0),
        ),
        60,
    ),
    "reward-constant": (put("train/reward", 0.0, 0), 10),
    "learning-rate-zero": (put("train/learning_rate", 0.0, 0), 5),
    "kl-at-start": (
        together(
            put("train/kl", lambda tail: tail + 1, 0),
            put("train/reward", lambda tail: np.resize([0.1, 0.3], len(tail)), 0),
        ),
        120,
    ),
}


@pytest.mark.parametrize("apart", [7, 13, 16])
def test_a_reward_that_leaps_now_and_then_is_no_collapse(apart: int) -> None:
    """As on TRL: a letter is drawn in one step of many and gives a hundred times the rest; its going is no loss."""
    columns = healthy()
    columns["train/reward"][:] = 0.25 + 0.02 * np.random.default_rng(apart).standard_normal(
        len(columns["train/reward"])
    )
    columns["train/reward"][18::apart] = 21.5
    judged = {item.rule.id: item.finding.level for item in judge_log(log_of(columns), select(["reward"]))}
    assert judged["reward-collapse"] is Level.QUIET


@pytest.mark.parametrize("number", [18, 40, 200])
def test_a_reward_that_falls_in_its_last_tenth_alarms_in_logs_of_any_length(number: int) -> None:
    """Two points of 18 are enough where they are far below; a dip of the run's own noise is not, nor one that ends."""
    fall = max(2, number // 10)
    for lost, dip, level in ((0.8, 0, Level.ALARM), (0.1, 0, Level.QUIET), (0.8, 1, Level.QUIET)):
        columns = healthy(number=number)
        reward = 0.9 + 0.03 * np.random.default_rng(number).standard_normal(number)
        reward[number - (1 if dip else fall) :] -= lost
        columns["train/reward"] = reward
        (judged,) = judge_log(log_of(columns), select(["reward-below-its-best"]))
        assert judged.finding.level is level


def test_learning_runs_are_quiet() -> None:
    """Twenty runs of two algorithms: no alarm and, but for a single KL or gradient, no notice."""
    for seed in range(20):
        for columns in (healthy(seed), preference(seed)):
            loud = [
                item for item in judge_log(log_of(columns), all_rules()) if item.finding.level is Level.ALARM
            ]
            assert [(item.rule.id, item.finding.step) for item in loud] == []


@pytest.mark.parametrize("rule_id", [*FAULTS, *FROM_THE_START])
def test_a_fault_alarms_its_rule_in_time(rule_id: str) -> None:
    """Not before the fault, and within the points that the rule's parameters promise."""
    start = AT + 1 if rule_id in FAULTS else 1
    fault, delay = {**FAULTS, **FROM_THE_START}[rule_id]
    columns = healthy()
    fault(columns)
    [item] = judge_log(log_of(columns), select([rule_id]))
    assert item.finding.level is Level.ALARM, item.finding
    assert item.finding.step is not None
    assert start <= item.finding.step <= start + delay
    assert item.verdict.outcome is Outcome.FAIL
    assert item.rule.remedy in item.verdict.reason


@pytest.mark.parametrize(
    ("rule_id", "tag", "value", "later"),
    [
        ("preference-saturated", "train/loss", 0.0, 0),
        ("preference-inverted", "train/rewards/accuracies", 0.1, 20),
        ("preference-logprobs-constant", "train/logps/chosen", -50.0, 5),
    ],
)
def test_a_fault_of_a_preference_run(rule_id: str, tag: str, value: float, later: int) -> None:
    """The same for DPO."""
    columns = preference()
    columns["train/rewards/margins"] = columns["train/rewards/margins"] + 40 * (
        rule_id == "preference-saturated"
    )
    put(tag, value)(columns)
    [item] = judge_log(log_of(columns), select([rule_id]))
    assert item.finding.level is Level.ALARM
    assert item.finding.step is not None
    assert AT < item.finding.step <= AT + 1 + later


@pytest.mark.parametrize(
    ("name", "rule_id", "bad"),
    [
        ("ratio/mean", "ratio-off", 3.0),
        ("mismatch/mult_prob_error", "mismatch-mult-prob-error", 2.0),
        ("mismatch/kl", "mismatch-kl", 0.5),
        ("mismatch/prob_abs_diff", "mismatch-probs", 0.3),
        ("staleness/mean", "staleness-mean-grows", 30.0),
        ("staleness/max", "staleness-max-grows", 30.0),
        ("mismatch/kl", "mismatch-kl-grows", 0.05),
        ("mismatch/mult_prob_error", "mismatch-mult-prob-error-grows", 1.1),
        ("mismatch/prob_abs_diff", "mismatch-probs-grows", 0.04),
        ("mismatch/importance_ratio", "mismatch-importance-ratio-grows", 1.4),
    ],
)
def test_a_metric_that_leaves_its_range(name: str, rule_id: str, bad: float) -> None:
    """Metrics that TRL does not log: quiet while neutral, an alarm when they stay away."""
    neutral = 1.0 if name.endswith(("ratio", "ratio/mean", "mult_prob_error")) else 0.0
    values = neutral + 1e-3 * np.random.default_rng(0).random(100)
    [rule] = select([rule_id])
    assert rule.judge(streams(**{name: values})).level is Level.QUIET
    values[50:] = bad
    finding = rule.judge(streams(**{name: values}))
    assert finding.level is Level.ALARM
    assert finding.step is not None and 51 <= finding.step <= 62


def test_clipping_that_never_happens() -> None:
    """Ratios of 5 with a clip fraction of zero; it is quiet where something is clipped."""
    [rule] = select(["clip-never"])
    ratios, none = np.full(30, 5.0), np.zeros(30)
    assert rule.judge(streams(**{"ratio/max": ratios, "clip_fraction": none})).level is Level.ALARM
    assert rule.judge(streams(**{"ratio/max": ratios, "clip_fraction": none + 0.1})).level is Level.QUIET


def streams(**columns: Floats) -> Streams:
    """Return series that already have canonical names."""
    made = {
        name: Series(tag=name, steps=np.arange(1, len(values) + 1), values=values)
        for name, values in columns.items()
    }
    return Streams(log=log_of({}), stack=None, by_name={name: [series] for name, series in made.items()})


@pytest.mark.parametrize(
    "tag", ["train/grad_norm", "train/kl", "train/entropy", "train/sampling/sampling_logp_difference/mean"]
)
def test_a_spike_that_recovers_is_no_alarm(tag: str) -> None:
    """One step a thousand times too high."""
    columns = healthy()
    columns[tag][AT] *= 1000
    assert [
        item.rule.id for item in judge_log(log_of(columns), all_rules()) if item.finding.level is Level.ALARM
    ] == []


def test_a_solved_task_is_no_alarm() -> None:
    """Every reward at its best: groups without spread, gradients of zero, an entropy that is gone."""
    columns = healthy()
    put("train/reward", 1.0)(columns)
    for tag in ("train/reward_std", "train/grad_norm", "train/loss"):
        put(tag, 0.0)(columns)
    put("train/frac_reward_zero_std", 1.0)(columns)
    put("train/entropy", lambda tail: 1e-4 * tail)(columns)
    alarms = [
        item.rule.id for item in judge_log(log_of(columns), all_rules()) if item.finding.level is Level.ALARM
    ]
    assert alarms == []


def test_a_scaled_gradient_may_overflow_twice_and_a_loss_never() -> None:
    """As under loss scaling of float16."""
    columns = healthy()
    columns["train/grad_norm"][0] = columns["train/grad_norm"][1] = np.inf
    [item] = judge_log(log_of(columns), select(["finite"]))
    assert item.finding.level is Level.NOTICE
    columns["train/grad_norm"][2] = np.inf
    [item] = judge_log(log_of(columns), select(["finite"]))
    assert (item.finding.level, item.finding.step) == (Level.ALARM, 3)


@pytest.mark.parametrize("rule", [rule for rule in all_rules() if rule.needs], ids=lambda rule: rule.id)
def test_a_rule_without_its_inputs_names_what_would_arm_it(rule) -> None:  # type: ignore[no-untyped-def]
    """It is Skipped, never Pass."""
    item = judge_streams(Streams(log=log_of({}), stack=stack_named("trl"), by_name={}), [rule])[0]
    assert item.verdict.outcome is Outcome.SKIPPED
    assert item.finding.missing
    assert set(item.finding.missing) <= set(rule.needs)


def test_notices_that_never_alarm() -> None:
    """Steps written twice, gaps, drift of time: told, and no failure."""
    columns = healthy()
    put("train/step_time", 60.0)(columns)
    log = log_of(columns)
    loss = log.series["train/loss"]
    kept = np.r_[0:40, 70 : len(loss)]
    object.__setattr__(loss, "steps", loss.steps[kept])
    object.__setattr__(loss, "values", loss.values[kept])
    object.__setattr__(loss, "disputed", np.array([7]))
    judged = judge_log(log, select(["step-time-grows", "steps-missing", "steps-twice"]))
    assert [(item.rule.id, item.finding.level, item.finding.step) for item in judged][:2] == [
        ("steps-twice", Level.NOTICE, 7),
        ("steps-missing", Level.NOTICE, 40),
    ]
    assert judged[2].finding.level is Level.NOTICE
    assert {item.verdict.outcome for item in judged} == {Outcome.PASS}
