"""A repository of our own that borrows the user's objects, so that theirs is only ever read.

It is a bare repository in the state directory whose `objects/info/alternates` names the user's object store. All
worktrees, fetches and submodules live in it: nothing is written into the user's `.git`, not even worktree
metadata, whatever ends us.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from seatrial.bisect.gitcommand import GitError, git
from seatrial.errors import BlockedError, UsageError

_COPIED_SECTIONS = (
    "filter.",
    "lfs.",
    "url.",
    "http.",
    "credential.",
    "submodule.",
    "remote.",
    "extensions.partialclone",
    "protocol.",
)
_COPIED_KEYS = (
    "core.autocrlf",
    "core.eol",
    "core.symlinks",
    "core.filemode",
    "core.ignorecase",
    "core.longpaths",
    "core.precomposeunicode",
    "core.sshcommand",
)


class UserRepository:
    """The user's repository, read only."""

    def __init__(self, directory: Path) -> None:
        """Find the repository that contains `directory`.

        Raises:
            UsageError: there is none.
        """
        try:
            words = git(
                directory, "rev-parse", "--path-format=absolute", "--git-common-dir", "--is-bare-repository",
                "--is-shallow-repository",
            ).split("\n")  # fmt: skip
        except GitError as error:
            raise UsageError(
                f"{directory} is not in a git repository ({error.stderr}); use --repo DIRECTORY"
            ) from error
        self.git_dir = Path(words[0])
        self.is_shallow = words[2] == "true"
        self.top = (
            directory
            if words[1] == "true"
            else Path(git(directory, "rev-parse", "--show-toplevel").rstrip("\n"))
        )

    def resolve(self, name: str, role: str) -> str:
        """Return the full hash of a commit.

        Raises:
            UsageError: it names no commit here.
        """
        try:
            return git(
                self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
            ).strip()
        except GitError as error:
            raise UsageError(
                f"{role} {name!r} is not a commit of {self.top}; fetch it, or give another name or hash"
            ) from error


def open_private(user: UserRepository, path: Path) -> Path:
    """Make (or find again) the private repository at `path` and return it.

    Raises:
        BlockedError: it cannot be written.
    """
    marker = path / "seatrial-ready"
    if marker.exists():
        return path
    try:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        git(path, "init", "--quiet", "--bare", ".")
        (path / "objects" / "info").mkdir(exist_ok=True)
        (path / "objects" / "info" / "alternates").write_text(
            f"{user.git_dir / 'objects'}\n", encoding="utf-8"
        )
        if user.is_shallow and (user.git_dir / "shallow").exists():
            shutil.copyfile(user.git_dir / "shallow", path / "shallow")
        _copy_configuration(user, path)
        if user.is_shallow:
            _unshallow(user, path)
        marker.write_text("", encoding="utf-8")
    except OSError as error:
        raise BlockedError(f"cannot write the private repository {path}: {error.strerror}") from error
    except GitError as error:
        raise BlockedError(f"cannot make the private repository {path}: {error}") from error
    return path


def _copy_configuration(user: UserRepository, path: Path) -> None:
    """Copy what decides how files are checked out and fetched; never hooks, never the place of a work tree."""
    listed = git(user.top, "config", "--local", "--list", "--null")
    for entry in filter(None, listed.split("\0")):
        key, _, value = entry.partition("\n")
        if key.lower().startswith(_COPIED_SECTIONS) or key.lower() in _COPIED_KEYS:
            git(path, "config", "--add", key, value)
    try:
        git(path, "config", "remote.origin.url")
    except GitError:
        # Relative submodule addresses are relative to the origin, or without one to the repository itself.
        git(path, "config", "remote.origin.url", str(user.top))


def _unshallow(user: UserRepository, path: Path) -> None:
    try:
        git(path, "fetch", "--quiet", "--unshallow", "--no-tags", "origin")
    except GitError as error:
        raise BlockedError(
            f"{user.top} is a shallow clone and its history cannot be fetched: {error.stderr}; "
            "run `git fetch --unshallow` there yourself"
        ) from error
