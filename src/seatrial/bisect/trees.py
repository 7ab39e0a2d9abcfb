"""Checkouts: clean worktrees with their submodules, in our own directory, moved from commit to commit."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.bisect.git import GitError, git
from seatrial.bisect.outcomes import Cause, Obstacle, obstacle_of
from seatrial.errors import BlockedError

_GONE = re.compile(
    r"not our ref|did not contain|direct fetching of that commit failed|reference is not a tree|"
    r"unable to (?:read tree|find current revision)|no url found for submodule|bad object",
    re.IGNORECASE,
)


_ALONE = ("-c", "submodule.recurse=false")
"""Submodules are updated separately, after their objects have been fetched."""


class UntestableError(Exception):
    """This commit cannot be checked out unchanged; the message says why. It is skipped."""


class CheckoutBlockedError(Exception):
    """The environment prevented the checkout; it is retried."""

    def __init__(self, obstacle: Obstacle) -> None:
        """Keep what prevented it."""
        super().__init__(obstacle.reason)
        self.obstacle = obstacle


@dataclass
class Worktree:
    """One worktree and what was built for the commits that it contained."""

    root: Path
    sha: str | None = None
    """The commit in it; None if no commit is completely checked out."""
    made: frozenset[str] | None = None
    """Untracked files of its preparation, which cleaning keeps; None if it is not prepared."""
    homes: list[str] = field(default_factory=list)
    """Commits with an environment here, least recently used first."""

    @property
    def tree(self) -> Path:
        """Return the checkout."""
        return self.root / "tree"

    @property
    def home(self) -> Path:
        """Return the directory of the environment and the caches of the commit in it."""
        return self.root / f"of-{(self.sha or '')[:12]}"


class Trees:
    """The worktrees of one process. A run takes the worktree of its commit, or moves another one there.

    A move rewrites only the files in which the two commits differ. With `--prepare` a worktree keeps its commit while
    more worktrees may be created, because preparation costs more than files.
    """

    def __init__(self, repository: Path, root: Path, most: int = 1) -> None:
        """Use the private repository, and keep at most `most` worktrees on disk."""
        self._repository = repository
        self._root = root
        self._most = most
        self._lock = threading.Lock()
        self._free: list[Worktree] = []
        """Least recently used first."""
        self._num_made = 0

    @contextmanager
    def checked_out(self, sha: str, *, stay: bool = False) -> Iterator[Worktree]:
        """Hold a worktree with a clean checkout of the commit, exclusively until the block ends.

        Args:
            sha: the commit.
            stay: create another worktree rather than move one, while the limit allows it.

        Raises:
            UntestableError: a submodule's commit no longer exists.
            CheckoutBlockedError: the network or the disk prevented it.
        """
        worktree = self._take(sha, stay)
        try:
            try:
                self._bring(worktree, sha)
            except GitError as error:
                raise CheckoutBlockedError(
                    obstacle_of(error.stderr) or Obstacle(Cause.MACHINE, str(error)[:300])
                ) from error
            except (OSError, BlockedError) as error:
                raise CheckoutBlockedError(
                    obstacle_of(str(error)) or Obstacle(Cause.MACHINE, str(error))
                ) from error
            yield worktree
        finally:
            with self._lock:
                self._free.append(worktree)

    def keep_prepared(self, worktree: Worktree) -> None:
        """Record the untracked files of a worktree as made by its preparation; cleaning keeps them."""
        worktree.made = frozenset(_untracked(worktree.tree))

    def discard(self, worktree: Worktree) -> None:
        """Remove the content of a worktree; it is created again when needed."""
        shutil.rmtree(worktree.root, ignore_errors=True)
        worktree.sha, worktree.made, worktree.homes = None, None, []

    def discard_all(self) -> None:
        """Remove all worktrees."""
        with self._lock:
            self._free.clear()
            shutil.rmtree(self._root, ignore_errors=True)

    def _take(self, sha: str, stay: bool) -> Worktree:
        """Return a free worktree: one with the commit, else the least recently used one, else a new one."""
        with self._lock:
            chosen = next((worktree for worktree in self._free if worktree.sha == sha), None)
            if chosen is None and self._free and not (stay and self._num_made < self._most):
                chosen = next(
                    (worktree for worktree in self._free if sha[:12] in worktree.homes), self._free[0]
                )
            if chosen is None:
                self._num_made += 1
                return Worktree(self._root / f"place-{self._num_made}")
            self._free.remove(chosen)
            return chosen

    def _bring(self, worktree: Worktree, sha: str) -> None:
        """Check out the commit in a worktree, clean, with its submodules."""
        held, worktree.sha = worktree.sha, None
        if held != sha:
            worktree.made = None
        if held is None or not self._moved(worktree, held, sha):
            self.discard(worktree)
            with self._lock:
                worktree.root.mkdir(parents=True)
                git(self._repository, "worktree", "prune")
                git(
                    self._repository,
                    "worktree",
                    "add",
                    "--quiet",
                    "--detach",
                    "--force",
                    str(worktree.tree),
                    sha,
                )
            self._submodules(sha, worktree.tree)
        self._check(sha, worktree.tree)
        worktree.sha = sha
        self._keep_homes(worktree)

    def _moved(self, worktree: Worktree, held: str, sha: str) -> bool:
        """Move an existing worktree to the commit; False if something in it cannot be reset."""
        tree, kept = worktree.tree, worktree.made or frozenset()
        try:
            if _has_hidden_edits(tree):
                return False
            if (tree / ".gitmodules").exists():
                for name in _links(tree, held) - _links(tree, sha):
                    _remove(tree / name)
            git(tree, *_ALONE, "checkout", "--quiet", "--force", "--detach", sha)
            git(tree, *_ALONE, "reset", "--quiet", "--hard", sha)
            self._submodules(sha, tree)
            _clean_submodules(tree)
            for name in _untracked(tree):
                if name not in kept:
                    _remove(tree / name)
            return not [name for name in _untracked(tree) if name not in kept]
        except (GitError, OSError):
            return False

    def _keep_homes(self, worktree: Worktree) -> None:
        """Mark the worktree's environment as used, and remove the oldest ones beyond the limit."""
        name = (worktree.sha or "")[:12]
        worktree.homes = [*(other for other in worktree.homes if other != name), name]
        while len(worktree.homes) > self._most:
            shutil.rmtree(worktree.root / f"of-{worktree.homes.pop(0)}", ignore_errors=True)

    def _submodules(self, sha: str, tree: Path) -> None:
        if not (tree / ".gitmodules").exists():
            return
        try:
            git(tree, "submodule", "--quiet", "sync", "--recursive")
            git(
                tree,
                # The user's own submodule objects come first, so a commit fetched there by hand is found.
                "-c", "submodule.alternateLocation=superproject", "-c", "submodule.alternateErrorStrategy=info",
                "submodule", "--quiet", "update", "--init", "--recursive", "--no-recommend-shallow",
                timeout_seconds=3600.0,
            )  # fmt: skip
        except GitError as error:
            last = next((line for line in reversed(error.stderr.splitlines()) if line.strip()), "no message")
            if _GONE.search(error.stderr):
                line = next(line for line in error.stderr.splitlines() if _GONE.search(line))
                raise UntestableError(
                    f"a submodule of {sha[:12]} cannot be fetched: {line.strip()}; fetch that commit into the "
                    "submodule of your checkout if it still exists somewhere"
                ) from error
            obstacle = obstacle_of(error.stderr) or Obstacle(
                Cause.NETWORK, f"submodules of {sha[:12]}: {last}"
            )
            raise CheckoutBlockedError(obstacle) from error

    @staticmethod
    def _check(sha: str, tree: Path) -> None:
        """Check that the worktree equals the commit: right hash, nothing modified, submodules included."""
        head = git(tree, "rev-parse", "HEAD").strip()
        dirty = git(tree, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none")
        if head != sha or dirty.strip():
            raise UntestableError(
                f"the checkout of {sha[:12]} differs from its commit: {dirty.strip()[:200] or head}"
            )


def _has_hidden_edits(tree: Path) -> bool:
    """Return whether a run made the index ignore changes (skip-worktree, assume-unchanged)."""
    listed = git(tree, "ls-files", "-v", "-z").split("\0")
    return any(entry[:1] == "S" or entry[:1].islower() for entry in listed)


def _links(tree: Path, sha: str) -> set[str]:
    """Return the paths of a commit's submodules."""
    entries = git(tree, "ls-tree", "-r", "-z", sha).split("\0")
    return {entry.split("\t", 1)[1] for entry in entries if entry.startswith("160000 ")}


def _clean_submodules(tree: Path) -> None:
    if (tree / ".gitmodules").exists():
        words = "git reset --quiet --hard && git clean -qffdx"
        git(tree, "submodule", "--quiet", "foreach", "--recursive", words)
        git(tree, "submodule", "--quiet", "update", "--init", "--recursive", "--force", "--no-fetch")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _untracked(tree: Path) -> Sequence[str]:
    """Return untracked paths, including ignored ones; an untracked folder represents its content."""
    listed = git(tree, "ls-files", "--others", "--directory", "-z")
    return [name.rstrip("/") for name in filter(None, listed.split("\0"))]
