"""The table of claims fits the trials, the faults and refrl's source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seatrial.faults.claims import Edit, broken_claims, claim_edits, claims_of, faulty_runs, page
from seatrial.faults.launch import entry
from seatrial.faults.plant import source_path
from seatrial.faults.verify import PACKAGE
from seatrial.trials.plan import all_trials

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "claims.md"


CLAIMS = {(trial.name, claim.text): claim.verdicts for trial in all_trials() for claim in claims_of(trial)}


def test_every_row_names_a_claim_of_its_trial_and_a_check_that_the_claim_rests_on() -> None:
    for one in broken_claims():
        assert one.check in CLAIMS[one.trial, one.claim], one


def test_every_fault_is_known_and_no_run_is_there_twice() -> None:
    runs = [(one.trial, one.fault) for one in faulty_runs()]
    assert len(runs) == len(set(runs))
    for fault in {fault for _, fault in runs}:
        assert entry(fault)


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
    counted = re.search(r"(\d+) of (\d+) claims have a fault that breaks them; (\d+) do not", page())
    assert counted is not None
    closed, total, left = map(int, counted.groups())
    assert closed + left == total
    assert closed == len({(one.trial, one.claim) for one in broken_claims()})


def test_every_edit_is_of_a_run() -> None:
    assert {edit.id for edit in claim_edits()} <= {run.fault for run in faulty_runs()}


def test_every_claim_has_a_fault() -> None:
    """A trial whose claim nothing breaks may pass on anything."""
    assert set(CLAIMS) <= {(one.trial, one.claim) for one in broken_claims()}
