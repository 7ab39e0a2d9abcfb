"""Reads the rows of a run from a path, whichever stack wrote them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from seatrial.errors import BlockedError
from seatrial.evidence.configuration import find_configuration
from seatrial.evidence.ledger.laws.logprobs import AGREEMENT
from seatrial.evidence.ledger.readers import nemo_rl, refrl, trl, verl
from seatrial.evidence.ledger.readers.base import LedgerReader, ReadOptions
from seatrial.evidence.ledger.schema import LedgerRow

GROUP = "seatrial.ledger_readers"
"""Group of the entry points by which other packages add readers of rows: modules with NAME, `claims` and `read`."""
OWN_READERS: tuple[LedgerReader, ...] = (refrl, nemo_rl, verl, trl)
"""In the order in which they are tried, before those of other packages."""
_PATTERNS = ("*.jsonl", "*.parquet", "*.table.json")
_LEDGER_NAME = re.compile(r"train_data_step\d+\.jsonl|completions_\d+\.parquet")
_MAX_FIRST_LINE = 64 << 20


@cache
def all_readers() -> tuple[LedgerReader, ...]:
    """Return every reader; a reader claims a file by its first row.

    Raises:
        BlockedError: a reader that another package adds cannot be imported, or is none.
    """
    return (*OWN_READERS, *(_added(point) for point in entry_points(group=GROUP)))


def _added(point: EntryPoint) -> LedgerReader:
    what = f"ledger reader {point.name} ({point.value})"
    try:
        reader = point.load()
    except ImportError as error:
        raise BlockedError(f"{what} cannot be imported: {error}; repair or uninstall its package") from error
    if missing := [part for part in ("NAME", "claims", "read") if not hasattr(reader, part)]:
        raise BlockedError(
            f"{what} has no {', '.join(missing)}; see docs/use/ledger.md, or uninstall its package"
        )
    return cast(LedgerReader, reader)


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The rows of a run and where they came from."""

    rows: Sequence[LedgerRow]
    stack: str | None
    """Name of the stack that wrote them; None where there are none."""
    files: Sequence[Path]


def read_ledger(path: Path, options: ReadOptions | None = None) -> Ledger:
    """Read the rows of a run from its folder, sub-folders included, or from one file; none give an empty ledger.

    Raises:
        BlockedError: a file of rows is damaged, or of a form that no reader knows; there are rows of several runs.
    """
    claimed: dict[str, list[Path]] = defaultdict(list)
    readers = {reader.NAME: reader for reader in all_readers()}
    try:
        for file in _candidates(path):
            if reader := _reader_of(file):
                claimed[reader.NAME].append(file)
        files = [file for of_reader in claimed.values() for file in of_reader]
        _refuse_several(claimed, files)
        if not claimed:
            return Ledger(rows=(), stack=None, files=())
        (name,) = claimed
        return Ledger(rows=readers[name].read(files, options or ReadOptions()), stack=name, files=files)
    except OSError as error:
        raise BlockedError(f"{error.filename or path}: {error.strerror or error}") from error


_COARSENESS = ("float32", "float16", "bfloat16", "int8")
_PRECISIONS = ("policy.precision", "policy.generation.vllm_cfg.precision", "policy.generation.quantization")
"""Options of refrl and NeMo RL."""


def recorded_precision(path: Path) -> str | None:
    """Return the coarsest precision of a run's trainer and sampler, from the configuration next to its rows.

    None where none is recorded, or one whose agreement is not known (`fp8`).
    """
    options = find_configuration(path) or {}
    recorded = [value for name in _PRECISIONS if (value := options.get(name)) not in (None, "auto")]
    if not recorded or any(value not in AGREEMENT for value in recorded):
        return None
    return max((str(value) for value in recorded), key=_COARSENESS.index)


def _candidates(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for pattern in _PATTERNS:
        yield from sorted(file for file in path.rglob(pattern) if file.is_file())


def _reader_of(file: Path) -> LedgerReader | None:
    """Return the reader that knows a file's first row, None for a file that is no ledger.

    Raises:
        BlockedError: its name is a ledger's, and no reader knows what it holds.
    """
    row = None if file.suffix == ".parquet" else _first_object(file)
    for reader in all_readers():
        if reader.claims(file, row):
            return reader
    if not _LEDGER_NAME.fullmatch(file.name):
        return None
    if row is None:
        raise BlockedError(f"{file} line 1 is damaged: it is no JSON object")
    raise BlockedError(
        f"{file} holds rows of no known form ({', '.join(sorted(row)[:8])}); known are those of "
        f"{', '.join(reader.NAME for reader in all_readers())}"
    )


def _first_object(file: Path) -> Mapping[str, Any] | None:
    """Return the JSON object in the first line of a file, or in all of it where it is one document."""
    with file.open("rb") as stream:
        head = stream.readline(_MAX_FIRST_LINE)
        if file.suffix == ".json":
            head += stream.read(_MAX_FIRST_LINE)
    try:
        row = json.loads(head)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _refuse_several(claimed: Mapping[str, Sequence[Path]], files: Sequence[Path]) -> None:
    folders = sorted({str(file.parent) for file in files})
    if len(folders) > 1 or len(claimed) > 1:
        raise BlockedError(
            f"there are rows of several runs ({' and '.join(sorted(claimed))}, in {', '.join(folders[:3])}"
            f"{' and more' if len(folders) > 3 else ''}): give the folder of one"
        )
