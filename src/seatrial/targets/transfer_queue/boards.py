"""TransferQueue's status of partitions, whichever release is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.common.target import find_name


class Board:
    """One `DataPartitionStatus`; see `contracts.readiness.ReadyBoard`."""

    def __init__(self, status: Any) -> None:
        self._status = status

    def produce(self, rows: Sequence[int], fields: Sequence[str]) -> None:
        schema = {name: {"dtype": "int64", "shape": (4,), "is_nested": False} for name in fields}
        if not self._status.update_production_status(list(rows), list(fields), schema):
            raise RuntimeError(f"update_production_status of rows {list(rows)} says that it failed")

    def ready(self, fields: Sequence[str], consumer: str) -> Sequence[int]:
        found: list[int] = self._status.scan_data_status(list(fields), consumer)
        return found

    def consume(self, rows: Sequence[int], consumer: str) -> None:
        self._status.mark_consumed(consumer, list(rows))


class TransferQueueBoards:
    """The controller's bookkeeping; see `contracts.Readiness`."""

    def __init__(self) -> None:
        """Find the class of a partition's status."""
        self.status_class = find_name("TransferQueue", ["transfer_queue.controller:DataPartitionStatus"])

    def open_board(self, name: str) -> Board:
        return Board(self.status_class(partition_id=name))


ADAPTERS: dict[str, type[Any]] = {"ready-board": TransferQueueBoards}
