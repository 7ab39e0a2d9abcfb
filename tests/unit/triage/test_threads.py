"""Failures of public issue threads (threads.yaml), errors that a run survived, and the frame of the user's own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from seatrial.triage.diagnose import diagnose
from seatrial.triage.first_error import console_lines, first_error, harmless

THREADS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("threads.yaml").read_text())
ROWS = "".join(f"{{'loss': 0.{step}, 'reward': 0.5, 'epoch': 0.{step}}}\n" for step in range(1, 8))
RAISED = (
    'Traceback (most recent call last):\n  File "/run/train.py", line 9, in main\n    step()\n'
    '  File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in forward\n    x\n'
)


@pytest.mark.parametrize("entry", THREADS, ids=lambda entry: entry["thread"])
def test_a_failure_of_an_issue_thread(entry: dict[str, Any]) -> None:
    found = diagnose(entry["text"])
    names = {found.pattern.id, found.pattern.boundary} if found.pattern else {"unknown"}
    assert names & set(entry["expect"])
    if "own" in entry:
        assert found.error is not None
        assert f", {entry['own']} line " in found.error.own_frame


def test_an_error_that_the_run_survived_is_not_its_cause() -> None:
    survived = RAISED + "ConnectionError: [Errno 28] No space left on device\n" + ROWS
    found = diagnose(survived + RAISED + "KeyError: 'prompt'\n")
    assert found.pattern is not None
    assert found.pattern.id == "data-column"
    alone = diagnose(survived)
    assert alone.pattern is not None
    assert alone.pattern.id == "disk-full"


def test_the_last_line_of_a_traceback_is_an_error_whatever_it_is_called() -> None:
    error = first_error(list(console_lines(RAISED + "pyarrow.lib.ArrowInvalid: JSON parse error in row 0\n")))
    assert error is not None
    assert error.text.startswith("pyarrow.lib.ArrowInvalid")
    assert error.own_frame == "main, /run/train.py line 9"


def test_harmless_lines_are_no_errors() -> None:
    text = "ERROR: pip's dependency resolver does not currently take into account all the packages.\n"
    assert harmless().search(text)
    assert first_error(list(console_lines(text))) is None
