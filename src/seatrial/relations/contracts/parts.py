"""Contracts of configured parts: built-in parts by name, custom parts, tasks, random streams.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

OWN_DEFAULTS: Mapping[str, Any] = {"factor": 1.5, "count": 3, "on": True, "label": "x", "places": [1]}
"""Options of a custom part, a number, an integer, a truth value, a text and a list of integers, with their defaults."""


@runtime_checkable
class NamedParts(Protocol):
    """What a configuration accepts."""

    def takes(self, options: Mapping[str, Any]) -> bool:
        """Return whether a run with these options would start: they are read, and the parts that they name are made."""
        ...

    def names_of_parts(self) -> Mapping[str, Sequence[str]]:
        """Return by option the names of parts that it accepts, including custom parts by import path."""
        ...


@runtime_checkable
class OwnParts(Protocol):
    """Parts that a user writes, whose options have the names, types and defaults of `OWN_DEFAULTS`."""

    def own_kinds(self) -> Sequence[str]:
        """Return the kinds of parts that a user may write, such as a loss."""
        ...

    def options_of_own_part(self, kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Configure a part of this kind with these options, make it, and return the options that it got, by name.

        Raises:
            NotServed: the configuration refuses the options.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TaskPrompt:
    """A prompt of a made task."""

    prompt: str
    answer: str
    """What the verifier compares a completion with."""
    target: str
    """The completion that fine-tuning learns."""


@dataclass(frozen=True, kw_only=True)
class WorkedTask:
    """All prompts of a small task with their answers, derived from its manual alone."""

    name: str
    arguments: Mapping[str, Any]
    answers: Mapping[str, str]
    """Right completion by prompt."""
    tool: Mapping[str, str | None] = field(default_factory=dict)
    """What its tool answers to a turn, None for a turn without a question; empty for a task without a tool."""


@runtime_checkable
class Tasks(Protocol):
    """Made prompts with verifiable answers."""

    def worked_tasks(self) -> Sequence[WorkedTask]:
        """Return small tasks, at least one of each kind."""
        ...

    def task_splits(
        self, task: WorkedTask, *, num_train: int, num_held_out: int, seed: int
    ) -> tuple[Sequence[TaskPrompt], Sequence[TaskPrompt]]:
        """Return the prompts to train on and those held out."""
        ...

    def judged_by_task(
        self, task: WorkedTask, completions: Sequence[str], answers: Sequence[str]
    ) -> list[float]:
        """Return the rewards of the task's own verifier.

        Raises:
            NotServed: the verifier cannot run here.
        """
        ...

    def answered_by_tool(self, task: WorkedTask, turn: str) -> str | None:
        """Return what a task's tool answers to a first turn; None for a turn without a question."""
        ...


@runtime_checkable
class RandomStreams(Protocol):
    """Random numbers that depend on what they are for."""

    def drawn(self, seed: int, purpose: str, step: int, num: int) -> Sequence[int]:
        """Return the first numbers below 2**31 of the stream of a purpose at a step."""
        ...
