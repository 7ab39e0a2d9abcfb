"""Contract of a board that says which rows are ready: what a data plane's controller keeps for each partition.

Part of `seatrial.relations.contracts`, which lists every component. The whole data plane has a contract of its own
(`data_plane`); this is its bookkeeping, which some stacks expose without the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


class ReadyBoard(Protocol):
    """The rows of one partition."""

    def produce(self, rows: Sequence[int], fields: Sequence[str]) -> None:
        """Note that these fields of these rows were written."""
        ...

    def ready(self, fields: Sequence[str], consumer: str) -> Sequence[int]:
        """Return the rows of which all these fields were written and that this consumer has not consumed."""
        ...

    def consume(self, rows: Sequence[int], consumer: str) -> None:
        """Note that a consumer has taken these rows."""
        ...


@runtime_checkable
class Readiness(Protocol):
    """Boards of partitions."""

    def open_board(self, name: str) -> ReadyBoard:
        """Return the empty board of a new partition."""
        ...
