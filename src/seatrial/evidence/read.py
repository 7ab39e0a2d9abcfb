"""Reads any log that a stack leaves: the reader is picked by what the files contain, not by their names."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from seatrial.errors import BlockedError
from seatrial.evidence import (
    csv,
    jsonl,
    metrics_json,
    mlflow,
    prime_rl,
    tensorboard,
    trackio,
    trainer_state,
    verl,
    wandb,
)
from seatrial.evidence.coverage import describe_missing
from seatrial.evidence.runlog import Damage, RunLog

HEAD_BYTES = 4096
_NUM_CHEAP = 5
"""Readers that know their files by the first bytes."""


class Reader(Protocol):
    """A module that reads one format."""

    NAME: str

    def claims(self, file: Path, head: bytes) -> bool:
        """Say whether a file has this format; `head` is its first bytes."""

    def read(self, root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
        """Read files of this format as one log."""


READERS: tuple[Reader, ...] = (
    tensorboard,
    wandb,
    trackio,
    mlflow,
    trainer_state,
    prime_rl,
    verl,
    metrics_json,
    jsonl,
    csv,
)
"""In the order of preference: a folder is read by the first reader that finds its format there."""


def read_logs(path: Path | str, tags: Collection[str] | None = None) -> RunLog:
    """Read a log file, or a folder of logs, whole.

    Args:
        path: A file, or a folder that is searched with its sub-folders. Its name is taken as it is: brackets and
            stars have no meaning.
        tags: Read only these tags; the others are listed in `RunLog.other_tags`. None reads all.

    Raises:
        BlockedError: nothing can be read at all: missing, empty, garbage, no permission.
    """
    path = Path(path)
    try:
        if not path.exists():
            raise BlockedError(f"{path}: no such file or folder; give the one that the run logged to")
        damage: list[Damage] = []
        files = _files(path, damage) if path.is_dir() else [path]
        heads = _heads(files, damage)
        log = _read(path, heads, tags, damage)
    except OSError as error:
        name = error.filename or path
        raise BlockedError(
            f"{name}: {error.strerror or error}; make it readable, or name another log"
        ) from error
    return replace(
        log, damage=[*damage, *log.damage], notes=[*log.notes, *describe_missing(dict(log.series))]
    )


def _read(
    path: Path, heads: dict[Path, bytes], tags: Collection[str] | None, damage: Sequence[Damage]
) -> RunLog:
    root = path if path.is_dir() else path.parent
    for number, reader in enumerate(READERS):
        mine = [file for file, head in heads.items() if reader.claims(file, head)]
        if mine:
            log = reader.read(root, mine, tags)
            others = _others(
                READERS[number + 1 : _NUM_CHEAP], {file: heads[file] for file in heads if file not in mine}
            )
            return replace(log, notes=[*log.notes, *others])
    if path.is_file() and heads.get(path, b"").lstrip().startswith(b"{"):
        # Named by the user, it may be an object of bare numbers, or a damaged document: its reader says which.
        return metrics_json.read(root, [path], tags)
    names = ", ".join(reader.NAME for reader in READERS)
    why = (
        damage[0].what if damage else "empty" if not any(heads.values()) else "of an unknown form, or garbage"
    )
    raise BlockedError(f"{path}: no log can be read there ({why}); known forms: {names}")


def _others(readers: Sequence[Reader], heads: dict[Path, bytes]) -> list[str]:
    """Name logs of other formats that lie in the same folder and were not read."""
    found = {
        reader.NAME: sum(reader.claims(file, head) for file, head in heads.items()) for reader in readers
    }
    return [
        f"{count} {name} file(s) lie there too and were not read" for name, count in found.items() if count
    ]


def _files(folder: Path, damage: list[Damage]) -> list[Path]:
    """Return the regular files under a folder, each once, in the order of their names."""

    def note(error: OSError) -> None:
        what = f"the folder cannot be listed: {error.strerror}"
        damage.append(Damage(path=str(error.filename), what=what))

    found: dict[Path, Path] = {}
    for parent, folders, names in os.walk(folder, onerror=note):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            if file.is_file():
                found.setdefault(file.resolve(), file)
    return list(found.values())


def _heads(files: Sequence[Path], damage: list[Damage]) -> dict[Path, bytes]:
    heads: dict[Path, bytes] = {}
    for file in files:
        try:
            with file.open("rb") as stream:
                heads[file] = stream.read(HEAD_BYTES)
        except OSError as error:
            damage.append(Damage(path=str(file), what=f"cannot be opened: {error.strerror}"))
    return heads
