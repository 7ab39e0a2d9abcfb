"""The verdict algebra, over every outcome and every small combination of them."""

import itertools
import json
import math

import pytest

from seatrial.verdict import Outcome, Verdict, combine, exit_code

ALL = list(Outcome)
SETS = [chosen for size in range(4) for chosen in itertools.product(ALL, repeat=size)]


def a_verdict(outcome: Outcome = Outcome.PASS, **changes: object) -> Verdict:
    """Return a lawful verdict, changed as asked."""
    lawful: dict[str, object] = {
        "name": "max(loss) < 2",
        "outcome": outcome,
        "reason": "as measured",
        "value": 1.5,
        "bound": "< 2",
        "num_samples": 3,
        "steps": (1, 3),
    }
    return Verdict(**{**lawful, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("outcomes", SETS, ids=lambda chosen: "+".join(chosen) or "nothing")
def test_the_whole_is_the_worst_requested_part(outcomes: tuple[Outcome, ...]) -> None:
    """Rule 6, written as its four sentences."""
    whole = combine(outcomes)
    if Outcome.FAIL in outcomes:
        assert whole is Outcome.FAIL
    elif Outcome.BLOCKED in outcomes:
        assert whole is Outcome.BLOCKED
    elif Outcome.PASS in outcomes:
        assert whole is Outcome.PASS
    else:
        assert whole is Outcome.SKIPPED


@pytest.mark.parametrize("outcomes", [s for s in SETS if len(s) == 3])
def test_order_and_grouping_do_not_matter(outcomes: tuple[Outcome, ...]) -> None:
    """Fold in any order, or in two stages: the same whole."""
    whole = combine(outcomes)
    assert all(combine(order) is whole for order in itertools.permutations(outcomes))
    assert combine([combine(outcomes[:2]), *outcomes[2:]]) is whole


def test_combining_takes_verdicts_too() -> None:
    """Verdicts and their outcomes fold alike."""
    verdicts = [a_verdict(), a_verdict(Outcome.BLOCKED)]
    assert combine(verdicts) is combine([v.outcome for v in verdicts]) is Outcome.BLOCKED


def test_exit_codes_are_those_of_the_design() -> None:
    """0 Pass, 1 Fail, 3 Blocked, 5 nothing ran."""
    assert {outcome: exit_code(outcome) for outcome in ALL} == {
        Outcome.PASS: 0,
        Outcome.FAIL: 1,
        Outcome.BLOCKED: 3,
        Outcome.SKIPPED: 5,
        Outcome.NOT_REQUESTED: 5,
    }


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_pass_on_a_value_that_is_not_finite_cannot_be_built(value: float) -> None:
    """Whatever the sensor thought, NaN is not good."""
    with pytest.raises(ValueError, match="is Pass on the value"):
        a_verdict(value=value)
    assert a_verdict(Outcome.FAIL, value=value).outcome is Outcome.FAIL


def test_pass_on_zero_samples_cannot_be_built() -> None:
    """No evidence is never Pass."""
    with pytest.raises(ValueError, match="zero samples"):
        a_verdict(num_samples=0)


@pytest.mark.parametrize("outcome", ALL)
@pytest.mark.parametrize("changes", [{"reason": " "}, {"num_samples": -1}])
def test_no_outcome_goes_without_a_reason_or_with_negative_samples(
    outcome: Outcome, changes: dict[str, object]
) -> None:
    """Every verdict says why, on a countable number of samples."""
    with pytest.raises(ValueError, match=r"no reason|-1 samples"):
        a_verdict(outcome, **changes)


@pytest.mark.parametrize("outcome", ALL)
def test_json_round_trip_keeps_everything(outcome: Outcome) -> None:
    """What was written is what is read, through real JSON text."""
    verdict = a_verdict(outcome, source="hand-set", details={"seed": 3})
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json(), allow_nan=False))) == verdict


def test_a_value_that_is_not_finite_is_written_as_text() -> None:
    """Strict JSON has no NaN; its name survives."""
    assert a_verdict(Outcome.FAIL, value=math.nan).to_json()["value"] == "nan"


@pytest.mark.parametrize(
    "change",
    [{"outcome": "Great"}, {"num_samples": 0}, {"steps": [1]}, {"surprise": 1}, {"reason": ""}],
    ids=lambda change: next(iter(change)),
)
def test_unlawful_json_is_refused(change: dict[str, object]) -> None:
    """A results file cannot smuggle in a Pass without evidence."""
    with pytest.raises(ValueError, match=r"."):
        Verdict.from_json({**a_verdict().to_json(), **change})
