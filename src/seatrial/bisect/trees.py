"""Checked-out commits: clean worktrees with their submodules, in our own directory, moved from commit to commit."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from seatrial.bisect.causes import Cause, Obstacle, obstacle_of
from seatrial.bisect.gitcommand import GitError, git
from seatrial.errors import BlockedError

_GONE = re.compile(
    r"not our ref|did not contain|direct fetching of that commit failed|reference is not a tree|"
    r"unable to (?:read tree|find current revision)|no url found for submodule|bad object",
    re.IGNORECASE,
)


_ALONE = ("-c", "submodule.recurse=false")
"""Submodules are seen to apart, once what they need has been fetched."""


class UntestableError(Exception):
    """This commit cannot be checked out as it was; the message says why. It is skipped."""


class HinderedError(Exception):
    """The checkout was prevented by the environment; it is tried again."""

    def __init__(self, obstacle: Obstacle) -> None:
        """Keep what stood in the way."""
        super().__init__(obstacle.reason)
        self.obstacle = obstacle


@dataclass
class Place:
    """One worktree and what was built for the commits that it has held."""

    root: Path
    sha: str | None = None
    """The commit that it holds; None when it holds none whole."""
    made: frozenset[str] | None = None
    """Untracked files of its preparation, which cleaning leaves; None while it is not prepared."""
    homes: list[str] = field(default_factory=list)
    """Commits with an environment here, least recently used first."""

    @property
    def tree(self) -> Path:
        """Return the checkout."""
        return self.root / "tree"

    @property
    def home(self) -> Path:
        """Return the directory of the environment and the caches of the commit that it holds."""
        return self.root / f"of-{(self.sha or '')[:12]}"


class Trees:
    """The worktrees of one process. A probe takes the place that holds its commit, or moves one there.

    Moving rewrites only the files in which the two commits differ. With `--prepare` a place stays with its commit as
    long as there is room for others, since preparing costs more than files.
    """

    def __init__(self, repository: Path, root: Path, most: int = 1) -> None:
        """Use the private repository, and keep at most `most` trees on disk."""
        self._repository = repository
        self._root = root
        self._most = most
        self._lock = threading.Lock()
        self._free: list[Place] = []
        """Least recently used first."""
        self._num_made = 0

    @contextmanager
    def held(self, sha: str, *, stay: bool = False) -> Iterator[Place]:
        """Hold a place with a clean tree of the commit; nobody else gets it until the block ends.

        Args:
            sha: the commit.
            stay: rather make another place than move one, while there is room.

        Raises:
            UntestableError: a submodule's commit no longer exists.
            HinderedError: the network or the disk prevented it.
        """
        place = self._take(sha, stay)
        try:
            try:
                self._bring(place, sha)
            except GitError as error:
                raise HinderedError(
                    obstacle_of(error.stderr) or Obstacle(Cause.MACHINE, str(error)[:300])
                ) from error
            except (OSError, BlockedError) as error:
                raise HinderedError(obstacle_of(str(error)) or Obstacle(Cause.MACHINE, str(error))) from error
            yield place
        finally:
            with self._lock:
                self._free.append(place)

    def keep_prepared(self, place: Place) -> None:
        """Remember the untracked files of a tree as made by its preparation: cleaning leaves them."""
        place.made = frozenset(_untracked(place.tree))

    def discard(self, place: Place) -> None:
        """Remove what a place holds; it is made anew when it is needed."""
        shutil.rmtree(place.root, ignore_errors=True)
        place.sha, place.made, place.homes = None, None, []

    def discard_all(self) -> None:
        """Remove every tree."""
        with self._lock:
            self._free.clear()
            shutil.rmtree(self._root, ignore_errors=True)

    def _take(self, sha: str, stay: bool) -> Place:
        """Return a place out of the free ones: one that holds the commit, else the longest unused, else a new one."""
        with self._lock:
            chosen = next((place for place in self._free if place.sha == sha), None)
            if chosen is None and self._free and not (stay and self._num_made < self._most):
                chosen = next((place for place in self._free if sha[:12] in place.homes), self._free[0])
            if chosen is None:
                self._num_made += 1
                return Place(self._root / f"place-{self._num_made}")
            self._free.remove(chosen)
            return chosen

    def _bring(self, place: Place, sha: str) -> None:
        """Make the tree of a place that of the commit, clean, with its submodules."""
        held, place.sha = place.sha, None
        if held != sha:
            place.made = None
        if held is None or not self._moved(place, held, sha):
            self.discard(place)
            with self._lock:
                place.root.mkdir(parents=True)
                git(self._repository, "worktree", "prune")
                git(
                    self._repository,
                    "worktree",
                    "add",
                    "--quiet",
                    "--detach",
                    "--force",
                    str(place.tree),
                    sha,
                )
            self._submodules(sha, place.tree)
        self._check(sha, place.tree)
        place.sha = sha
        self._keep_homes(place)

    def _moved(self, place: Place, held: str, sha: str) -> bool:
        """Bring an existing tree to the commit; False when something in it cannot be undone."""
        tree, kept = place.tree, place.made or frozenset()
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

    def _keep_homes(self, place: Place) -> None:
        """Note that the place's environment is in use, and remove those of other commits beyond the limit."""
        name = (place.sha or "")[:12]
        place.homes = [*(other for other in place.homes if other != name), name]
        while len(place.homes) > self._most:
            shutil.rmtree(place.root / f"of-{place.homes.pop(0)}", ignore_errors=True)

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


def _has_hidden_edits(tree: Path) -> bool:
    """Return whether a run told the index to look away from files (skip-worktree, assume-unchanged)."""
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
    """Return untracked paths, ignored ones too; an untracked folder stands for what it holds."""
    listed = git(tree, "ls-files", "--others", "--directory", "-z")
    return [name.rstrip("/") for name in filter(None, listed.split("\0"))]
