"""Contract of several episodes at once: what each environment receives, what each row draws, what is verified.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, kw_only=True)
class EpisodesRecord:
    """What environment, engine and verifier received in a rollout."""

    received: Sequence[Sequence[Sequence[str]]]
    """For each row and each call of its environment: the turns that it got."""
    streams: Sequence[int]
    """State of the random stream of each call of the engine."""
    judged: Sequence[str]
    """What the verifier was given, row by row."""


@runtime_checkable
class Episodes(Protocol):
    """Rows of several turns that are rolled out together."""

    def episodes(self, turns: Sequence[Sequence[str]], words: Sequence[Sequence[str]]) -> EpisodesRecord:
        """Roll out rows: an engine samples each row's turns, and the environment sends its words between them."""
        ...
