"""A private repository that borrows the user's objects, so that the user's repository is only read.

It is a bare repository in the state directory whose `objects/info/alternates` names the user's object store. All
worktrees, fetches and submodules are created in it: nothing is written into the user's `.git`, not even worktree
metadata, even if this process is killed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from seatrial.bisect.git import GitError, git
from seatrial.errors import BlockedError, UsageError

_OPENING = ".opening-"
_COPIED_SECTIONS = (
    "filter.", "lfs.", "url.", "http.", "credential.", "submodule.", "remote.", "extensions.partialclone", "protocol.",
)  # fmt: skip
_COPIED_KEYS = (
    "core.autocrlf", "core.eol", "core.symlinks", "core.filemode", "core.ignorecase", "core.longpaths",
    "core.precomposeunicode", "core.sshcommand",
)  # fmt: skip


class UserRepository:
    """The user's repository; read only."""

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

    def resolve(self, name: str, role: str, deepened: Path | None = None) -> str:
        """Return the full hash of a commit.

        Args:
            name: a hash, or any name that git knows.
            role: what the commit is used as, for the message.
            deepened: private repository with the full history of a shallow clone; used if the clone has no such name.

        Raises:
            UsageError: the name is no commit here.
        """
        for repository in filter(None, (self.top, deepened)):
            try:
                return git(
                    repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
                ).strip()
            except GitError:
                continue
        raise UsageError(
            f"{role} {name!r} is not a commit of {self.top}; fetch it, or give another name or hash"
        )

    def is_cut_at(self, sha: str) -> bool:
        """Return whether a shallow clone is cut off at this commit, so that its history there is incomplete."""
        shallow = self.git_dir / "shallow"
        return shallow.exists() and sha in shallow.read_text(encoding="utf-8").split()


def open_private(user: UserRepository, path: Path) -> Path:
    """Create the private repository at `path`, or find it again, and return it.

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
    """Copy the settings that decide how files are checked out and fetched; never hooks or the place of a work tree."""
    listed = git(user.top, "config", "--local", "--list", "--null")
    for entry in filter(None, listed.split("\0")):
        key, _, value = entry.partition("\n")
        if key.lower().startswith(_COPIED_SECTIONS) or key.lower() in _COPIED_KEYS:
            git(path, "config", "--add", key, value)
    try:
        git(path, "config", "remote.origin.url")
    except GitError:
        # Relative submodule addresses are relative to the origin, or, without one, to the repository itself.
        git(path, "config", "remote.origin.url", str(user.top))


def _unshallow(user: UserRepository, path: Path) -> None:
    """Fetch the full history, and create every name that the user has: `v1.2`, `HEAD~20`, `origin/main`."""
    try:
        git(
            path, "fetch", "--quiet", "--unshallow", "--tags", "origin", "+refs/heads/*:refs/remotes/origin/*",
            timeout_seconds=3600.0,
        )  # fmt: skip
    except GitError as error:
        raise BlockedError(
            f"{user.top} is a shallow clone and its history cannot be fetched: {error.stderr}; "
            "run `git fetch --unshallow` there"
        ) from error
    for line in git(user.top, "for-each-ref", "--format=%(refname) %(objectname)").splitlines():
        git(path, "update-ref", *line.split())
    git(path, "update-ref", "--no-deref", "HEAD", user.resolve("HEAD", "HEAD"))


@contextmanager
def deepened(user: UserRepository, base: Path) -> Iterator[Path | None]:
    """Provide a private repository with the full history of a shallow clone, to resolve names in.

    Yields:
        Its path below `base`, or None if the clone is complete. It is removed at the end if it is still there.

    Raises:
        BlockedError: the history cannot be fetched.
    """
    if not user.is_shallow:
        yield None
        return
    for old in base.glob(f"{_OPENING}*"):
        if not psutil.pid_exists(int(old.name.removeprefix(_OPENING))):
            shutil.rmtree(old, ignore_errors=True)
    place = base / f"{_OPENING}{os.getpid()}"
    try:
        yield open_private(user, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)
