"""Where the bytes of fields lie. A store knows blocks by name; which samples they belong to is the control's affair."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol

from refrl.data_plane.columns import Column
from refrl.data_plane.errors import DataPlaneError
from refrl.data_plane.records import NewBlock


class BlockGoneError(DataPlaneError):
    """A block is not in the store: it was dropped after it had been located, or is lost."""


class ColumnStore(Protocol):
    """Keeps columns until they are dropped; every call ends within the store's time."""

    def check(self) -> None:
        """Return when the store can serve.

        Raises:
            StoreUnavailableError: it cannot.
        """
        ...

    def save(self, columns: Mapping[str, Column]) -> list[NewBlock]:
        """Keep a column for each field of a put, in new blocks.

        Raises:
            StoreUnavailableError: nothing is kept.
        """
        ...

    def read(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, tuple[Column, Sequence[int]]]:
        """Return for each block a column, not to be changed, and which of its rows are those wanted.

        Raises:
            BlockGoneError: one is not there.
            StoreUnavailableError: the store cannot serve.
        """
        ...

    def drop(self, names: Sequence[str]) -> None:
        """Free blocks; unknown ones are no error.

        Raises:
            StoreUnavailableError: some may still be there.
        """
        ...


def new_blocks(columns: Mapping[str, Column]) -> list[NewBlock]:
    """Return names that no other client gives, for the columns of a put."""
    put = uuid.uuid4().hex
    return [
        NewBlock(field, f"{put}:{number}", column.dtype, column.num_bytes)
        for number, (field, column) in enumerate(columns.items())
    ]


class LocalStore:
    """A `ColumnStore` in this process; for any number of threads."""

    def __init__(self) -> None:
        """Start empty."""
        self._columns: dict[str, Column] = {}
        self._lock = threading.Lock()

    def check(self) -> None:
        """It is here."""

    def save(self, columns: Mapping[str, Column]) -> list[NewBlock]:
        """See `ColumnStore`."""
        blocks = new_blocks(columns)
        with self._lock:
            self._columns.update(
                (block.name, column) for block, column in zip(blocks, columns.values(), strict=True)
            )
        return blocks

    def read(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, tuple[Column, Sequence[int]]]:
        """See `ColumnStore`."""
        with self._lock:
            missing = [name for name in wanted if name not in self._columns]
            if missing:
                raise BlockGoneError(f"blocks {missing} are not there")
            return {name: (self._columns[name], rows) for name, rows in wanted.items()}

    def drop(self, names: Sequence[str]) -> None:
        """See `ColumnStore`."""
        with self._lock:
            for name in names:
                self._columns.pop(name, None)
