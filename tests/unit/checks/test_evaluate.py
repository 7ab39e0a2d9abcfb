"""What a check says of a log: values, bounds, guards, outcomes."""

import itertools
import math
from collections.abc import Callable

import pytest

from seatrial.checks import evaluate_check, parse_check
from seatrial.errors import UsageError
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome, Verdict

MakeLog = Callable[..., RunLog]
NAN, INF = math.nan, math.inf
FIVE = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 5.0}


def judge(text: str, log: RunLog, **options: object) -> Verdict:
    return evaluate_check(parse_check(text), log, **options)  # type: ignore[arg-type]


# Rows of NeMo RL's range rule, run on steps 1..5 with values 1..5 (nemo_rl/tests/check_metrics.py, commit 7ea279a).
@pytest.mark.parametrize(
    ("call", "value"),
    [
        ('mean(data["x"])', 3.0),
        ('mean(data["x"], 2)', 3.5),
        ('mean(data["x"], -1)', 5.0),
        ('mean(data["x"], -2)', 4.5),
        ('mean(data["x"], -3, -1)', 3.5),
        ('mean(data["x"], -5, -1)', 2.5),
        ('mean(data["x"], 2, 4)', 2.5),
        ('mean(data["x"], -5)', 3.0),
        ('mean(data["x"], 1, 6)', 3.0),
        ('mean(data["x"], ignore_top_p=0.19)', 2.5),
        ('mean(data["x"], ignore_top_p=1)', 1.0),
        ('median(data["x"], -2)', 4.5),
        ('median(data["x"])', 3.0),
        ('min(data["x"])', 1.0),
        ('max(data["x"])', 5.0),
        ('ratio_above(data["x"], 4)', 0.4),
        ('len(data["x"])', 5.0),
        ('abs(median(data["x"]) - 5)', 2.0),
        ('data["x"]["4"]', 4.0),
        ('(data["x"]["4"] - mean(data["x"], -4, -1)) / data["x"]["2"]', 0.5),
        ('-data["x"]["4"] * 2 + 1', -7.0),
        ('1.5 * (data["x"]["4"] - 2)', 3.0),
    ],
)
def test_values_are_those_of_nemo_rl_on_complete_finite_data(
    make_log: MakeLog, call: str, value: float
) -> None:
    assert judge(f"{call} == {value}", make_log({"x": FIVE})).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        ('std(data["x"])', math.sqrt(2.5)),
        ('quantile(data["x"], 0.5)', 3.0),
        ('quantile(data["x"], 0.9)', 4.6),
        ('slope(data["x"])', 1.0),
        ('slope(-2 * data["x"], last(3))', -2.0),
        ('count(data["x"], after(3))', 2.0),
        ('sum(data["x"], steps(2, 4))', 9.0),
        ('first(data["x"], after(2))', 3.0),
        ('last(data["x"])', 5.0),
        ('last(data["x"], steps(1, 3))', 3.0),
        ('max(data["x"], steps(1, 5, 3))', 4.0),
        ('mean(data["x"], last(2))', 4.5),
        ('coverage(data["x"], steps(1, 10))', 0.5),
        ('coverage(data["x"], steps(1, 9, 2))', 0.6),
        ('coverage(data["x"])', 1.0),
        ('max(abs(data["x"] - 3))', 2.0),
        ('mean(data["x"] * data["x"])', 11.0),
        ('sum(data["x"] / (data["x"] + 1), steps(1, 1))', 0.5),
        ('ratio_above(data["x"], median(data["x"]))', 0.6),
    ],
)
def test_values_of_the_functions_and_ranges_beyond_theirs(make_log: MakeLog, call: str, value: float) -> None:
    assert judge(f"{call} == {value}", make_log({"x": FIVE})).value == pytest.approx(value)


def test_coverage_sees_a_hole_between_sparse_steps(make_log: MakeLog) -> None:
    log = make_log({"x": {10: 1.0, 20: 1.0, 40: 1.0}})
    assert judge('coverage(data["x"]) == 1', log).value == pytest.approx(0.75)
    assert judge('coverage(data["x"], steps(10, 40, 10)) == 1', log).value == pytest.approx(0.75)


@pytest.mark.parametrize("dropped_share, num_values, num_kept", [(0.07, 100, 93), (0.1, 10, 9), (0.3, 10, 7)])
def test_ignore_top_p_counts_in_decimal(
    make_log: MakeLog, dropped_share: float, num_values: int, num_kept: int
) -> None:
    """NeMo RL's `int(n * (1 - p))` drops 8 of 100 for 0.07: binary 92.999... is cut down."""
    log = make_log({"x": {step: float(step) for step in range(1, num_values + 1)}})
    mean_of_kept = (num_kept + 1) / 2
    assert judge(f'mean(data["x"], ignore_top_p={dropped_share}) == 0', log).value == mean_of_kept


@pytest.mark.parametrize(
    ("steps", "call", "points_read", "why_not_theirs"),
    [
        ([101, 102, 103, 104, 105], 'mean(data["x"], 2)', 4, "theirs skips nothing on a resumed run"),
        ([101, 102, 103, 104, 105], 'mean(data["x"], 1, 3)', 2, "theirs finds no point"),
        (
            [10, 20, 30, 40],
            'mean(data["x"], -2)',
            2,
            "theirs takes gaps for a resume and reads the last point only",
        ),
        ([10, 20, 30, 40], 'mean(data["x"], -3, -1)', 2, "theirs reads one point"),
        ([0, 1, 2, 3], 'mean(data["x"])', 4, "theirs drops step 0 here and keeps it in max"),
        (
            [0, 1, 2, 3],
            'mean(data["x"], 1)',
            3,
            "same as theirs: position 1 is step 1 when step 0 was logged",
        ),
    ],
)
def test_positions_count_logged_points(
    make_log: MakeLog, steps: list[int], call: str, points_read: int, why_not_theirs: str
) -> None:
    verdict = judge(f"{call} < 1", make_log({"x": dict.fromkeys(steps, 0.0)}))
    assert verdict.outcome is Outcome.PASS
    assert verdict.num_samples == points_read, why_not_theirs


def test_a_step_logged_twice_counts_once_among_positions_and_the_last_one_is_the_point(
    make_log: MakeLog,
) -> None:
    log = make_log({"x": [(1, 1.0), (2, 2.0), (2, 3.0), (3, 9.0)]})
    assert judge('len(data["x"]) == 3', log).outcome is Outcome.PASS
    assert judge('count(data["x"]) == 4', log).outcome is Outcome.PASS
    assert judge('mean(data["x"], 2, 3) == 2.5', log).outcome is Outcome.PASS
    verdict = judge('data["x"]["2"] == 3', log)
    assert verdict.outcome is Outcome.PASS
    assert "step 2" in verdict.reason and "2 points" in verdict.reason


def test_points_are_read_by_step_whatever_the_order_of_writing(make_log: MakeLog) -> None:
    log = make_log({"x": [(3, 30.0), (1, 10.0), (2, 20.0)]})
    assert judge('first(data["x"]) == 10', log).outcome is Outcome.PASS
    assert judge('mean(data["x"], -1) == 30', log).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "call",
    [
        'min(data["x"])', 'max(data["x"])', 'mean(data["x"])', 'median(data["x"])', 'std(data["x"])',
        'sum(data["x"])', 'slope(data["x"])', 'quantile(data["x"], 0.5)', 'ratio_above(data["x"], 5)',
        'count(data["x"])', 'len(data["x"])', 'coverage(data["x"])', 'mean(data["x"], ignore_top_p=0.5)',
        'data["x"]["2"]', 'max(1 / data["x"])', 'max(0 * data["x"])', 'max(abs(data["x"]))',
        'max(data["x"] - data["x"])', 'first(data["x"], after(1))', 'last(data["x"], steps(1, 2))',
    ],
)  # fmt: skip
@pytest.mark.parametrize("bad", [NAN, INF, -INF, None], ids=["nan", "inf", "-inf", "null"])
def test_nothing_passes_on_a_value_that_is_not_finite(make_log: MakeLog, call: str, bad: float) -> None:
    log = make_log({"x": {1: 1.0, 2: bad, 3: 1.02}, "y": {1: 5.0}})
    for sign, joined in itertools.product(
        ("<", "<=", ">", ">=", "==", "!="), ("{}", "not {}", '{} or data["y"]["1"] > 0')
    ):
        verdict = judge(joined.format(f"{call} {sign} 1"), log)
        assert verdict.outcome is Outcome.FAIL, verdict
        assert "at step 2" in verdict.reason


def test_a_value_outside_the_range_read_does_not_count(make_log: MakeLog) -> None:
    log = make_log({"x": {1: NAN, 2: 1.0, 3: 1.0}})
    assert judge('max(data["x"], after(1)) < 2', log).outcome is Outcome.PASS
    assert judge('data["x"]["2"] < 2', log).outcome is Outcome.PASS
    assert judge('max(data["x"], last(2)) < 2', log).outcome is Outcome.PASS


def test_steps_that_are_not_finite_are_named_and_the_rest_counted(make_log: MakeLog) -> None:
    log = make_log({"x": dict.fromkeys(range(1, 21), NAN) | {21: INF, 22: 1.0}})
    assert (
        "NaN at steps 1, 2, 3, 4, 5 and 15 more and infinite at step 21"
        in judge('max(data["x"]) < 2', log).reason
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('max(data["train/rewrad"]) > 0', "nearest of its 8 tags: train/reward"),
        ('data["loss"]["1"] < 2', "train/loss"),
        ('data["train/reward"]["7"] < 2', "step 7 is not in"),
        ('data["train/reward"]["best"] < 2', "not a step"),
        ('max(data["score"]) < 2', "one number"),
        ('data["score"]["1"] < 2', "no steps"),
        ('"1" in data["score"]', "no steps"),
        ('max(data["empty"]) < 2', "no samples"),
        ('len(data["empty"]) == 0', "no samples"),
        ('"1" in data["empty"]', "no samples"),
        ('"1" not in data["empty"]', "no samples"),
        ('mean(data["train/reward"], 6) < 2', "no samples: the logged points from position 6"),
        ('mean(data["train/reward"], 4, 2) < 2', "no samples"),
        ('mean(data["train/reward"], after(5)) < 2', "no samples: the steps after 5"),
        ('mean(data["train/reward"], last(6)) < 2', "has 5 logged steps, asked for 6"),
        ('mean(data["train/reward"], -6, -1) < 2', "has 5 logged steps, asked for 6"),
        ('mean(data["train/reward"], -100) < 2', "has 5 logged steps, asked for 100"),
        ('mean(data["train/reward"], 2, 8) < 2', "has 5 logged steps, asked for 7"),
        ('std(data["train/reward"], last(1)) < 2', "not enough samples"),
        ('slope(data["train/reward"], last(1)) < 2', "not enough samples"),
        ('slope(data["twice"]) < 2', "all points"),
        ('coverage(data["train/reward"], last(1)) == 1', "not enough samples"),
        ('data["train/reward"]["1"] / (data["train/reward"]["1"] - 1) < 2', "division by zero"),
        ('max(1 / (data["train/reward"] - 3)) < 2', "a division by zero at step 3"),
        ('max(data["huge"] * data["huge"]) < 2', "too large"),
        ('data["huge"]["1"] * data["huge"]["1"] < 2', "not finite"),
        ('sum(data["huge"]) < 2', "too large"),
        ('max(data["train/hist"]) < 2', "holds a histogram, not scalars"),
    ],
)
def test_what_cannot_be_asked_fails_with_the_reason(make_log: MakeLog, text: str, says: str) -> None:
    log = make_log(
        {
            "train/reward": FIVE,
            "train/loss": FIVE,
            "empty": {},
            "twice": [(1, 1.0), (1, 2.0)],
            "huge": {1: 1e308, 2: 1e308},
        },
        scalars={"score": 0.3},
        unread={"train/hist": "a histogram"},
        other_tags=["timing/train/total_step_time"],
    )
    verdict = judge(text, log)
    assert verdict.outcome is Outcome.FAIL
    assert says in verdict.reason


def test_membership(make_log: MakeLog) -> None:
    log = make_log({"x": FIVE | {6: NAN}})
    present = judge('"5" in data["x"]', log)
    assert (present.outcome, present.value, present.num_samples, present.steps) == (
        Outcome.PASS,
        "present",
        1,
        (5, 5),
    )
    absent = judge('"7" in data["x"]', log)
    assert (absent.outcome, absent.value, absent.num_samples) == (Outcome.FAIL, "absent", 6)
    assert judge('"7" not in data["x"]', log).outcome is Outcome.PASS
    assert judge('"6" in data["x"]', log).outcome is Outcome.FAIL, "the point there is NaN"
    assert judge('"6" not in data["x"]', log).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("text", "outcome", "value", "bound"),
    [
        ('max(data["x"]) < 5.5', Outcome.PASS, 5.0, "< 5.5"),
        ('5.5 > max(data["x"])', Outcome.PASS, 5.0, "< 5.5"),
        ('1 <= max(data["x"]) < 4', Outcome.FAIL, 5.0, ">= 1 and < 4"),
        ('1 < max(data["x"]) < 9', Outcome.PASS, 5.0, "> 1 and < 9"),
        ('max(data["x"]) != 5', Outcome.FAIL, 5.0, "!= 5"),
        ('(max(data["x"])) == 5', Outcome.PASS, 5.0, "== 5"),
        ('not (mean(data["x"]) > 1)', Outcome.FAIL, 3.0, "not > 1"),
        ('data["score"] >= 0.2', Outcome.PASS, 0.3, ">= 0.2"),
        ('data["x"]["4"] < 0.9 * data["x"]["5"]', Outcome.PASS, 4.0, '< 4.5 (0.9 * data["x"]["5"])'),
        (
            'min(data["x"]) > 0 and max(data["x"]) < 4',
            Outcome.FAIL,
            'min(data["x"]) = 1; max(data["x"]) = 5',
            "> 0 and < 4",
        ),
        (
            'max(data["x"]) < 1 or min(data["x"]) > 0',
            Outcome.PASS,
            'max(data["x"]) = 5; min(data["x"]) = 1',
            "< 1 or > 0",
        ),
        (
            '0 < min(data["x"]) < max(data["x"]) < 9',
            Outcome.PASS,
            '1 (min(data["x"])); 5 (max(data["x"]))',
            '0 < 1 (min(data["x"])) < 5 (max(data["x"])) < 9',
        ),
    ],
)
def test_the_measured_side_is_the_value_and_the_other_the_bound(
    make_log: MakeLog, text: str, outcome: Outcome, value: object, bound: str
) -> None:
    verdict = judge(text, make_log({"x": FIVE}, scalars={"score": 0.3}))
    assert (verdict.outcome, verdict.value, verdict.bound) == (outcome, value, bound)


def test_a_value_that_reads_like_its_bound_is_shown_whole(make_log: MakeLog) -> None:
    verdict = judge('max(data["x"]) < 1.05', make_log({"x": {1: 1.0500000001}}))
    assert "1.0500000001" in verdict.reason


def test_samples_and_steps_are_the_points_read(make_log: MakeLog) -> None:
    log = make_log({"x": FIVE, "y": {10: 1.0, 20: 2.0}})
    verdict = judge('mean(data["x"], -4, -1) < 1.5 * data["x"]["5"] and max(data["y"]) < 3', log)
    assert (verdict.num_samples, verdict.steps) == (3 + 1 + 2, (2, 20))
    assert judge('min(data["x"]) <= 2 <= max(data["x"])', log).num_samples == 5, "each point counts once"


def test_every_part_of_an_or_meets_the_guards(make_log: MakeLog) -> None:
    log = make_log({"x": FIVE})
    assert judge('max(data["x"]) < 9 or max(data["missing"]) < 9', log).outcome is Outcome.FAIL


def test_damage_blocks_and_what_could_be_read_is_told(make_log: MakeLog) -> None:
    verdict = judge('max(data["x"]) < 9', make_log({"x": FIVE}, damage=["truncated after step 5", "other"]))
    assert verdict.outcome is Outcome.BLOCKED
    assert "truncated after step 5" in verdict.reason and "1 more" in verdict.reason
    assert verdict.details["readable_part"].startswith("Pass")


def test_a_tag_missing_from_a_damaged_log_is_blocked_not_failed(make_log: MakeLog) -> None:
    assert judge('max(data["y"]) < 9', make_log({"x": FIVE}, damage=["truncated"])).outcome is Outcome.BLOCKED


def test_allowed_nonfinite_values_are_left_out_and_told(make_log: MakeLog) -> None:
    log = make_log({"x": {1: 1.0, 2: NAN, 3: 3.0, 4: None}, "y": {1: NAN}})
    verdict = judge('mean(data["x"]) == 2', log, allow_nonfinite=["x"])
    assert (verdict.outcome, verdict.num_samples) == (Outcome.PASS, 2)
    assert verdict.details["allowed_nonfinite"] == {"x": [2, 4]}
    assert "2 steps" in verdict.reason
    assert judge('max(data["y"]) < 2', log, allow_nonfinite=["x"]).outcome is Outcome.FAIL
    assert judge('max(data["y"]) < 2', log, allow_nonfinite=["y"]).outcome is Outcome.FAIL, "nothing is left"
    assert judge('data["x"]["2"] < 2', log, allow_nonfinite=["x"]).outcome is Outcome.FAIL, "nothing is left"


def test_permission_does_not_cover_what_arithmetic_makes(make_log: MakeLog) -> None:
    log = make_log({"x": {1: 1.0, 2: NAN}, "y": {1: 0.0, 2: 1.0}})
    assert judge('max(data["x"] / data["y"]) < 2', log, allow_nonfinite=["x"]).outcome is Outcome.FAIL
    assert judge('max(data["x"] * data["y"]) < 2', log, allow_nonfinite=["x"]).outcome is Outcome.PASS


def test_runs_are_compared_point_by_point(make_log: MakeLog) -> None:
    baseline = make_log({"x": {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 5.5}})
    check = 'max(abs(data["x"] - run("old")["x"])) < 0.1'
    verdict = judge(check, make_log({"x": FIVE}), runs={"old": baseline})
    assert (verdict.outcome, verdict.value, verdict.num_samples) == (Outcome.FAIL, 0.5, 10)
    assert judge(check, make_log({"x": FIVE}), runs={"old": make_log({"x": FIVE})}).outcome is Outcome.PASS


def test_series_of_unequal_steps_are_not_paired(make_log: MakeLog) -> None:
    short = make_log({"x": {1: 1.0, 2: 2.0, 3: 3.0}})
    check = 'max(abs(data["x"] - run("golden")["x"])) < 0.1'
    verdict = judge(check, short, runs={"golden": make_log({"x": FIVE})})
    assert verdict.outcome is Outcome.FAIL
    assert 'run("golden")["x"] alone has steps 4, 5' in verdict.reason
    ranged = 'max(abs(data["x"] - run("golden")["x"]), steps(1, 3)) < 0.1'
    assert judge(ranged, short, runs={"golden": make_log({"x": FIVE})}).outcome is Outcome.PASS


def test_damage_in_a_run_compared_with_blocks(make_log: MakeLog) -> None:
    runs = {"old": make_log({"x": FIVE}, damage=["cut"])}
    assert (
        judge('max(data["x"]) < 2 * max(run("old")["x"])', make_log({"x": FIVE}), runs=runs).outcome
        is Outcome.BLOCKED
    )


def test_a_run_that_is_not_given_is_wrong_usage(make_log: MakeLog) -> None:
    with pytest.raises(UsageError, match="--run NAME=PATH"):
        judge('max(run("old")["x"]) < 2', make_log({"x": FIVE}))


@pytest.mark.parametrize(
    "text",
    [
        'min(data["train/probs_ratio_clamped_min"]) > 0.79',
        'abs(max(data["train/loss"])) >= 0',
        'max(data["train/loss"]) <= max(data["train/loss"])',
        'max(data["train/loss"]) < 3 or max(data["train/loss"]) >= 3',
        'ratio_above(data["train/loss"], 3) >= 0',
        'len(data["train/loss"]) >= 0',
    ],
)
def test_a_check_that_cannot_fail_is_never_a_pass(make_log: MakeLog, text: str) -> None:
    good = make_log({"train/loss": FIVE, "train/probs_ratio_clamped_min": {1: 0.8000000119, 2: 0.9}})
    verdict = judge(text, good)
    assert verdict.outcome is Outcome.SKIPPED
    assert "cannot fail" in verdict.reason
    bad = make_log({"train/loss": {1: NAN}, "train/probs_ratio_clamped_min": {1: NAN}})
    assert judge(text, bad).outcome is Outcome.FAIL


def test_a_range_that_the_log_contradicts_is_not_believed(make_log: MakeLog) -> None:
    """With clip 0.28, or the sentinel -1.0 of a batch without a finite ratio, the check can fail after all."""
    check = 'max(data["train/probs_ratio_clamped_max"]) < 1.21'
    assert judge(check, make_log({"train/probs_ratio_clamped_max": {1: 1.28}})).outcome is Outcome.FAIL
    below = 'min(data["train/probs_ratio_clamped_min"]) < 1.21'
    assert judge(below, make_log({"train/probs_ratio_clamped_min": {1: -1.0}})).outcome is Outcome.PASS
