"""A broken line of refrl is reported with the law, the input, the size of the error and the cause."""

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import seatrial
from seatrial.faults.launch import copy_of_refrl
from seatrial.faults.page import BROKEN_LINE

LINE = "return select_valid(values_BT, mask_BT).sum() / global_valid_tokens"
BROKEN = "return select_valid(values_BT, mask_BT).sum(1).div(mask_BT.sum(1).clamp_min(1)).mean()"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Break a line in a copy of refrl and run one relation on it, as a developer would."""
    folder = tmp_path_factory.mktemp("copy")
    copy_of_refrl(folder)
    file = folder / "refrl" / "algorithms" / "reductions.py"
    text = file.read_text(encoding="utf-8")
    assert text.count(LINE) == 1
    file.write_text(text.replace(LINE, BROKEN), encoding="utf-8")
    sources = Path(seatrial.__file__).parent.parent
    ran = subprocess.run(
        [sys.executable, "-m", "seatrial", "relations", "--target", "reference", "--relation", "R1.loss"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(sources)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    "part",
    [
        "law 'losses add up, in micro-batches of one row' broken",
        "(seed 0)",
        "relative difference: 0.5, allowed 1e-10",
        "Cause: the reduction is a mean over rows of each row's mean, not a mean over tokens",
        'smallest input found: {"vocab_size": 37',
        "known bugs that break it: SB097",
    ],
)
def test_the_message_says_it(said: str, part: str) -> None:
    """The law, the seed, the size of the error, the cause, the input, bugs like it."""
    assert part in said


def test_the_smallest_input_is_small(said: str) -> None:
    """Two rows of one token each: fewer cannot be split."""
    assert said.count('"prompt_ids": [') == 2
    assert "split into [1, 1] rows" in said


def test_the_page_shows_what_is_said(said: str) -> None:
    """The capture in docs/evidence/faults.md is real; it leaves out the line with the installed releases."""
    releases, _, verdicts = said.partition("\n")
    assert releases.startswith("judged: torch ")
    assert resources.files("seatrial.faults").joinpath(BROKEN_LINE).read_text(encoding="utf-8") == verdicts
