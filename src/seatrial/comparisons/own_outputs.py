"""Finds out which changes in a checkout are outputs of recording and comparing baselines.

A baseline is not recorded from a tree with uncommitted changes. The baseline's own file, the logs that it is learned
from and the folders of repeated runs do not count as changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

_REPEAT = re.compile(r"repeat-\d+")
_UNTRACKED = "??"


def foreign_changes(
    top: Path, dirty_lines: Sequence[str], output: Path, folders: Sequence[Path]
) -> tuple[str, ...]:
    """Return the changes that are not our outputs.

    Args:
        top: root of the checkout.
        dirty_lines: lines of `git status --porcelain`, with paths from the root.
        output: the baseline's file, committed or not.
        folders: logs and working folders; untracked files in them are ours.
    """
    own = [path.resolve() for path in folders if not top.resolve().is_relative_to(path.resolve())]
    return tuple(line for line in dirty_lines if not _is_own(top.resolve(), line, output.resolve(), own))


def _is_own(top: Path, line: str, output: Path, folders: Sequence[Path]) -> bool:
    state, name = line[:2], line[3:].strip('"')
    path = top / name
    if state != _UNTRACKED:
        return path == output
    # A path that git wrote with escapes is not found, so it does not count as ours.
    files = list(_files(path))
    return bool(files) and all(
        file == output or _in_repeat(file, top) or any(file.is_relative_to(folder) for folder in folders)
        for file in files
    )


def _files(path: Path) -> Iterator[Path]:
    if path.is_dir() and not path.is_symlink():
        yield from (item for item in path.rglob("*") if item.is_symlink() or not item.is_dir())
    elif path.exists():
        yield path


def _in_repeat(file: Path, top: Path) -> bool:
    """Return whether a file is in a folder that `run_repeats` made: `repeat-N` with the command's run.log."""
    return any(
        _REPEAT.fullmatch(folder.name) and (folder / "run.log").is_file()
        for folder in file.parents
        if folder.is_relative_to(top)
    )
