"""The journal of a bisect, and the format of `git bisect log`.

The journal has one line per event, synced to disk before anything else happens. A line is JSON, or a line in the format
of `git bisect log` that a user added: `git bisect skip HASH`. A line cut short by a kill is dropped when the journal is
opened next; damage anywhere else is an error.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from seatrial.errors import BlockedError, UsageError

GOOD, BAD, SKIP = "good", "bad", "skip"
_COMMENT = re.compile(r"^\s*# \S+: \[([0-9a-f]{40,64})\]")
_HASH = re.compile(r"[0-9a-f]{4,64}")


@dataclass(frozen=True)
class Mark:
    """One mark: `good`, `bad` or `skip`, of commits or ranges."""

    word: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class GitLog:
    """The content of a `git bisect log` file."""

    good: tuple[str, ...]
    bad: str | None
    marks: tuple[Mark, ...]
    """In order, without those of `git bisect start`."""
    first_parent: bool


def read_mark(line: str, path: Path, number: int, terms: tuple[str, str] = (BAD, GOOD)) -> Mark:
    """Read one `git bisect good|bad|skip ...` line.

    Raises:
        UsageError: the line has another form.
    """
    words = _words(line, path, number)
    word = words[2] if len(words) > 2 else ""
    known = {"good": GOOD, "old": GOOD, terms[1]: GOOD, "bad": BAD, "new": BAD, terms[0]: BAD, "skip": SKIP}
    if word not in known or len(words) < 4:
        raise UsageError(
            f"{path}, line {number}: {line.strip()!r} is not `git bisect good|bad|skip HASH`; fix or delete it"
        )
    return Mark(known[word], tuple(words[3:]))


def read_git_log(path: Path) -> GitLog:
    """Read a file that `git bisect log` wrote, possibly edited by hand.

    Raises:
        UsageError: the file or one of its lines cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the bisect log {path}: {error}") from error
    marks: list[Mark] = []
    starts: list[str] = []
    comments: list[str] = []
    terms, first_parent = (BAD, GOOD), False
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            comments += _COMMENT.findall(line)
            continue
        words = _words(line, path, number)
        if words[:3] == ["git", "bisect", "start"]:
            starts, terms, first_parent = _start(words[3:], terms)
            starts = _by_hash(starts, comments)
        elif words[:3] == ["git", "bisect", "terms"] or words[:3] == ["git", "bisect", "log"]:
            continue
        else:
            mark = read_mark(line, path, number, terms)
            marks.append(Mark(mark.word, tuple(_by_hash(mark.names, comments))))
            comments = []
    good = [*starts[1:], *(name for mark in marks if mark.word == GOOD for name in mark.names)]
    bad = starts[0] if starts else next((mark.names[0] for mark in marks if mark.word == BAD), None)
    return GitLog(tuple(good), bad, tuple(marks), first_parent)


def _by_hash(names: Sequence[str], hashes: Sequence[str]) -> list[str]:
    """Return the names of a line, each replaced by the hash in the comment above: a name may mean another commit today.

    git writes one comment per name, in order. A name that is a hash or a range is kept: a user may have written it.
    """
    if len(names) != len(hashes):
        return list(names)
    return [
        name if _HASH.fullmatch(name) or ".." in name else sha
        for name, sha in zip(names, hashes, strict=True)
    ]


def _start(words: Sequence[str], terms: tuple[str, str]) -> tuple[list[str], tuple[str, str], bool]:
    """Read the arguments of `git bisect start`; paths after `--` are ignored, as --paths gives them."""
    names: list[str] = []
    new, old = terms
    first_parent = False
    pending = iter(words)
    for word in pending:
        if word == "--":
            break
        if word == "--first-parent":
            first_parent = True
        elif match := re.fullmatch(r"--term-(?:new|bad)(?:=(.*))?", word):
            new = match[1] or next(pending, new)
        elif match := re.fullmatch(r"--term-(?:old|good)(?:=(.*))?", word):
            old = match[1] or next(pending, old)
        elif not word.startswith("-"):
            names.append(word)
    return names, (new, old), first_parent


def _words(line: str, path: Path, number: int) -> list[str]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{path}, line {number}: {error}; fix or delete it") from error
    if words[:2] != ["git", "bisect"] or len(words) < 3:
        raise UsageError(
            f"{path}, line {number}: {line.strip()!r} is not a line of git bisect log; fix or delete it"
        )
    return words


def write_git_log(good: str, bad: str, marks: Sequence[tuple[str, str, str]]) -> str:
    """Return a log that `git bisect replay` and `--replay` read.

    Args:
        good: hash of GOOD.
        bad: hash of BAD.
        marks: (word, hash, comment) in order.
    """
    lines = [f"git bisect start '{bad}' '{good}'"]
    for word, sha, comment in marks:
        lines += [f"# {word}: [{sha}] {' '.join(comment.split())}", f"git bisect {word} {sha}"]
    return "\n".join(lines) + "\n"


NAME = "journal.jsonl"


@dataclass(frozen=True)
class Entry:
    """One line: a record of ours, or a mark that a user added."""

    record: Mapping[str, Any] | None
    mark: Mark | None = None


class Journal:
    """Append-only; use as a context manager. Only one process may hold it."""

    def __init__(self, path: Path) -> None:
        """Open or create the journal, and drop a last line that was cut short.

        Raises:
            BlockedError: it cannot be opened, or another process uses it.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._file)
            raise BlockedError(f"another process is working on {path}; wait for it, or stop it") from error
        except OSError as error:
            raise BlockedError(f"cannot open the journal {path}: {error.strerror}") from error
        self._drop_torn_line()

    def _drop_torn_line(self) -> None:
        text = self.path.read_bytes()
        if text and not text.endswith(b"\n"):
            last = text[text.rfind(b"\n") + 1 :]
            if _is_whole(last):
                os.lseek(self._file, 0, os.SEEK_END)
                os.write(self._file, b"\n")
            else:
                os.ftruncate(self._file, len(text) - len(last))
        os.lseek(self._file, 0, os.SEEK_END)

    def write(self, kind: str, **values: Any) -> None:
        """Append one record and sync it to disk.

        Raises:
            BlockedError: it cannot be written.
        """
        line = json.dumps({"kind": kind, **values}, ensure_ascii=False, allow_nan=False) + "\n"
        data = line.encode("utf-8")
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            raise BlockedError(
                f"cannot write the journal {self.path}: {error.strerror}; free space, then continue with --resume"
            ) from error

    def close(self) -> None:
        """Close the file and release the lock."""
        os.close(self._file)

    def __enter__(self) -> Journal:
        """Return the journal."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()


def _is_whole(line: bytes) -> bool:
    """Return whether a line without a newline is complete: valid JSON, or a git bisect line."""
    text = line.decode("utf-8", errors="replace").strip()
    if not text.startswith("{"):
        return text.startswith("git bisect ")
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def read_journal(path: Path) -> list[Entry]:
    """Read every entry.

    Raises:
        UsageError: there is no journal, or a line is neither JSON nor of `git bisect log`.
    """
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"cannot read the journal {path}: {error}") from error
    lines = text.split("\n")
    if not text.endswith("\n") and not _is_whole(lines[-1].encode()):
        lines.pop()
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("git bisect "):
            entries.append(Entry(None, read_mark(line, path, number)))
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path}, line {number}: neither JSON nor a line of git bisect log ({error}); fix or delete it"
            ) from error
        if not isinstance(record, dict) or "kind" not in record:
            raise UsageError(f"{path}, line {number}: not a record of a bisect journal; fix or delete it")
        entries.append(Entry(record))
    return entries
