"""A fault is in every process of a run, and what it does after a run it does once."""

import sys
from collections.abc import Sequence

import pytest

from refrl.runtime import launcher
from seatrial.faults import planted
from seatrial.faults.launch import entry


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
