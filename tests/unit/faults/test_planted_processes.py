"""A fault is in every process of a run, and what it does after a run it does once."""

import sys
from collections.abc import Sequence

import pytest
from tests.unit.faults.one_law import Edit, printed_by

from refrl.runtime import launcher
from seatrial.faults import planted
from seatrial.faults.launch import entry
from seatrial.faults.planting import ask


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Plant a fault that only notes the end of a run; refrl itself is not run."""
    calls: list[Sequence[str]] = []
    monkeypatch.setitem(planted.PLANTS, "lr-zero", lambda: calls.append)
    monkeypatch.setattr("refrl.cli.main", lambda words: 0)
    monkeypatch.setattr(launcher, "COMMAND", launcher.COMMAND)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    return calls


def test_ranks_are_started_with_the_fault(ended: list[Sequence[str]]) -> None:
    """A rank's command plants it again, in its own process."""
    assert planted.run_with_fault("lr-zero", ["grpo", "x=1"], entry("lr-zero")) == 0
    assert (sys.executable, "-m", "seatrial.faults.launch", "lr-zero", "--") == launcher.COMMAND
    assert ended == [["grpo", "x=1"]]


def test_a_rank_does_not_repeat_what_follows_the_run(
    ended: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that a person started does it."""
    monkeypatch.setenv("RANK", "0")
    assert planted.run_with_fault("lr-zero", ["grpo"], entry("lr-zero")) == 0
    assert ended == []


@pytest.mark.nightly  # it asks processes of their own
@pytest.mark.parametrize(
    ("module", "old", "new", "printed"),
    [
        ("sandbox_child", '"program.py"])', '"missing.py"])', ""),
        ("sandbox_audit", "import sys", "import sys; print(2)", "2\n1\n"),
    ],
)
def test_a_fault_is_in_the_files_that_sandboxes_run(module: str, old: str, new: str, printed: str) -> None:
    """They are not imported."""
    edit = Edit(module, f"refrl.rewards.{module}", old, new)
    assert ask(printed_by, edit, "audit hook") == printed
