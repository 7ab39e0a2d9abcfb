"""Contract of the data set that prompts are read from: conversations to rows of ids, filtered, cut and padded.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Truncation = Literal["error", "left", "right", "middle"]
"""Of a longer prompt: refused, cut at its start, at its end, or in its middle, where the end has the odd token."""
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class PromptRow:
    """One row of the data set."""

    number: int
    """Of its conversation."""
    ids: Sequence[int]
    """Without padding, as the trainer is given them."""
    sampled: Sequence[int] | None = None
    """As the engine that samples is given them; None where these are the same list."""
    padded: Sequence[int] | None = None
    """With padding on the left; None where the data set pads nothing."""
    mask: Sequence[int] | None = None
    positions: Sequence[int] | None = None


@runtime_checkable
class PromptRows(Protocol):
    """Reads prompts."""

    pad_id: int

    def prompt_ids(self, messages: Messages) -> list[int]:
        """Return the ids of a conversation with the beginning of an answer, by the template alone."""
        ...

    def prompt_rows(
        self, conversations: Sequence[Messages], *, max_length: int, filtered: bool, truncation: Truncation
    ) -> Sequence[PromptRow]:
        """Return all rows of the data set; `error` raises ValueError for a longer prompt that is not left out."""
        ...
