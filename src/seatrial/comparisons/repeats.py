"""Finds out which changes in a checkout are outputs of recording and comparing baselines.

A baseline is not recorded from a tree with uncommitted changes. The baseline's own file, the logs that it is learned
from and the folders of repeated runs do not count as changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.launch.local import run_command

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


FOLDER, NUMBER = "{folder}", "{repeat}"
ShowProgress = Callable[[str], None]


def run_repeats(
    argv: Sequence[str],
    *,
    num_repeats: int,
    folder: Path,
    logs: str,
    environment: Mapping[str, str],
    timeout_seconds: float,
    say: ShowProgress = lambda text: None,
) -> list[Path]:
    """Run a command and return the log path of each repeat.

    Args:
        argv: the command; it starts in our working directory.
        num_repeats: how often it runs.
        folder: gets `repeat-0`, `repeat-1`, ..., each with the command's run.log; must not contain them yet.
        logs: where a repeat writes its logs, with `{folder}` or `{repeat}` in it.
        environment: the whole environment of the command.
        timeout_seconds: limit of each repeat.
        say: receives progress messages.

    Raises:
        UsageError: all repeats would log to one place, or a repeat's folder already exists.
        BlockedError: a repeat did not exit with status 0, or cannot be started.
    """
    if FOLDER not in logs and NUMBER not in logs:
        raise UsageError(
            f"--logs {logs}: every repeat would log there; write {FOLDER} or {NUMBER} in it, such as {FOLDER}/logs"
        )
    places = []
    for number in range(num_repeats):
        own = folder / f"repeat-{number}"
        try:
            own.mkdir(parents=True)
        except FileExistsError as error:
            raise UsageError(f"{own} already exists from an earlier run; give a new --work folder") from error
        except OSError as error:
            raise BlockedError(f"cannot make {own}: {error.strerror}") from error
        launched = run_command(
            [fill(word, number, own) for word in argv],
            log_path=own / "run.log",
            environment={
                **environment,
                "SEATRIAL_REPEAT": str(number),
                "SEATRIAL_REPEAT_FOLDER": str(own),
            },
            timeout_seconds=timeout_seconds,
            progress=partial(_report, say, f"repeat {number + 1} of {num_repeats}"),
            redact=Redactor(environment).text,
        )
        if not launched.ok:
            raise BlockedError(
                f"repeat {number + 1} of {num_repeats} ended with {launched.describe()}; "
                f"its output is in {launched.log_path}"
            )
        places.append(Path(fill(logs, number, own)))
    return places


def fill(text: str, number: int, folder: Path) -> str:
    """Replace the placeholders in a word by a repeat's number and folder."""
    return text.replace(NUMBER, str(number)).replace(FOLDER, str(folder))


def _report(say: ShowProgress, name: str, seconds: float, line: str) -> None:
    say(f"{name}: {seconds:.0f} s  {line}")
