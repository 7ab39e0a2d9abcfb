"""Parquet files and the Arrow files of Hugging Face datasets, read with pyarrow a group of rows at a time."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from refrl.config import ConfigError
from refrl.tasks.files.rows import Columns

GROUPS_KEPT = 4
"""Groups of rows held at a time; drawing at random reads a group again when it has been dropped."""


class ParquetRows:
    """A `RowFile` of one Parquet file."""

    def __init__(self, path: Path, columns: Columns) -> None:
        """Read the file's footer.

        Raises:
            ConfigError: pyarrow is missing, the file cannot be read, or a column is missing.
        """
        parquet = _import("pyarrow.parquet", path)
        self.path = path
        try:
            self._file = parquet.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is no readable Parquet file: {_first_line(error)}") from error
        self._names = top_columns(columns, self._file.schema_arrow.names, path)
        sizes = [self._file.metadata.row_group(n).num_rows for n in range(self._file.num_row_groups)]
        self._ends = list(itertools.accumulate(sizes))
        self._group = lru_cache(maxsize=GROUPS_KEPT)(self._read_group)

    def scan(self) -> Iterator[Mapping[str, Any]]:
        """See `RowFile`."""
        for group in range(len(self._ends)):
            yield from self._group(group).to_pylist()

    def row(self, number: int) -> Mapping[str, Any]:
        """See `RowFile`."""
        group = bisect.bisect_right(self._ends, number)
        first = self._ends[group - 1] if group else 0
        (row,) = self._group(group).slice(number - first, 1).to_pylist()
        return dict(row)

    def place(self, number: int) -> str:
        """See `RowFile`; rows of a Parquet file are counted from 0, as its readers do."""
        return f"{self.path} row {number}"

    def _read_group(self, group: int) -> Any:
        try:
            return self._file.read_row_group(group, columns=self._names)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path}: row group {group} cannot be read: {_first_line(error)}"
            ) from error


class ArrowRows:
    """A `RowFile` of one Arrow file in stream format, mapped into memory: the system loads the pages that are read."""

    def __init__(self, path: Path, columns: Columns) -> None:
        """Map the file.

        Raises:
            ConfigError: pyarrow is missing, the file cannot be read, or a column is missing.
        """
        arrow = _import("pyarrow", path)
        self.path = path
        try:
            with arrow.memory_map(str(path)) as source:
                table = arrow.ipc.open_stream(source).read_all()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is no readable Arrow file: {_first_line(error)}") from error
        self._table = table.select(top_columns(columns, table.schema.names, path))

    def scan(self) -> Iterator[Mapping[str, Any]]:
        """See `RowFile`."""
        for batch in self._table.to_batches(max_chunksize=1024):
            yield from batch.to_pylist()

    def row(self, number: int) -> Mapping[str, Any]:
        """See `RowFile`."""
        (row,) = self._table.slice(number, 1).to_pylist()
        return dict(row)

    def place(self, number: int) -> str:
        """See `RowFile`."""
        return f"{self.path} row {number}"


def top_columns(columns: Columns, present: Sequence[str], path: Path) -> list[str]:
    """Return the columns to read: those named, or the mappings that they reach into.

    Raises:
        ConfigError: one is missing; the message names those that there are.
    """
    chosen: dict[str, None] = {}
    for option, key in columns.named().items():
        name = key if key in present else key.split(".")[0]
        if name not in present:
            raise ConfigError(
                f"{path} has no column {key!r} ({option}); its columns: {', '.join(map(repr, present))}"
            )
        chosen.setdefault(name)
    return list(chosen)


def _import(module: str, path: Path) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{path} needs pyarrow, which is not installed: pip install 'seatrial[data]', or give the rows as JSONL"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
