"""Known failures: what a quarantine hides, until when, and what it never hides."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from tests.unit.compare.samples import runs

from seatrial.compare.quarantine import apply_quarantine, read_quarantine, unused
from seatrial.compare.verdicts import compare_trial
from seatrial.errors import UsageError
from seatrial.trials.results import TrialResult, TrialState
from seatrial.verdict import Outcome

NAME = 'max(data["train/token_mult_prob_error"]) <= 1.0001'
ENTRY = "- {trial: grpo-smoke, verdict: 'max(data[\"train/token_*', reason: issue 12, until: 2026-11-30}\n"


def trial(base: str, head: str, name: str = NAME) -> TrialResult:
    return TrialResult(
        name="grpo-smoke",
        level=0,
        summary="",
        proves="",
        does_not_prove="",
        state=TrialState.CONCLUDED,
        verdicts=compare_trial(runs(*base, name=name), runs(*head, name=name)),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "quarantine.yaml"
    path.write_text(ENTRY)
    return path


def test_a_quarantined_failure_is_named_and_does_not_fail(file: Path) -> None:
    entries, part = read_quarantine(file), trial("PP", "FF")
    assert part.outcome is Outcome.FAIL
    used = apply_quarantine(entries, [part], date(2026, 11, 30))
    (verdict,) = part.verdicts
    assert verdict.outcome is Outcome.SKIPPED
    assert verdict.reason.startswith("in quarantine until 2026-11-30 (issue 12): HEAD broke it")
    assert unused(entries, used, date(2026, 11, 30)) == []


def test_after_its_date_it_fails_and_says_so(file: Path) -> None:
    entries, part = read_quarantine(file), trial("PP", "FF")
    used = apply_quarantine(entries, [part], date(2026, 12, 1))
    (verdict,) = part.verdicts
    assert verdict.outcome is Outcome.FAIL
    assert verdict.reason.startswith("its quarantine ended on 2026-11-30 (issue 12)")
    (line,) = unused(entries, used, date(2026, 12, 1))
    assert "ended on 2026-11-30" in line


def test_an_entry_that_matches_no_failure_is_named(file: Path) -> None:
    entries = read_quarantine(file)
    for part in (trial("PP", "PP"), trial("PP", "FF", name="another check")):
        used = apply_quarantine(entries, [part], date(2026, 11, 1))
        (line,) = unused(entries, used, date(2026, 11, 1))
        assert "matches no failure" in line
    assert part.outcome is Outcome.FAIL


def test_an_entry_for_what_was_broken_before_is_used(file: Path) -> None:
    entries, part = read_quarantine(file), trial("FF", "FF")
    used = apply_quarantine(entries, [part], date(2026, 11, 1))
    assert unused(entries, used, date(2026, 11, 1)) == []
    assert part.verdicts[0].outcome is Outcome.SKIPPED


def test_brackets_are_plain_signs_and_blocked_verdicts_stay(file: Path) -> None:
    entries, part = read_quarantine(file), trial("PP", "BB")
    apply_quarantine(entries, [part], date(2026, 11, 1))
    assert part.outcome is Outcome.BLOCKED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1", "write a list of entries"),
        ("- x", "entry 1 is no mapping"),
        ("- {verdict: x, reason: y, untill: 2026-01-01}", "has the key untill; did you mean 'until'"),
        ("- {verdict: x, reason: y}", "entry 1 has no until"),
        ("- {verdict: x, until: 2026-01-01}", "entry 1 has no reason"),
        ("- {reason: x, until: 2026-01-01}", "names neither a trial nor a verdict"),
        ("- {verdict: x, reason: y, until: soon}", "until is 'soon'; write a day"),
        ("- {verdict: x, reason: y, until: 2026-01-01 10:00:00}", "write a day"),
        ("- {verdict: [x], reason: y, until: 2026-01-01}", "verdict is ['x']; write a text"),
        ("- {verdict: x, reason: ' ', until: 2026-01-01}", "reason is ' '; write a text"),
        ("- {verdict: x, verdict: z, reason: y, until: 2026-01-01}", "given twice"),
    ],
)
def test_a_wrong_file_is_one_line_with_the_remedy(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "quarantine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r".") as caught:
        read_quarantine(path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
