"""Checked-out commits: one clean worktree each, with its submodules, in our own directory."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from seatrial.bisect.causes import Cause, Obstacle, obstacle_of
from seatrial.bisect.gitcommand import GitError, git
from seatrial.errors import BlockedError

_GONE = re.compile(
    r"not our ref|did not contain|direct fetching of that commit failed|reference is not a tree|"
    r"unable to (?:read tree|find current revision)|no url found for submodule|bad object",
    re.IGNORECASE,
)


class UntestableError(Exception):
    """This commit cannot be checked out as it was; the message says why. It is skipped."""


class HinderedError(Exception):
    """The checkout was prevented by the environment; it is tried again."""

    def __init__(self, obstacle: Obstacle) -> None:
        """Keep what stood in the way."""
        super().__init__(obstacle.reason)
        self.obstacle = obstacle


class Trees:
    """The worktrees of one process; each is `<root>/<12 digits>/tree`."""

    def __init__(self, repository: Path, root: Path, most: int = 8) -> None:
        """Use the private repository, and keep at most `most` trees on disk."""
        self._repository = repository
        self._root = root
        self._most = most
        self._lock = threading.Lock()
        self._ready: dict[str, frozenset[str]] = {}
        """By commit, least recently used first: the untracked files that its preparation made."""

    def home(self, sha: str) -> Path:
        """Return the directory of a commit: its tree, environment and cache."""
        return self._root / sha[:12]

    def checkout(self, sha: str) -> tuple[Path, bool]:
        """Return a clean tree of the commit, and whether it was made anew (and needs preparing).

        Raises:
            UntestableError: a submodule's commit no longer exists.
            HinderedError: the network or the disk prevented it.
        """
        tree = self.home(sha) / "tree"
        try:
            with self._lock:
                if sha in self._ready:
                    self._ready[sha] = self._ready.pop(sha)
                    self._clean(sha, tree)
                    return tree, False
                self._make_room()
                shutil.rmtree(self.home(sha), ignore_errors=True)
                self.home(sha).mkdir(parents=True)
                git(self._repository, "worktree", "prune")
                git(self._repository, "worktree", "add", "--quiet", "--detach", "--force", str(tree), sha)
            self._submodules(sha, tree)
            self._check(sha, tree)
        except GitError as error:
            raise HinderedError(
                obstacle_of(error.stderr) or Obstacle(Cause.MACHINE, str(error)[:300])
            ) from error
        except (OSError, BlockedError) as error:
            raise HinderedError(obstacle_of(str(error)) or Obstacle(Cause.MACHINE, str(error))) from error
        self._ready[sha] = frozenset()
        return tree, True

    def keep_prepared(self, sha: str) -> None:
        """Remember the untracked files of the tree as made by its preparation: cleaning leaves them."""
        self._ready[sha] = frozenset(_untracked(self.home(sha) / "tree"))

    def discard(self, sha: str) -> None:
        """Remove a commit's directory."""
        with self._lock:
            self._remove(sha)

    def discard_all(self) -> None:
        """Remove every tree."""
        with self._lock:
            for sha in list(self._ready):
                self._remove(sha)
            shutil.rmtree(self._root, ignore_errors=True)

    def _remove(self, sha: str) -> None:
        self._ready.pop(sha, None)
        shutil.rmtree(self.home(sha), ignore_errors=True)

    def _make_room(self) -> None:
        while len(self._ready) >= self._most:
            self._remove(next(iter(self._ready)))

    def _clean(self, sha: str, tree: Path) -> None:
        """Undo what a run did to its tree; what preparation built stays."""
        git(tree, "reset", "--quiet", "--hard", sha)
        if (tree / ".gitmodules").exists():
            git(
                tree,
                "submodule",
                "--quiet",
                "foreach",
                "--recursive",
                "git reset --quiet --hard && git clean -qffdx",
            )
            git(tree, "submodule", "--quiet", "update", "--init", "--recursive", "--force", "--no-fetch")
        for name in _untracked(tree):
            if name not in self._ready[sha]:
                path = tree / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _submodules(self, sha: str, tree: Path) -> None:
        if not (tree / ".gitmodules").exists():
            return
        try:
            git(tree, "submodule", "--quiet", "sync", "--recursive")
            git(
                tree,
                # The user's own submodule objects are used first, so a commit fetched there by hand is found.
                "-c", "submodule.alternateLocation=superproject", "-c", "submodule.alternateErrorStrategy=info",
                "submodule", "--quiet", "update", "--init", "--recursive", "--no-recommend-shallow",
                timeout_seconds=3600.0,
            )  # fmt: skip
        except GitError as error:
            last = next((line for line in reversed(error.stderr.splitlines()) if line.strip()), "no message")
            if _GONE.search(error.stderr):
                told = next(line for line in error.stderr.splitlines() if _GONE.search(line))
                raise UntestableError(
                    f"a submodule of {sha[:12]} cannot be fetched: {told.strip()}; fetch that commit into the "
                    "submodule of your checkout if it still exists somewhere"
                ) from error
            obstacle = obstacle_of(error.stderr) or Obstacle(
                Cause.NETWORK, f"submodules of {sha[:12]}: {last}"
            )
            raise HinderedError(obstacle) from error

    @staticmethod
    def _check(sha: str, tree: Path) -> None:
        """Hold the tree to the commit: right hash, nothing modified, submodules included."""
        head = git(tree, "rev-parse", "HEAD").strip()
        dirty = git(tree, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none")
        if head != sha or dirty.strip():
            raise UntestableError(
                f"the checkout of {sha[:12]} differs from its commit: {dirty.strip()[:200] or head}"
            )


def _untracked(tree: Path) -> Sequence[str]:
    """Return untracked paths, ignored ones too; an untracked folder stands for what it holds."""
    listed = git(tree, "ls-files", "--others", "--directory", "-z")
    return [name.rstrip("/") for name in filter(None, listed.split("\0"))]
