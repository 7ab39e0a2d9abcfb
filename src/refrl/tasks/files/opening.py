"""From a path to its rows: by suffix, or by what a folder holds."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from refrl.config import ConfigError
from refrl.tasks.files.columnar import ArrowRows, ParquetRows
from refrl.tasks.files.jsonl import JsonLines
from refrl.tasks.files.rows import Columns, RowFile

KINDS = ".jsonl, .ndjson, .parquet, .arrow, or the folder of a Hugging Face dataset (save_to_disk, or Parquet files)"


class JoinedRows:
    """A `RowFile` of several, one after the other."""

    def __init__(self, path: Path, parts: Sequence[RowFile]) -> None:
        """Join them under the path of their folder."""
        self.path = path
        self._parts = parts
        self._ends: list[int] = []

    def scan(self) -> Iterator[Mapping[str, Any]]:
        """See `RowFile`."""
        self._ends = []
        for part in self._parts:
            self._ends.append(self._ends[-1] if self._ends else 0)
            for row in part.scan():
                self._ends[-1] += 1
                yield row

    def row(self, number: int) -> Mapping[str, Any]:
        """See `RowFile`."""
        part, own = self._locate(number)
        return part.row(own)

    def place(self, number: int) -> str:
        """See `RowFile`."""
        part, own = self._locate(number)
        return part.place(own)

    def _locate(self, number: int) -> tuple[RowFile, int]:
        index = bisect.bisect_right(self._ends, number)
        return self._parts[index], number - (self._ends[index - 1] if index else 0)


def open_rows(path: Path, columns: Columns, option: str) -> RowFile:
    """Return the rows of a file or folder.

    Args:
        path: of the file or folder.
        columns: that are read.
        option: that names the path, for messages.

    Raises:
        ConfigError: it is missing, of an unknown kind, or cannot be read.
    """
    if path.is_dir():
        return _open_folder(path, columns, option)
    if not path.exists():
        raise ConfigError(f"{option}={path} does not exist")
    return _open_file(path, columns, option)


def _open_file(path: Path, columns: Columns, option: str) -> RowFile:
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return JsonLines(path)
    if suffix == ".parquet":
        return ParquetRows(path, columns)
    if suffix == ".arrow":
        return ArrowRows(path, columns)
    raise ConfigError(f"{option}={path} is of an unknown kind; known: {KINDS}")


def _open_folder(folder: Path, columns: Columns, option: str) -> RowFile:
    if (folder / "dataset_dict.json").is_file():
        names = sorted(entry.name for entry in folder.iterdir() if (entry / "state.json").is_file())
        raise ConfigError(
            f"{option}={folder} holds several splits; name one of them: {_listed(folder, names)}"
        )
    if (folder / "state.json").is_file():
        files = _saved_files(folder, option)
    else:
        files = sorted([*folder.glob("*.parquet"), *folder.glob("*.arrow"), *folder.glob("*.jsonl")])
        if not files and (folder / "data").is_dir():
            return _open_folder(folder / "data", columns, option)
        splits = sorted({file.name.split("-")[0] for file in files})
        if len(files) > 1 and len(splits) > 1:
            raise ConfigError(
                f"{option}={folder} holds files of different names, which may be splits; name one of them: "
                f"{_listed(folder, [file.name for file in files])}"
            )
    if not files:
        raise ConfigError(f"{option}={folder} holds no rows; known are {KINDS}")
    parts = [_open_file(file, columns, option) for file in files]
    return parts[0] if len(parts) == 1 else JoinedRows(folder, parts)


def _saved_files(folder: Path, option: str) -> list[Path]:
    """Return the files of a dataset in the order that `save_to_disk` wrote down."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        names = [entry["filename"] for entry in state["_data_files"]]
        indices = state.get("_indices_files") or state.get("_indices_data_files")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{option}={folder}: state.json is not that of a saved dataset: {error}") from error
    if indices:
        raise ConfigError(
            f"{option}={folder} is a selection of a larger dataset: save it again after dataset.flatten_indices()"
        )
    return [folder / str(name) for name in names]


def _listed(folder: Path, names: Sequence[str]) -> str:
    return ", ".join(str(folder / name) for name in names)
