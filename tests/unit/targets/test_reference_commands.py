"""What the reference target runs in place of refrl's command."""

import pytest

from seatrial.launch import local
from seatrial.targets.reference.runs import commands


def test_the_mark_of_a_launched_run_is_not_taken_for_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bisect marks what it launches, which may be the relations themselves."""
    monkeypatch.delenv(commands.COMMAND, raising=False)
    monkeypatch.setenv(local.MARKER, "0123456789abcdef")
    target = commands.ReferenceCommands()
    target.options = {}
    assert "grpo.max_num_steps" in target.effective_options([]).options
