"""Contracts of a stack's command line, its configuration and its prompt files.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended."""

    status: int
    output: str
    """What it printed, standard error included."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Every option with its value, by dotted name, where the command printed them."""


@runtime_checkable
class Command(Protocol):
    """The stack's command, started in a separate process as a user does."""

    def effective_options(self, overrides: Sequence[str]) -> Ended:
        """Read a configuration with these `key=value` overrides, in order, and print the value of every option.

        Nothing is trained.
        """
        ...

    def run_command(self, overrides: Sequence[str]) -> Ended:
        """Train for three steps, with these overrides of the adapter's configuration of a tiny run."""
        ...


@runtime_checkable
class Defaults(Protocol):
    """The values of options that a configuration does not set."""

    def documented_defaults(self) -> Mapping[str, Any]:
        """Return the value of each option from the stack's manual, by dotted name."""
        ...

    def effective_defaults(self) -> Mapping[str, Any]:
        """Return the value of every option of a configuration that names only what has no default."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReadPrompt:
    """A prompt as a stack read it from a file."""

    prompt_id: int | str
    prompt: str
    answer: str
    solution: str | None
    """What fine-tuning learns, if it differs from the answer."""


@dataclass(frozen=True, kw_only=True)
class ReadPrompts:
    """The two splits of prompts of files."""

    train: Sequence[ReadPrompt]
    """In the order of the file."""
    held_out: Sequence[ReadPrompt]


@runtime_checkable
class PromptFiles(Protocol):
    """A user's files: rows with the columns `prompt`, `answer` and `solution`."""

    def read_prompts(
        self,
        path: Path,
        *,
        held_out: Path | None = None,
        num_held_out: int | None = None,
        drop_shared: bool = False,
        with_solutions: bool = True,
    ) -> ReadPrompts:
        """Read a JSONL file, a Parquet or Arrow file, or a folder of such, as a run does.

        Args:
            path: rows to train on.
            held_out: rows to validate on; None takes them from `path`.
            num_held_out: number of these rows.
            with_solutions: whether the rows have the column `solution`.
            drop_shared: leave prompts of both files out of training, in place of refusing them.

        Raises:
            NotServed: the stack reads no such form, by design.
            Exception: the files share prompts although they must not; any exception is a refusal.
        """
        ...
