"""Faults of checks that are known before a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.checks import FindingKind, Interval, clip_ranges, evaluate_check, lint_check, parse_check
from seatrial.checks.known_ranges import ranges_of_stack
from seatrial.checks.language.nodes import Comparison, references
from seatrial.checks.language.truth import interval_of, truth_of
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome
from seatrial.vocabulary import stack_named

MakeLog = Callable[..., RunLog]
RANGES = {
    "share": Interval(0.0, 1.0),
    "norm": Interval(0.0),
    "timing/*": Interval(0.0),
    "cost": Interval(-2.0, -1.0),
}


def kinds(text: str, **options: object) -> list[FindingKind]:
    return [finding.kind for finding in lint_check(parse_check(text), ranges=RANGES, **options)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        'max(data["share"]) < 1.01',
        'data["share"]["3"] <= 1',
        'mean(data["share"], -6, -1) >= 0',
        '1.5 > 1 - mean(data["share"])',
        'min(2 * data["share"] - 3) < 0',
        'std(data["x"]) >= 0',
        'std(data["share"]) <= 1',
        'sum(data["norm"]) >= 0',
        'max(data["cost"]) / min(data["cost"]) > 0',
        'mean(data["x"] * data["x"]) >= 0',
        'data["x"]["1"] * data["x"]["1"] > -1',
        'abs(data["x"]["1"]) >= 0',
        'max(abs(data["cost"])) <= 2',
        'ratio_above(data["x"], 3) <= 1',
        'coverage(data["x"]) <= 1',
        'count(data["x"]) >= 0',
        'len(data["x"]) > -1',
        'max(data["x"]) <= max(data["x"])',
        'max(data["x"]) == max(data["x"])',
        'min(data["x"]) <= max(data["x"])',
        'min(data["x"], last(3)) <= mean(data["x"], last(3))',
        'max(data["x"]) >= quantile(data["x"], 0.9)',
        '0 * max(data["x"]) < 1',
        'max(data["x"]) - max(data["x"]) == 0',
        'max(data["x"]) < 1 or max(data["x"]) >= 1',
        'max(data["x"]) < 1 or data["y"]["1"] > 0 or max(data["x"]) > 0',
        'not (max(data["x"]) < 1 and max(data["x"]) > 2)',
        'not (max(data["share"]) > 1)',
        'max(data["x"]) != 1 or max(data["x"]) != 2',
        '-1 < data["share"]["1"] < 2',
        'data["timing/train/generation"]["1"] >= 0',
    ],
)
def test_checks_that_cannot_fail(text: str) -> None:
    assert FindingKind.CANNOT_FAIL in kinds(text)


@pytest.mark.parametrize(
    "text",
    [
        'max(data["share"]) > 1',
        'data["share"]["1"] < 0',
        'max(data["x"]) < max(data["x"])',
        'min(data["x"]) > max(data["x"])',
        'max(data["x"]) < 1 and max(data["x"]) > 1',
        'max(data["x"]) < 1 and data["y"]["1"] > 0 and max(data["x"]) > 2',
        '2 < max(data["x"]) < 1',
        'data["cost"]["1"] == 0',
        'std(data["x"]) < 0',
    ],
)
def test_checks_that_cannot_pass(text: str) -> None:
    assert FindingKind.CANNOT_PASS in kinds(text)


@pytest.mark.parametrize(
    "text",
    [
        'min(data["share"]) < 0.99',
        'data["share"]["1"] < 1',
        'mean(data["share"]) > 0',
        'max(data["x"]) < 1 or max(data["x"]) > 1',
        'max(data["x"]) < 1 or min(data["x"]) >= 1',
        'min(data["x"], last(3)) <= mean(data["x"])',
        'min(data["x"]) < max(data["x"])',
        'max(data["x"]) <= mean(data["x"])',
        'slope(data["norm"]) >= 0',
        'data["norm"]["2"] > data["norm"]["1"]',
        'data["x"]["1"] / data["norm"]["1"] > 0',
        'len(data["x"]) > 0',
        'std(data["x"]) > 0',
        '"5" in data["x"]',
        'data["x"]["1"] * data["y"]["1"] >= 0',
        'coverage(data["x"], steps(1, 9)) == 1',
    ],
)
def test_checks_that_are_open_are_not_reported(text: str) -> None:
    assert not {FindingKind.CANNOT_FAIL, FindingKind.CANNOT_PASS} & set(kinds(text))


@pytest.mark.parametrize(
    ("text", "beyond"),
    [
        ('data["x"]["20"] < 1', 0),
        ('data["x"]["21"] < 1', 1),
        ('"21" in data["x"]', 1),
        ('mean(data["x"], steps(1, 20)) < 1', 0),
        ('mean(data["x"], steps(1, 21)) < 1', 1),
        ('mean(data["x"], after(19)) < 1', 0),
        ('mean(data["x"], after(20)) < 1', 1),
        ('mean(data["x"], last(21)) < 1', 1),
        ('mean(data["x"], -21, -1) < 1', 1),
        ('mean(data["x"], -20, 21) < 1', 0),
        ('data["x"]["30"] < 0.9 * data["y"]["40"]', 2),
    ],
)
def test_steps_beyond_the_last_are_reported(text: str, beyond: int) -> None:
    assert kinds(text, max_num_steps=20).count(FindingKind.STEP_OUT_OF_REACH) == beyond


def test_tags_of_other_runs_are_not_held_to_those_of_the_target() -> None:
    text = 'max(abs(data["x"] - run("old")["y"])) < 1'
    assert kinds(text, known_tags=["x"]) == []
    assert kinds(text, known_tags=["z"]) == [FindingKind.UNKNOWN_TAG]


def test_an_interval_has_a_low_and_a_high_end() -> None:
    for low, high in ((2.0, 1.0), (float("nan"), 1.0)):
        with pytest.raises(ValueError, match="no interval"):
            Interval(low, high)


def test_a_range_says_where_it_comes_from() -> None:
    check = parse_check('max(data["train/probs_ratio_clamped_max"]) < 1.5')
    [finding] = lint_check(check, ranges=clip_ranges(0.2, 0.28))
    assert finding.message.endswith("is between 0.8 and 1.28 with a ratio clip of 0.2 below and 0.28 above")


def test_ranges_of_a_stack_come_from_the_vocabulary_where_none_is_known_here() -> None:
    known = ranges_of_stack(stack_named("nemo-rl"))
    assert "train/probs_ratio_clamped_min" not in known
    assert ranges_of_stack(stack_named("trl"))["train/entropy"] == Interval(0.0)


# Random expressions over two tags; `share` holds values from 0 to 1.
_TERMS = st.sampled_from(
    [
        'max(data["x"])', 'min(data["x"])', 'mean(data["share"])', 'std(data["share"])', 'sum(data["share"])',
        'data["x"]["1"]', 'data["share"]["2"]', 'ratio_above(data["x"], 0.3)', 'len(data["x"])',
        'max(abs(data["x"] - data["share"]))', 'mean(data["x"] * data["x"])', 'first(-data["share"])',
        "0.5", "2", "-1", "0",
    ]
)  # fmt: skip


def _wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
    return pairs | inner.map(lambda text: f"abs({text})") | inner.map(lambda text: f"(-{text})")


EXPRESSIONS = st.recursive(_TERMS, _wider, max_leaves=4)
COMPARISONS = st.tuples(EXPRESSIONS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), EXPRESSIONS).map(
    " ".join
)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})")
        | inner.map(lambda text: f"not ({text})")
    ),
    max_leaves=3,
)
# Quarters: sums and products stay exact, so that float rounding cannot turn an equality.
QUARTERS = st.integers(-8, 8).map(lambda count: count / 4)
SHARES = st.integers(0, 4).map(lambda count: count / 4)


def _readable(text: str) -> bool:
    """Random text may compare constants or divide by zero, which is refused when read."""
    from seatrial.errors import UsageError

    try:
        parse_check(text)
    except UsageError:
        return False
    return True


READABLE = CONDITIONS.filter(_readable)


@given(text=READABLE, x=st.lists(QUARTERS, min_size=2, max_size=4), data=st.data())
def test_what_is_said_before_the_run_holds_on_every_run(
    make_log: MakeLog, text: str, x: list[float], data: st.DataObject
) -> None:
    share = data.draw(st.lists(SHARES, min_size=len(x), max_size=len(x)))
    log = make_log({"x": dict(enumerate(x, 1)), "share": dict(enumerate(share, 1))})
    check = parse_check(text)
    verdict = evaluate_check(check, log, ranges={})
    if verdict.value is None:
        return  # A guard was not met, such as a division by zero.
    truth = truth_of(check.condition, RANGES)
    if truth is True:
        assert verdict.outcome in (Outcome.PASS, Outcome.SKIPPED), verdict
    elif truth is False:
        assert verdict.outcome is Outcome.FAIL, verdict


@given(text=COMPARISONS.filter(_readable), x=st.lists(QUARTERS, min_size=2, max_size=4), data=st.data())
def test_intervals_hold_every_value(
    make_log: MakeLog, text: str, x: list[float], data: st.DataObject
) -> None:
    share = data.draw(st.lists(SHARES, min_size=len(x), max_size=len(x)))
    log = make_log({"x": dict(enumerate(x, 1)), "share": dict(enumerate(share, 1))})
    condition = parse_check(text).condition
    assert isinstance(condition, Comparison)
    for operand in (operand for operand in condition.operands if any(references(operand))):
        value = evaluate_check(parse_check(f'{operand.text} != 1e18 * data["x"]["1"]'), log, ranges={}).value
        interval = interval_of(operand, RANGES)
        if isinstance(value, float):
            slack = 1e-9 * max(1.0, abs(value))
            assert interval.low - slack <= value <= interval.high + slack, operand.text


def test_signs_and_sides_of_a_literal_bound_are_all_decided() -> None:
    """Every sign on both sides of a value from 0 to 1 against bounds inside, at and outside the range."""
    for sign, bound in itertools.product(("<", "<=", ">", ">=", "==", "!="), (-1.0, 0.0, 0.5, 1.0, 2.0)):
        answers = {eval_sign(sign, value, bound) for value in (0.0, 0.25, 0.5, 0.75, 1.0)}
        expected = answers.pop() if len(answers) == 1 else None
        assert truth_of(parse_check(f'data["share"]["1"] {sign} {bound}').condition, RANGES) is expected
        mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(sign, sign)
        assert truth_of(parse_check(f'{bound} {mirrored} data["share"]["1"]').condition, RANGES) is expected


def eval_sign(sign: str, left: float, right: float) -> bool:
    order = (left > right) - (left < right)
    return order in {"<": {-1}, "<=": {-1, 0}, ">": {1}, ">=": {1, 0}, "==": {0}, "!=": {-1, 1}}[sign]
