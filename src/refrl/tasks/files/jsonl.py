"""JSON lines: where each line starts is kept, and nothing else."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from refrl.config import ConfigError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """A `RowFile` of one JSON object a line; empty lines do not count."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            ConfigError: it cannot be read.
        """
        self.path = path
        self._starts, self._lengths, self._lines = array("Q"), array("Q"), array("Q")
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error

    def scan(self) -> Iterator[Mapping[str, Any]]:
        """See `RowFile`."""
        del self._starts[:], self._lengths[:], self._lines[:]
        position = 0
        self._file.seek(0)
        for line, text in enumerate(self._file, start=1):
            start, position = position, position + len(text)
            if line == 1 and text.startswith(_BYTE_ORDER_MARK):
                start, text = start + len(_BYTE_ORDER_MARK), text[len(_BYTE_ORDER_MARK) :]
            if not text.strip():
                continue
            self._starts.append(start)
            self._lengths.append(len(text))
            self._lines.append(line)
            yield _parse(text, f"{self.path} line {line}")

    def row(self, number: int) -> Mapping[str, Any]:
        """See `RowFile`; the position in the open file is not moved."""
        text = os.pread(self._file.fileno(), self._lengths[number], self._starts[number])
        return _parse(text, self.place(number))

    def place(self, number: int) -> str:
        """See `RowFile`."""
        return f"{self.path} line {self._lines[number]}"


def _parse(text: bytes, place: str) -> Mapping[str, Any]:
    try:
        row = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is not valid JSON: {' '.join(str(error).split())}") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{place} is no JSON object, but {type(row).__name__}")
    return row


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
