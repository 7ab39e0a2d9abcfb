"""Writes files completely or not at all, with one message if that fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from seatrial.errors import BlockedError


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name in the same folder, then rename it: readers see the old text or the new one.

    Raises:
        OSError: it cannot be written; nothing is left of the attempt.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str, *, option: str = "--output") -> None:
    """Write a file that the user asked for, completely or not at all.

    Args:
        path: the file.
        text: all of it.
        option: the option by which the user chose the path.

    Raises:
        BlockedError: the disk is full, the folder may not be written, or it is gone.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        raise not_written("write", path, error, option=option) from error


def not_written(what: str, path: Path, error: OSError, *, option: str = "--output") -> BlockedError:
    """Return the error for a file or folder that cannot be created.

    Args:
        what: `write` or `make`.
        path: the file or folder.
        error: the system's error.
        option: the option by which the user can choose another path.
    """
    other = f"give another {option}"
    remedy = {
        **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"free space there, or {other}"),
        errno.ENOENT: f"make the folder {path.parent}, or {other}",
        errno.EISDIR: f"name a file in it: {option} {path / 'NAME'}",
    }.get(error.errno or 0, other)
    return BlockedError(f"cannot {what} {path}: {error.strerror}; {remedy}")
