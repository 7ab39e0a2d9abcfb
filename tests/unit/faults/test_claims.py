"""The table of claims fits the trials, the faults and refrl's source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seatrial.faults.claims import Broken, Edit, broken_claims, claim_edits, claims_of, page
from seatrial.faults.launch import entry
from seatrial.faults.plant import source_path
from seatrial.faults.verify import PACKAGE
from seatrial.trials.plan import all_trials

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "claims.md"


@pytest.mark.parametrize("one", broken_claims(), ids=lambda one: f"{one.trial}-{one.fault}")
def test_a_row_names_a_claim_of_its_trial_a_check_and_a_fault(one: Broken) -> None:
    """The check is a verdict that the claim rests on, or the check of the guards, of which no claim is made."""
    (trial,) = [trial for trial in all_trials() if trial.name == one.trial]
    (claim,) = [claim for claim in claims_of(trial) if claim.text == one.claim]
    assert one.check in claim.verdicts
    assert entry(one.fault)


@pytest.mark.parametrize("edit", claim_edits(), ids=lambda edit: edit.id)
def test_an_edit_fits_one_place(edit: Edit) -> None:
    """And leaves a module that compiles."""
    path = source_path(edit.module, PACKAGE)
    text = path.read_text(encoding="utf-8")
    assert text.count(edit.old) == 1
    compile(text.replace(edit.old, edit.new), str(path), "exec")


def test_every_trial_makes_claims_and_no_text_twice() -> None:
    """So that a row of the table means one claim."""
    for trial in all_trials():
        texts = [claim.text for claim in claims_of(trial)]
        assert texts, trial.name
        assert len(texts) == len(set(texts)), trial.name


def test_the_page_is_drawn_from_the_table() -> None:
    """Open claims are counted."""
    assert PAGE.read_text(encoding="utf-8") == page()
    counted = re.search(r"(\d+) of (\d+) claims have a fault that breaks them; (\d+) are open", page())
    assert counted is not None
    closed, total, left = map(int, counted.groups())
    assert closed + left == total
    assert closed == len({(one.trial, one.claim) for one in broken_claims()})
