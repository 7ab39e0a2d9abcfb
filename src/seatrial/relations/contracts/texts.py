"""Contracts of texts: prompts, conversations as ids, and the verifier of answers.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Reward(Protocol):
    """The verifier; an adapter may have `unjudged_cases()`: (problem, completion) pairs that it cannot judge."""

    def reward_cases(self) -> Iterable[tuple[Any, str, float]]:
        """Return (problem, completion, the reward that is right) triples, golden and wrong ones."""
        ...

    def reward(self, problems: Sequence[Any], completions: Sequence[str]) -> list[float]:
        """Return one reward per completion, in order."""
        ...


@runtime_checkable
class Tokenizer(Protocol):
    """Tokenizer and chat template."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> list[int]:
        """Return the ids of a rendered conversation."""
        ...

    def training_row(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[int]]:
        """Return ids and loss mask of a finished conversation: 1 exactly on assistant content and end token."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown."""
        ...

    bos_id: int | None
    eos_id: int
    pad_id: int


@runtime_checkable
class PromptSource(Protocol):
    """The data iterator."""

    def epoch(self, *, seed: int, batch_size: int, skip: int = 0) -> Iterable[Sequence[int]]:
        """Yield batches of prompt ids of one epoch, after skipping `skip` batches (as a resumed run does)."""
        ...

    def splits(self) -> Mapping[str, Sequence[int]]:
        """Return the prompt ids of every split."""
        ...
