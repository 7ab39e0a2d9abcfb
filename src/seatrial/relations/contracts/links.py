"""Contract of links between a trainer and its engines: what a failing or silent peer does to the one that waits.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Links(Protocol):
    """Links whose other side is a stand-in."""

    @property
    def links(self) -> Sequence[str]:
        """Names of the links over which weights travel in messages."""
        ...

    def failures_reported(self, link: str, num_messages: int, failing: int) -> Sequence[bool]:
        """Send messages of weights, and one that ends the sync, to a receiver that answers one of them with an error.

        Args:
            link: one of `links`.
            num_messages: messages of weights.
            failing: number of the message that is answered with an error, from 0; `num_messages` is the last one.

        Returns:
            Whether each message reported an error to its sender; nothing is sent after the first that did.
        """
        ...

    def waits(self) -> Mapping[str, Callable[[float], object]]:
        """Return functions by name: each waits for a peer that never answers, for so many seconds at most."""
        ...
