"""Reads and writes the format of `git bisect log`, including edits by hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.errors import UsageError

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
