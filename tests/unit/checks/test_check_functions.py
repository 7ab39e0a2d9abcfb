"""Values against an oracle in plain Python (`statistics`, `fractions`), on random finite series."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.checks import evaluate_check, parse_check
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome

MakeLog = Callable[..., RunLog]
Series = dict[int, float]

VALUES = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False).map(lambda value: round(value, 6) + 0.0)
SERIES = st.dictionaries(st.integers(0, 10_000), VALUES, min_size=2, max_size=30)
FROM_ONE = st.lists(VALUES, min_size=2, max_size=30).map(lambda values: dict(enumerate(values, start=1)))


def measured(make_log: MakeLog, call: str, series: Series) -> float:
    """Return the value that a verdict shows for a call on `data["x"]`."""
    value = evaluate_check(parse_check(f"{call} != 1e18"), make_log({"x": series})).value
    assert isinstance(value, float), value
    return value


def ordered(series: Series) -> list[float]:
    return [series[step] for step in sorted(series)]


def slope(series: Series) -> float:
    """Least squares by exact fractions."""
    steps = [Fraction(step) for step in sorted(series)]
    values = [Fraction(value) for value in ordered(series)]
    middle, level = sum(steps) / len(steps), sum(values) / len(values)
    across = sum((step - middle) * (value - level) for step, value in zip(steps, values, strict=True))
    return float(across / sum((step - middle) ** 2 for step in steps))


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between order statistics."""
    place = q * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    found = sorted(values)
    return found[low] + (place - low) * (found[high] - found[low])


ORACLES: dict[str, Callable[[Series], float]] = {
    'min(data["x"])': lambda s: min(s.values()),
    'max(data["x"])': lambda s: max(s.values()),
    'mean(data["x"])': lambda s: float(statistics.mean(map(Fraction, s.values()))),
    'median(data["x"])': lambda s: float(statistics.median(map(Fraction, s.values()))),
    'std(data["x"])': lambda s: float(statistics.stdev(map(Fraction, s.values()))),
    'sum(data["x"])': lambda s: float(sum(map(Fraction, s.values()))),
    'first(data["x"])': lambda s: s[min(s)],
    'last(data["x"])': lambda s: s[max(s)],
    'count(data["x"])': len,
    'len(data["x"])': len,
    'slope(data["x"])': slope,
    'quantile(data["x"], 0.25)': lambda s: quantile([*s.values()], 0.25),
    'quantile(data["x"], 1)': lambda s: max(s.values()),
    'ratio_above(data["x"], 0)': lambda s: sum(value >= 0 for value in s.values()) / len(s),
    'mean(abs(data["x"]))': lambda s: float(statistics.mean(abs(Fraction(v)) for v in s.values())),
    'max(-data["x"] * 2 + 1)': lambda s: max(-v * 2 + 1 for v in s.values()),
    'sum(data["x"] - data["x"])': lambda _: 0.0,
    'mean(data["x"], last(2))': lambda s: float(statistics.mean(map(Fraction, ordered(s)[-2:]))),
    'coverage(data["x"], steps(0, 10000))': lambda s: len(s) / 10_001,
}


@pytest.mark.parametrize("call", ORACLES)
@given(series=SERIES)
def test_functions_equal_the_oracle(make_log: MakeLog, call: str, series: Series) -> None:
    assert measured(make_log, call, series) == pytest.approx(ORACLES[call](series), rel=1e-9, abs=1e-6)


@given(series=SERIES, low=st.integers(0, 10_000), width=st.integers(0, 5_000), every=st.integers(1, 7))
def test_a_range_of_steps_chooses_by_number(
    make_log: MakeLog, series: Series, low: int, width: int, every: int
) -> None:
    inside = [value for step, value in series.items() if step in range(low, low + width + 1, every)]
    check = parse_check(f'sum(data["x"], steps({low}, {low + width}, {every})) != 1e18')
    verdict = evaluate_check(check, make_log({"x": series}))
    assert verdict.num_samples == len(inside)
    assert verdict.value == (pytest.approx(math.fsum(inside)) if inside else None)
    assert (verdict.outcome is Outcome.PASS) == bool(inside)


@given(series=FROM_ONE, start=st.integers(-40, 40), end=st.integers(-40, 40))
def test_positions_equal_nemo_rls_rule_on_complete_series(
    make_log: MakeLog, series: Series, start: int, end: int
) -> None:
    """Steps 1..N: a start below 0 and an end up to 0 are raised by N + 1; the end is excluded.

    A range of more steps than were logged is a failure, where theirs averages those that there are.
    """
    count = len(series)
    low = start + count + 1 if start < 0 else start
    high = end + count + 1 if end <= 0 else end
    inside = [value for step, value in series.items() if low <= step < high]
    verdict = evaluate_check(parse_check(f'mean(data["x"], {start}, {end}) != 1e18'), make_log({"x": series}))
    if inside and (-start > count or high > count + 1):
        assert verdict.outcome is Outcome.FAIL and "not enough samples" in verdict.reason
    elif inside:
        assert verdict.value == pytest.approx(statistics.mean(inside), rel=1e-9, abs=1e-6)
        assert verdict.num_samples == len(inside)
    else:
        assert verdict.outcome is Outcome.FAIL and "no samples" in verdict.reason


@given(series=SERIES, share=st.integers(0, 1000))
def test_ignore_top_p_leaves_out_the_largest(make_log: MakeLog, series: Series, share: int) -> None:
    kept = max(1, len(series) - math.ceil(Fraction(share, 1000) * len(series)))
    expected = statistics.mean(sorted(series.values())[:kept])
    call = f'mean(data["x"], ignore_top_p={share / 1000!r})'
    assert measured(make_log, call, series) == pytest.approx(expected, rel=1e-9, abs=1e-6)


CALLS = st.sampled_from([call for call in ORACLES if "steps" not in call])
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
BAD = st.sampled_from([math.nan, math.inf, -math.inf, None])


@given(series=SERIES, call=CALLS, sign=SIGNS, bound=VALUES, bad=BAD, data=st.data())
def test_a_verdict_never_passes_when_a_value_read_is_not_finite(
    make_log: MakeLog, series: Series, call: str, sign: str, bound: float, bad: float, data: st.DataObject
) -> None:
    step = data.draw(st.sampled_from(sorted(series)))
    broken = {**series, step: bad}
    verdict = evaluate_check(parse_check(f"{call} {sign} {bound!r}"), make_log({"x": broken}))
    read_it = verdict.steps is None or verdict.steps[0] <= step <= verdict.steps[1]
    if read_it:
        assert verdict.outcome is Outcome.FAIL


@given(series=SERIES, call=CALLS, sign=SIGNS, bound=VALUES)
def test_a_comparison_and_its_negation_disagree(
    make_log: MakeLog, series: Series, call: str, sign: str, bound: float
) -> None:
    log = make_log({"x": series})
    plain = evaluate_check(parse_check(f"{call} {sign} {bound!r}"), log).outcome
    negated = evaluate_check(parse_check(f"not {call} {sign} {bound!r}"), log).outcome
    holds = {Outcome.PASS, Outcome.SKIPPED}  # Skipped: it holds and could not have failed.
    assert (plain in holds) != (negated in holds)
