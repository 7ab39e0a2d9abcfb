"""What two sides' verdicts of one trial make together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.unit.compare.samples import runs, sample

from seatrial.compare.runs import Sample
from seatrial.compare.verdicts import (
    APART,
    BEFORE,
    BLOCKED,
    BROKE,
    FIXED,
    JUDGED,
    KIND,
    SAME,
    UNSURE,
    compare_trial,
    differs,
)
from seatrial.trials.results import TrialState
from seatrial.verdict import Outcome, Verdict


def of(base: Sequence[Sample], head: Sequence[Sample], name: str = "check") -> Verdict:
    return next(one for one in compare_trial(base, head) if one.name == name)


@pytest.mark.parametrize(
    ("base", "head", "outcome", "kind"),
    [
        ("PP", "PP", Outcome.PASS, SAME),
        ("PP", "FF", Outcome.FAIL, BROKE),
        ("FF", "PP", Outcome.PASS, FIXED),
        ("FF", "FF", Outcome.SKIPPED, BEFORE),
        ("FP", "PF", Outcome.SKIPPED, BEFORE),
        ("P", "F", Outcome.BLOCKED, UNSURE),
        ("PP", "PF", Outcome.BLOCKED, UNSURE),
        ("PPP", "PFF", Outcome.BLOCKED, UNSURE),
        ("PPPPPPPP", "FFFFFFFP", Outcome.FAIL, BROKE),
        ("PPPPPPPF", "FFFFFFFF", Outcome.FAIL, BROKE),
        ("PPPPPPPP", "FPPPPPPP", Outcome.BLOCKED, UNSURE),
        ("PP", "BB", Outcome.BLOCKED, BLOCKED),
        ("BB", "BB", Outcome.SKIPPED, APART),
        ("BB", "PP", Outcome.SKIPPED, APART),
        ("BB", "FF", Outcome.BLOCKED, BLOCKED),
        ("SS", "FF", Outcome.SKIPPED, APART),
        ("PP", "SS", Outcome.SKIPPED, APART),
    ],
)
def test_every_pair_of_outcomes(base: str, head: str, outcome: Outcome, kind: str) -> None:
    found = of(runs(*base), runs(*head))
    assert (found.outcome, found.details[KIND]) == (outcome, kind), found.reason


def test_one_run_never_breaks_and_asks_for_another() -> None:
    found = compare_trial(runs("P"), runs("F"))
    assert [one.outcome for one in found] == [Outcome.BLOCKED]
    assert differs(found)
    assert not differs(compare_trial(runs("P"), runs("P")))
    assert not differs(compare_trial(runs("F"), runs("F")))


def test_a_claim_that_exists_only_where_it_fails_is_broken() -> None:
    """BASE passed without the verdict; HEAD fails it."""
    base = [sample(seed, {"other": "P"}) for seed in (0, 1)]
    head = [sample(seed, {"other": "P", "claim: x": "F"}) for seed in (0, 1)]
    assert of(base, head, "claim: x").details[KIND] == BROKE
    assert of(head, base, "claim: x").details[KIND] == FIXED


def test_what_base_never_reached_is_not_compared() -> None:
    """BASE failed earlier, so a later failure of HEAD may be as old."""
    base = [sample(seed, {"training ends": "F"}) for seed in (0, 1)]
    head = [sample(seed, {"training ends": "P", "later": "F"}) for seed in (0, 1)]
    assert of(base, head, "training ends").details[KIND] == FIXED
    assert of(base, head, "later").outcome is Outcome.SKIPPED


def test_what_a_new_failure_prevents_is_its_consequence_and_not_blocked() -> None:
    base = [sample(seed, {"training ends": "P", "later": "P"}) for seed in (0, 1)]
    head = [sample(seed, {"training ends": "F", "later": "B"}) for seed in (0, 1)]
    assert of(base, head, "training ends").outcome is Outcome.FAIL
    assert of(base, head, "later").outcome is Outcome.SKIPPED


def test_verdicts_of_a_trials_own_seeds_are_one() -> None:
    """`seed 3: x` at BASE and `seed 1003: x` at HEAD are the same question."""
    base = [sample(seed, {f"seed {seed}: x": "P", f"seed {seed + 1}: x": "P"}) for seed in (0, 1)]
    head = [sample(seed, {f"seed {seed + 9}: x": "P", f"seed {seed + 10}: x": "F"}) for seed in (0, 1)]
    (found,) = compare_trial(base, head)
    assert (found.name, found.details[KIND]) == ("x", BROKE)


def test_a_trial_that_both_sides_block_is_blocked_though_an_earlier_verdict_passes() -> None:
    """Such as the origin of the stack's code, which is not in either checkout."""
    blocked = [sample(seed, {"origin of seatrial": "P", "origin of the stack": "B"}) for seed in (0, 1)]
    found = of(blocked, blocked, JUDGED)
    assert found.outcome is Outcome.BLOCKED
    assert "origin of the stack B" in found.reason
    judged = [sample(seed, {"origin of seatrial": "P", "origin of the stack": "P"}) for seed in (0, 1)]
    assert JUDGED not in [one.name for one in compare_trial(judged, blocked)]


def test_a_trial_that_did_not_conclude_at_head_is_blocked() -> None:
    base = [sample(seed, {"check": "P"}) for seed in (0, 1)]
    head = [sample(seed, {"check": "P"}, state=TrialState.INTERRUPTED) for seed in (0, 1)]
    found = of(base, head, "the trial concludes")
    assert found.outcome is Outcome.BLOCKED
    assert "interrupted" in found.reason
