"""Reads any log that a stack leaves: the reader is picked by what the files contain, not by their names."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence import metrics_json, tensorboard
from seatrial.evidence.runlog import RunLog
from seatrial.evidence.tfrecord import is_header


def read_logs(path: Path, tags: Collection[str] | None = None) -> RunLog:
    """Read a log file, or a directory of logs, whole.

    Args:
        path: A file, or a directory that is searched with its sub-directories.
        tags: Read only these tags; the others are listed in `RunLog.other_tags`. None reads all.

    Raises:
        BlockedError: nothing can be read at all: missing, empty, garbage, no permission.
    """
    path = Path(path)
    if not path.exists():
        raise BlockedError(f"{path}: no such file or directory; give the folder that the run logged to")
    files = [path] if path.is_file() else _files(path)
    try:
        events = [file for file in files if is_header(_head(file))]
        if events:
            return tensorboard.read(events, tags)
        documents = [file for file in files if _head(file).lstrip()[:1] == b"{"]
        if documents:
            return metrics_json.read(documents[0], tags)
    except OSError as error:
        raise BlockedError(f"{error.filename or path}: {error.strerror}; make it readable") from error
    raise BlockedError(f"{path}: nothing in it is a log that can be read (empty or garbage)")


def _files(directory: Path) -> list[Path]:
    found = [Path(root, name) for root, _, names in os.walk(directory) for name in names]
    return sorted(file for file in found if file.is_file())


def _head(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(64)
