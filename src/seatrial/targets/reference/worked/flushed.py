"""Worked examples of what is flushed to disk, and in which order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example


def of_flushes(save: Callable[[Path, bool], None], in_folder: Callable[..., Any]) -> Iterator[WorkedExample]:
    """Yield what a checkpoint flushes before it has its name, and after.

    Args:
        save: writes the checkpoint of step 2 to a folder, in the background or not.
        in_folder: gives a function a folder of its own.
    """
    for in_background in (False, True):
        name = f"what a checkpoint flushes, in the background: {in_background}"
        right = {"files and folders it has, before": [], "its folder's entries, after": True}
        yield example(name, right, in_folder(_flushed), save, in_background)


def _flushed(folder: Path, save: Callable[[Path, bool], None], in_background: bool) -> Any:
    """Return what was not flushed in time; files keep their number when their folder gets its name."""
    before: set[int] = set()
    after: set[int] = set()
    root = folder / "checkpoints"

    def fsync(descriptor: int) -> None:
        flushed = after if (root / "step_2").exists() else before
        flushed.add(os.fstat(descriptor).st_ino)

    with patch("os.fsync", fsync):
        save(root, in_background)
    paths = [root / "step_2", *(root / "step_2").rglob("*")]
    assert any(path.is_file() for path in paths)
    return {
        "files and folders it has, before": [
            path.relative_to(root).as_posix() for path in paths if path.stat().st_ino not in before
        ],
        "its folder's entries, after": root.stat().st_ino in after,
    }
