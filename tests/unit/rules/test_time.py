"""Rules that count steps and shares of the run: trends, lengths at the limit, hacked rewards, rounded values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.rules.made_logs import Floats, healthy, log_of

from seatrial.evidence.runlog import RunLog, Series
from seatrial.rules.engine import is_evidence, judge_log, select
from seatrial.rules.rule import Finding, Level, streams_of
from seatrial.rules.windows import fallen, is_rounded, trend
from seatrial.vocabulary import by_parts, canonical, plain_names, stack_named, stacks


def finding(rule: str, columns: dict[str, Floats], stride: int = 1) -> Finding:
    """Return what a rule finds in a log with a row every `stride` steps."""
    log = log_of(columns)
    series: dict[str, Series] = {
        tag: replace(one, steps=one.steps * stride) for tag, one in log.series.items()
    }
    return judge_log(RunLog(sources=["made"], series=series), select([rule]))[0].finding


@pytest.mark.parametrize("number", [21, 39, 40, 1000, 1237])
def test_a_long_series_has_the_trend_of_the_means_of_twenty_blocks(number: int) -> None:
    values = np.cumsum(np.random.default_rng(number).standard_normal(number))
    means = np.array([block.mean() for block in np.array_split(values, 20)])
    assert trend(values) == trend(means) != 0


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_a_fall_is_found_where_its_share_of_the_level_is_large_enough(share: float) -> None:
    """The level falls from 2 to 1 with little noise: by half of itself."""
    random = np.random.default_rng(0)
    values = np.concatenate([2 + 0.01 * random.standard_normal(200), 1 + 0.01 * random.standard_normal(100)])
    _, found = fallen(values, {"share": share, "part": 0.3, "widths": 6.5})
    assert found.any() == (share < 0.5)


def test_the_test_of_a_trend_has_its_error_rate() -> None:
    """Noise exceeds 1.96 in about 5 % of 1,000 series; a rise of two spreads is nearly always seen."""
    random = np.random.default_rng(0)
    for number in (12, 60, 300):
        noise = random.standard_normal((1000, number))
        false = np.mean([abs(trend(row)) > 1.96 for row in noise])
        assert 0.02 <= false <= 0.07
        found = np.mean([trend(row + 2 * np.arange(number) / number) > 1.96 for row in noise[:200]])
        assert found > (0.95 if number >= 60 else 0.3)


@pytest.mark.parametrize("stride", [5, 50])
def test_a_run_in_which_nothing_moves_does_not_learn(stride: int) -> None:
    """Reward, entropy, KL and length without a trend over 600 or 6,000 steps; a few steps say nothing."""
    random = np.random.default_rng(3)
    names = ("train/reward", "train/entropy", "train/kl", "train/completions/mean_length")
    columns = {name: 1 + 0.1 * random.random(120) for name in names}
    few = {name: values[:80] for name, values in columns.items()}
    assert finding("does-not-learn", columns, stride).level >= Level.NOTICE
    assert finding("does-not-learn", few, 1).level is Level.QUIET


def test_runs_that_learn_are_not_said_to_be_stuck_or_hacked() -> None:
    """On 50 made runs that learn, of which one is logged every 20 steps."""
    for seed in range(50):
        for rule in ("does-not-learn", "reward-hacked", "length-at-limit", "length-runs-away"):
            assert finding(rule, healthy(seed), stride=20).level is Level.QUIET


@pytest.mark.parametrize(
    ("learns", "stride", "level"),
    [(False, 10, Level.NOTICE), (False, 2, Level.QUIET), (True, 10, Level.QUIET)],
    ids=["stuck", "of few steps", "learns late"],
)
def test_a_reward_without_a_trend_in_few_rows(learns: bool, stride: int, level: Level) -> None:
    """40 rows of noise over 400 or 80 steps; or the first 15 of them, before a rise."""
    reward = 0.4 + 0.2 * np.random.default_rng(6).standard_normal(40)
    if learns:
        reward[15:] += np.linspace(0, 1, 25)
    assert finding("does-not-learn", {"reward": reward}, stride).level is level


@pytest.mark.parametrize(
    ("stride", "value", "level"),
    [
        (5, 0.0, Level.QUIET),
        (10, 0.0, Level.NOTICE),
        (25, 0.0, Level.ALARM),
        (25, 0.5, Level.NOTICE),
    ],
)
def test_a_constant_reward_in_few_rows_counts_by_steps(stride: int, value: float, level: Level) -> None:
    """Seven rows of one reward over 30, 60 or 150 steps; a constant above 0 may be a solved task."""
    assert finding("reward-constant", {"reward": np.full(7, value)}, stride).level is level
    assert finding("reward-constant", {"reward": np.arange(7) / 7}, stride).level is Level.QUIET


@pytest.mark.parametrize(
    ("shape", "level"),
    [
        ("falls", Level.ALARM),
        ("dips", Level.QUIET),
        ("rises", Level.QUIET),
    ],
)
def test_a_reward_that_falls_early_and_stays_low(shape: str, level: Level) -> None:
    """40 rows, one in five steps: 0.9 for eight of them, then 0.1 or, after seven, 0.9 again."""
    reward = np.full(40, 0.9) + 0.05 * np.random.default_rng(4).standard_normal(40)
    reward[8 : 15 if shape == "dips" else 40] -= 0.8
    if shape == "rises":
        reward = reward[::-1].copy()
    assert finding("reward-declines", {"reward": reward}, 5).level is level


def test_a_reward_without_a_change_seldom_declines() -> None:
    """At most 3 % of 200 series of noise alarm, also over many steps."""
    random = np.random.default_rng(12)
    alarms = [
        finding("reward-declines", {"reward": random.standard_normal(60)}, 10).level for _ in range(200)
    ]
    assert alarms.count(Level.ALARM) <= 6


@pytest.mark.parametrize("shape", ["mostly zero", "with a gradient", "solved", "half of the points"])
def test_a_printed_loss_of_zero_at_most_points_is_noticed(shape: str) -> None:
    """20 rows, 16 with a loss of 0.0000, unless a gradient shows updates or these steps have the best reward."""
    loss = np.zeros(20)
    loss[[0, 5, 11, 12]] = 0.02
    reward = np.tile([0.0, 0.5, 0.25, 0.75], 5)
    columns = {"loss": loss, "reward": reward}
    if shape == "with a gradient":
        columns["grad_norm"] = np.full(20, 0.3)
    elif shape == "solved":
        columns["reward"] = np.where(loss > 0, 0.2, 1.0)
    elif shape == "half of the points":
        loss[::2] = 0.02
    expected = Level.NOTICE if shape == "mostly zero" else Level.QUIET
    assert finding("policy-deterministic", columns).level is expected


def test_a_solved_task_of_one_length_is_not_at_its_limit() -> None:
    """Every answer has five tokens from the start; the reward is at its best after a few of 120 steps."""
    random = np.random.default_rng(2)
    reward = np.minimum(1, 0.5 + 0.1 * np.arange(120)) - 0.01 * random.random(120)
    columns = {"reward": reward, "completion_length": np.full(120, 5.0)}
    assert finding("length-at-limit", columns).level is Level.NOTICE
    columns["reward"] = 0.3 + 0.1 * random.standard_normal(120)
    assert finding("length-at-limit", columns).level is Level.ALARM


@pytest.mark.parametrize(
    ("early", "late", "gain", "level"),
    [(200, 1000, 0, Level.ALARM), (10, 60, 0, Level.QUIET), (200, 1000, 2, Level.NOTICE)],
    ids=["long", "short answers", "reward rises"],
)
def test_a_length_that_grows_several_fold(early: int, late: int, gain: float, level: Level) -> None:
    random = np.random.default_rng(5)
    columns = {
        "reward": 0.1 * random.standard_normal(50) + np.linspace(0, gain, 50),
        "completion_length": np.linspace(early, late, 50),
    }
    assert finding("length-runs-away", columns).level is level


@pytest.mark.parametrize(("gain", "level"), [(0, Level.ALARM), (2, Level.NOTICE)], ids=["flat", "plateau"])
def test_a_reference_that_differs_is_an_alarm_where_nothing_was_learned(gain: float, level: Level) -> None:
    """160 steps with a KL of 0.8 from the first; in one run the reward rises in 40 steps and stays there."""
    reward = 0.3 * np.random.default_rng(8).standard_normal(160)
    reward += np.minimum(gain, np.linspace(0, 4 * gain, 160))
    assert finding("kl-at-start", {"reward": reward, "kl": np.full(160, 0.8)}).level is level


@pytest.mark.parametrize(("nulls", "level"), [([0, 1], Level.QUIET), ([0, 30], Level.NOTICE)])
def test_a_null_before_the_first_value_is_no_gap(nulls: list[int], level: Level) -> None:
    log = log_of({"reward": np.random.default_rng(9).random(60)})
    flags = np.zeros(60, dtype=np.bool_)
    flags[nulls] = True
    series = log.series["reward"]
    series = replace(series, values=np.where(flags, np.nan, series.values), nulls=flags)
    judged = judge_log(RunLog(sources=["made"], series={"reward": series}), select(["finite"]))
    assert judged[0].finding.level is level


@pytest.mark.parametrize(
    ("rises", "level"), [(False, Level.ALARM), (True, Level.NOTICE)], ids=["flat", "rising"]
)
def test_lengths_at_the_limit_count_in_shares_of_the_run(rises: bool, level: Level) -> None:
    """24 rows, one in ten steps, cut off from the eighth on: an alarm unless the reward rises."""
    random = np.random.default_rng(1)
    reward = 0.1 * random.random(24) + (np.arange(24) / 24 if rises else 0)
    columns = {"reward": reward, "response_length": np.full(24, 512.0), "truncation_fraction": np.ones(24)}
    columns["truncation_fraction"][:6] = 0.2
    assert finding("length-at-limit", columns, stride=10).level is level


@pytest.mark.parametrize(
    ("cut", "gain", "level"),
    [(0.85, 0, Level.ALARM), (0.85, 1, Level.NOTICE), (0.5, 0, Level.QUIET)],
    ids=["most cut", "most cut and rising", "half of them cut"],
)
def test_most_completions_cut_in_few_rows(cut: float, gain: float, level: Level) -> None:
    """60 rows, one in five steps, whose truncation varies by 0.1 about its mean."""
    random = np.random.default_rng(13)
    columns = {
        "reward": 0.1 * random.standard_normal(60) + np.linspace(0, gain, 60),
        "response_length": 400 + 20 * random.standard_normal(60),
        "truncation_fraction": cut + 0.1 * (2 * random.random(60) - 1),
    }
    assert finding("length-at-limit", columns, stride=5).level is level


def test_a_length_that_grows_tenfold_alarms() -> None:
    """From 50 to 2,000 tokens while the reward stays."""
    columns = {"reward": np.full(30, 0.1), "completion_length": np.geomspace(50, 2000, 30)}
    assert finding("length-runs-away", columns).level is Level.ALARM


@pytest.mark.parametrize(
    "name", ["eval/recall@10", "test/ndcg@10", "val/accuracy", "eval/pass@1", "eval/win_rate"]
)
def test_a_reward_that_rises_while_validation_falls_is_hacked(name: str) -> None:
    """Validation metrics are recognised by name; both rising is no hack."""
    rising, falling = np.linspace(0.2, 0.9, 20), np.linspace(0.5, 0.2, 20)
    assert finding("reward-hacked", {"reward": rising, name: falling}, 10).level is Level.ALARM
    assert finding("reward-hacked", {"reward": rising, name: falling[::-1].copy()}, 10).level is Level.QUIET


def test_a_learning_rate_of_zero_among_rounded_values_is_a_notice() -> None:
    """verl's older consoles print `lr:0.000`."""
    columns = {
        "lr": np.zeros(20),
        "loss": np.round(np.linspace(0.9, 0.1, 20), 3),
        "reward": np.full(20, 0.125),
    }
    assert finding("learning-rate-zero", columns).level is Level.NOTICE
    columns["loss"] = columns["loss"] + 1e-7
    assert finding("learning-rate-zero", columns).level is Level.ALARM
    assert not is_rounded(np.array([1.0, 2.0]))


def test_an_evaluation_that_recovers_from_nan_is_a_notice() -> None:
    """One NaN among finite losses of validation; at the end it alarms."""
    columns = {"loss": np.linspace(1, 0.1, 10), "eval_loss": np.linspace(1, 0.5, 10)}
    columns["eval_loss"][4] = np.nan
    assert finding("finite", columns).level is Level.NOTICE
    columns["eval_loss"][-1] = np.nan
    assert finding("finite", columns).level is Level.ALARM


def test_losses_of_policy_gradients_and_distillation_may_be_negative() -> None:
    """A supervised loss may not."""
    loss = {"loss": np.full(10, -0.3), "lr": np.full(10, 1e-5)}
    assert finding("likelihood-loss-negative", loss).level is Level.ALARM
    for other in ("actor/pg_clipfrac", "distill/teacher_nll", "opd/kld", "num_advantages/policy"):
        columns = {**loss, other: np.ones(10)}
        assert finding("likelihood-loss-negative", columns).level is Level.NOT_TRIGGERED


def test_zero_gradients_of_groups_without_spread_are_explained() -> None:
    """Solved or sparse: rewards of each group are equal, so that no gradient is due. Where they differ it alarms."""
    columns = {"grad_norm": np.zeros(20), "reward": np.ones(20), "reward_std": np.zeros(20)}
    assert finding("gradient-zero", columns).level is Level.NOTICE
    columns["reward_std"] = np.full(20, 0.4)
    columns["reward"] = np.linspace(0, 1, 20) % 0.3
    assert finding("gradient-zero", columns).level is Level.ALARM


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("train/meanReward (avg)", "reward/mean"),
        ("gradnorm", "grad_norm"),
        ("frac_truncated", "truncation_fraction"),
        ("env/reward", "reward/mean"),
        ("reward/mean", "reward/mean"),
        ("policy/entropy", "entropy"),
        ("kl_div", "kl/reference"),
        ("objective/scores", "reward/mean"),
        ("grad/norm", "grad_norm"),
        ("policy/entropy_avg", "entropy"),
        ("loss/policy_avg", "loss"),
        ("val/ratio", None),
        ("rewards/format/std", None),
        ("kl_coef", None),
        ("loss/value_avg", None),
        ("eval/loss", "validation/loss"),
    ],
)
def test_names_are_matched_by_their_parts(tag: str, name: str | None) -> None:
    """Words that say where a metric is measured do not count; a coefficient or one function's spread is no metric."""
    assert by_parts(tag) == name


def test_a_log_of_unknown_names_is_no_evidence() -> None:
    """Finite values alone say nothing of learning; with a reward they do."""
    every = select([])
    columns: dict[str, Floats] = {"alpha": np.linspace(0, 1, 40)}
    assert not is_evidence(judge_log(log_of(columns), every))
    columns["policy/entropy"] = columns["reward/mean"] = np.linspace(1, 2, 40)
    assert is_evidence(judge_log(log_of(columns), every))


def test_naming_a_stack_leaves_plain_names_known() -> None:
    """LLaMA-Factory's TensorBoard has the names of Hugging Face: zero gradients alarm with the stack named, too."""
    steps = np.arange(60)
    columns = {
        "train/loss": 1 / (steps + 1),
        "train/grad_norm": np.zeros(60),
        "train/learning_rate": 1e-5 + 0 * steps,
    }
    for stack in (None, stack_named("llama-factory")):
        assert judge_log(log_of(columns), select(["gradient-zero"]), stack)[0].finding.level is Level.ALARM


@pytest.mark.parametrize("stack", sorted(stacks()))
def test_plain_names_mean_the_same_under_every_stack(stack: str) -> None:
    """A log of one tag under a plain name has the same metric with a stack named as without."""
    tags = [*plain_names(), "policy/entropy", "objective/scores", "train/ppo_kl", "grad/norm", "kl_div"]
    for tag in tags:
        log = log_of({tag: np.linspace(0, 1, 9)})
        assert streams_of(log, stack_named(stack)).by_name.keys() == streams_of(log).by_name.keys(), tag


def test_the_spread_of_a_reward_function_is_no_reward() -> None:
    """`rewards/X/mean` is a component of the reward, `rewards/X/std` is not."""
    trl = stack_named("trl")
    mean = canonical("train/rewards/format/mean", trl)
    assert mean is not None and mean.name == "reward/component"
    assert canonical("train/rewards/format/std", trl) is None


def test_zero_gradients_that_chance_explains_are_a_notice() -> None:
    """A log of one step in five: 85 % of groups agree, so that runs of zero gradients come and go."""
    random = np.random.default_rng(5)
    zero = random.random(80) < 0.85
    columns = {
        "train/reward": 0.8 + 0.1 * random.standard_normal(80),
        "train/reward_std": 0.1 + 0.1 * random.random(80),
        "train/frac_reward_zero_std": 0.8 + 0.1 * random.random(80),
        "train/grad_norm": np.where(zero, 0.0, 0.2),
    }
    for rule in ("gradient-zero", "gradient-dead"):
        assert finding(rule, columns, 5).level < Level.ALARM
    columns["train/frac_reward_zero_std"] *= 0
    columns["train/grad_norm"] = np.where(np.arange(80) < 40, 0.2, 0.0)
    assert finding("gradient-zero", columns, 5).level is Level.ALARM


def test_zero_losses_of_solved_steps_are_no_deterministic_policy() -> None:
    """Half of the steps have the best reward and no loss; the rest still has one."""
    random = np.random.default_rng(2)
    solved = np.arange(100) % 2 == 0
    reward = np.where(solved, 1.0, 0.5 * random.random(100))
    loss = np.where(solved & (np.arange(100) > 30), 0.0, -1 - random.random(100))
    columns = {"train/reward": reward, "train/loss": loss, "train/reward_std": 0.1 + 0 * loss}
    assert finding("policy-deterministic", columns).level is not Level.ALARM
    columns["train/loss"] = np.where(np.arange(100) > 40, 0.0, loss)
    columns["train/reward"] = 0.3 + 0.2 * random.standard_normal(100)
    assert finding("policy-deterministic", columns).level is Level.ALARM


@pytest.mark.parametrize("number", [15, 60])
def test_a_loss_that_is_zero_for_a_third_of_the_run(number: int) -> None:
    random = np.random.default_rng(4)
    late = np.arange(number) >= number // 2
    loss = np.where(late, 0.0, 0.1 * random.standard_normal(number))
    columns = {"train/loss": loss, "train/reward": random.standard_normal(number)}
    assert finding("updates-stop", columns).level is Level.ALARM
    tiny = {**columns, "train/loss": 1e-6 * random.standard_normal(number)}
    assert finding("updates-stop", tiny).level is Level.QUIET
    assert (
        finding("updates-stop", {**columns, "train/reward": np.where(late, 1.0, 0.2)}).level is Level.NOTICE
    )


def test_lengths_that_are_one_whole_number_are_at_the_limit() -> None:
    """No share of cut completions and no longest one is logged: a mean of 128.0 in every step shows it."""
    random = np.random.default_rng(6)
    reward = 0.02 * random.random(100)
    flat = {
        "train/completion_length": np.full(100, 128.0),
        "train/reward": reward,
        "train/reward_std": reward,
    }
    assert finding("length-at-limit", flat).level is Level.ALARM
    moving = {**flat, "train/completion_length": 128 - random.random(100)}
    assert finding("length-at-limit", moving).level is Level.QUIET


@pytest.mark.parametrize("falls", [True, False])
def test_a_validation_that_falls_on_its_own_steps(falls: bool) -> None:
    """Ranking scores under bare names, at one step in twenty, while the reward rises; another score rises."""
    random = np.random.default_rng(8)
    steps = np.arange(140)
    score = 0.04 - 0.002 * np.arange(7) * falls + 1e-5 * random.standard_normal(7)
    columns = {
        "reward_mean": (steps, steps / 700 + 0.02 * random.standard_normal(140)),
        "recall@10": (steps[::20], score),
        "cold_recall@10": (steps[::20], np.linspace(0.01, 0.02, 7)),
    }
    series = {tag: Series(tag=tag, steps=at, values=values) for tag, (at, values) in columns.items()}
    found = judge_log(RunLog(sources=["made"], series=series), select(["reward-hacked"]))[0].finding
    assert (found.level is Level.ALARM) == falls
    assert ('"recall@10"' in found.reason) == falls


@pytest.mark.parametrize(
    ("late", "level"),
    [(0.45, Level.ALARM), (0.6, Level.QUIET), (None, Level.QUIET)],
    ids=["below", "best", "moves"],
)
def test_a_validation_that_freezes(late: float | None, level: Level) -> None:
    """Below its best to the last digit for most of the run; at its best, or moving, it is in order."""
    random = np.random.default_rng(9)
    score = np.round(0.5 + 0.1 * random.random(20), 3)
    score[2] = 0.6
    if late is not None:
        score[8:] = late
    assert finding("validation-freezes", {"val_accuracy": score}).level is level


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_reward_that_declines(sign: int) -> None:
    random = np.random.default_rng(10)
    columns = {"reward": sign * np.arange(60) / 30 + 0.3 * random.standard_normal(60)}
    assert finding("reward-declines", columns).level is (Level.ALARM if sign < 0 else Level.QUIET)
    still = [finding("reward-declines", {"reward": random.standard_normal(100)}).level for _ in range(100)]
    assert still.count(Level.ALARM) <= 1


def _supervised(shape: str) -> Floats:
    random = np.random.default_rng(11)
    noise, steps = random.standard_normal(200), np.arange(200)
    return {
        "falls": 1 + np.exp(-steps / 50) + 0.05 * noise,
        "flat": 1 + 0.05 * noise,
        "rises": 1 + steps / 100 + 0.05 * noise,
        "zero": np.where(steps > 50, 0.0, 1 + 0.05 * noise),
        "explodes": np.where(steps > 50, 1e8, 1 + 0.05 * noise),
    }[shape]


@pytest.mark.parametrize(
    ("shape", "rule", "level"),
    [
        ("flat", "loss-does-not-fall", Level.NOTICE),
        ("rises", "loss-rises", Level.ALARM),
        ("zero", "loss-zero", Level.ALARM),
        ("explodes", "loss-exploding", Level.ALARM),
    ],
)
def test_losses_of_fine_tuning(shape: str, rule: str, level: Level) -> None:
    """Each fault has its rule; a loss that falls has none; a log with a reward is not one of fine-tuning."""
    columns = {"loss": _supervised(shape), "lr": np.full(200, 1e-5)}
    assert finding(rule, columns).level is level
    assert finding(rule, {**columns, "loss": _supervised("falls")}).level is Level.QUIET
    if rule != "loss-exploding":
        assert finding(rule, {**columns, "reward": columns["loss"]}).level is Level.NOT_TRIGGERED
    judged = judge_log(log_of(columns), select([]))
    assert is_evidence(judged)
