"""Contract of commands that write files and do not train: they make a model, or the beginning of a user's own part.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from seatrial.relations.contracts.command import Ended


@runtime_checkable
class WritingCommands(Protocol):
    """The stack's commands that take a directory to write to."""

    output_option: str
    """The option that names the directory, such as `--output`."""

    def writing_commands(self) -> Mapping[str, Sequence[str]]:
        """Return each such command by name: its words, without the directory."""
        ...

    def options_of(self, command: str) -> Mapping[str, Sequence[str]]:
        """Return words that must change what a command of `writing_commands` writes, by the option that they set."""
        ...

    def run_in(self, folder: Path, words: Sequence[str]) -> Ended:
        """Run the command with this current folder."""
        ...
