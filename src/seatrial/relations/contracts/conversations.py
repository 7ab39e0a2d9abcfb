"""Contracts of conversations with system turns, tools and thinking, and of the rows of preference pairs.

Part of `seatrial.relations.contracts`, which lists every component. Plain conversations: `tokenizer` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.conversations import Conversation, Part
from seatrial.relations.cases.examples import Example


class TokenRow(NamedTuple):
    """One row without padding."""

    ids: Sequence[int]
    counted: Sequence[int]
    """1 on every id that trains, or whose log-probability is in the sum; as many as ids."""


class PairRow(NamedTuple):
    """Both rows of a pair."""

    chosen: TokenRow
    rejected: TokenRow


@runtime_checkable
class Conversations(Protocol):
    """Conversations to ids, for serving and for training."""

    conversation_parts: frozenset[Part]
    """What the template renders in addition to users and assistants."""
    thinking_kept: Literal["all", "last"]
    """Whether a conversation shows the thinking of all of the assistant's turns, or of those after the last user's."""
    conversation_keeps: Literal["start", "end"] | None
    """Which part of a longer training row is kept; None cuts nothing."""
    eos_id: int
    pad_id: int

    def serve_conversation(self, conversation: Conversation, *, add_generation_prompt: bool) -> list[int]:
        """Return the ids that a model is given, tools included; see `Conversation.messages` and `.schemas`."""
        ...

    def train_conversation(self, conversation: Conversation, *, max_length: int | None) -> TokenRow:
        """Return the training row of a finished conversation; `facts.trains` says which answers train."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown."""
        ...


@runtime_checkable
class Pairs(Protocol):
    """A trainer's rows of preference pairs."""

    ordinary_ids: Sequence[int]
    eos_id: int
    pad_id: int
    pair_keeps: Literal["start", "end"] | None
    """Which part of a longer row is kept; None cuts nothing."""

    def pair_rows(self, examples: Sequence[Example], *, max_length: int | None) -> Sequence[PairRow]:
        """Return the rows of each pair as they stand in one batch of all of them, in their order."""
        ...
