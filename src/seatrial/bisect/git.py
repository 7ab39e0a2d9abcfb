"""Calls git in isolation (no hooks, prompts, locks or variables of an enclosing git), and reads commits with it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from seatrial.bisect.history import Commit, History
from seatrial.errors import BlockedError, UsageError

_SAFE = (
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0",
    "-c", "advice.detachedHead=false",
)  # fmt: skip
_LOCATING = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE",
    "GIT_PREFIX", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)  # fmt: skip


class GitError(Exception):
    """A git command failed; `stderr` says why."""

    def __init__(self, argv: Sequence[str], returncode: int, stderr: str) -> None:
        """Keep the command and its error output."""
        super().__init__(f"git {' '.join(argv)}: exit status {returncode}: {stderr.strip()}")
        self.stderr = stderr.strip()


def without_git_location(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that point git at a particular repository."""
    return {name: value for name, value in environment.items() if name not in _LOCATING}


def git(directory: Path, *arguments: str, timeout_seconds: float = 600.0) -> str:
    """Run git in a directory and return its output.

    Raises:
        GitError: git failed.
        BlockedError: git is missing, or did not finish in time.
    """
    environment = without_git_location(os.environ)
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", *_SAFE, *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            start_new_session=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise BlockedError(f"cannot run git in {directory}: {error.strerror}; is git installed?") from error
    except subprocess.TimeoutExpired as error:
        raise BlockedError(
            f"git {' '.join(arguments)} did not finish within {timeout_seconds:.0f} s"
        ) from error
    if done.returncode != 0:
        raise GitError(arguments, done.returncode, done.stderr.decode("utf-8", errors="replace"))
    return done.stdout.decode("utf-8", errors="replace")


_FORMAT = "%H%x00%P%x00%T%x00%s"


def read_history(
    repository: Path, good: str, bad: str, *, first_parent: bool = False, paths: Sequence[str] = ()
) -> tuple[History, str | None]:
    """Read the suspects: commits that BAD contains and GOOD does not contain.

    Args:
        repository: where git runs.
        good: full hash.
        bad: full hash.
        first_parent: follow only first parents; a merge represents everything that it brought in.
        paths: files and folders that a run depends on; commits in which they are equal share results. Empty: all.

    Returns:
        The history, and a note if the merge base replaces GOOD because GOOD is on another branch.

    Raises:
        UsageError: GOOD already contains BAD, or they have no common commit.
    """
    start, note = _start(repository, good, bad)
    words = ["log", "--topo-order", "--reverse", f"--format={_FORMAT}"]
    if first_parent:
        words.append("--first-parent")
    lines = git(repository, *words, f"{start}..{bad}", "--").splitlines()
    suspects = [_commit(line, first_parent) for line in lines]
    if first_parent and suspects:
        chained = [start, *(commit.sha for commit in suspects)]
        suspects = [replace(commit, parents=(chained[n],)) for n, commit in enumerate(suspects)]
    first = _commit(
        git(repository, "log", "-1", f"--format={_FORMAT}", start, "--").rstrip("\n"), first_parent
    )
    if paths:
        first, *suspects = [_narrowed(repository, commit, paths) for commit in (first, *suspects)]
    return History.of(first, suspects), note


def _start(repository: Path, good: str, bad: str) -> tuple[str, str | None]:
    bases = []
    try:
        bases = git(repository, "merge-base", "--all", good, bad).split()
    except GitError as error:
        if error.stderr:
            raise
    if good in bases:
        return good, None
    if not bases:
        raise UsageError(
            f"GOOD {good[:12]} and BAD {bad[:12]} have no common commit: nothing can be bisected"
        )
    if bad in bases:
        raise UsageError(
            f"GOOD {good[:12]} already contains BAD {bad[:12]}: to find the commit that fixed the fault, swap the two"
        )
    note = (
        f"GOOD {good[:12]} is not an ancestor of BAD; the search starts at their merge base {bases[0][:12]}, "
        "which is verified in its place"
    )
    return bases[0], note


def _commit(line: str, first_parent: bool) -> Commit:
    sha, parents, tree, subject = line.split("\0", 3)
    return Commit(
        sha=sha, parents=tuple(parents.split()[: 1 if first_parent else None]), tree=tree, subject=subject
    )


def _narrowed(repository: Path, commit: Commit, paths: Sequence[str]) -> Commit:
    """Return the commit with a hash of the declared paths instead of the whole tree."""
    listed = git(repository, "ls-tree", "-z", commit.sha, "--", *(path.rstrip("/") for path in paths))
    return replace(commit, tree=hashlib.sha256(listed.encode()).hexdigest())


def path_factors(repository: Path, history: History, priors: Mapping[str, float]) -> dict[str, float]:
    """Return the prior weight of each commit, from the files that it touched.

    Args:
        repository: where git runs.
        history: the suspects.
        priors: factor by shell pattern of paths; a commit gets the largest factor of the patterns it matches.
    """
    factors: dict[str, float] = {}
    for commit in history.suspects if priors else ():
        listed = git(
            repository, "diff-tree", "-r", "-z", "--no-commit-id", "--name-only", "-m", "--root", commit.sha
        )
        touched = [
            factor
            for pattern, factor in priors.items()
            if any(fnmatch(name, pattern) for name in filter(None, listed.split("\0")))
        ]
        if touched:
            factors[commit.sha] = max(touched)
    return factors
