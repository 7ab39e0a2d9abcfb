"""Calls git in isolation: no hooks, no prompts, no optional locks, no variables of an enclosing git."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from seatrial.errors import BlockedError

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
