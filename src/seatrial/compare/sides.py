"""The two sides of a comparison: a private checkout of each commit, or an installed release, and how it is run."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import seatrial
from seatrial.bisect.git import without_git_location
from seatrial.bisect.private_repo import UserRepository, open_private
from seatrial.bisect.trees import CheckoutBlockedError, Trees, UntestableError
from seatrial.errors import BlockedError, UsageError
from seatrial.launch.container import ContainerRun, Launch, Mount, launch
from seatrial.targets.base import CHECKOUT_VARIABLE

BASE, HEAD = "BASE", "HEAD"
NAMES = (BASE, HEAD)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side: what is run on it, and by which interpreter."""

    name: str
    """`BASE` or `HEAD`."""
    label: str
    """What the user gave, with the commit's hash."""
    python: str = sys.executable
    """Interpreter of the trials and relations."""
    paths: tuple[Path, ...] = ()
    """Folders that are imported from first."""
    tree: Path | None = None
    """Checkout of the commit."""
    image: str | None = None
    """Image of the container that everything on this side runs in; None: this machine."""
    target: str
    """What `--target` gets on this side: a name, or a YAML file (in the checkout if it is in the repository)."""

    def environment(self, given: Mapping[str, str], own: Path) -> dict[str, str]:
        """Return the environment of the side's commands.

        Args:
            given: environment of this process.
            own: folder that holds this `seatrial` alone (`own_seatrial`): the same one judges both sides, also
                where the checkout has another.
        """
        places = [own]
        variables: dict[str, str] = {}
        if self.tree is not None:
            places += [place for place in (self.tree / "src", self.tree) if place.is_dir()]
            variables[CHECKOUT_VARIABLE] = str(self.tree)
        places += self.paths
        outside = given.get("PYTHONPATH") if self.image is None else None
        path = os.pathsep.join([*map(str, places), *filter(None, [outside])])
        return {**without_git_location(given), **variables, "PYTHONPATH": path}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How the container of a side is started."""

    name: str
    """One of `seatrial.launch.container.ENGINES`."""
    mounts: tuple[Mount, ...] = ()
    """In addition to the folders of the comparison, which are mounted at their own paths."""
    variables: tuple[str, ...] = ()
    """Names of further variables that are passed."""
    gpus: str = "none"

    def inside(
        self, side: Side, argv: Sequence[str], environment: Mapping[str, str], folders: Sequence[Path]
    ) -> Launch:
        """Return the command line that runs a command in the image of a side.

        Args:
            side: has an image.
            argv: program of the image, and arguments.
            environment: of the side.
            folders: that the command writes to.
        """
        package = Path(seatrial.__file__).resolve().parent
        tree = [] if side.tree is None else [side.tree]
        read = [package, *side.paths, *([Path(side.target).parent] if Path(side.target).is_file() else [])]
        mounts = [Mount(source=str(path), target=str(path)) for path in (*folders, *tree)]
        mounts += [Mount(source=str(path), target=str(path), read_only=True) for path in read]
        run = ContainerRun(
            image=str(side.image),
            command=tuple(argv),
            # One mount for each place; what the user gives wins.
            mounts=tuple({mount.target: mount for mount in (*reversed(mounts), *self.mounts)}.values()),
            variables=("PYTHONPATH", CHECKOUT_VARIABLE, *self.variables),
            gpus=self.gpus,
            workdir=str(side.tree or folders[0]),
        )
        return launch(self.name, run, environment)


def own_seatrial(folder: Path) -> Path:
    """Make a folder with nothing but a link to this `seatrial`, and return it.

    Raises:
        BlockedError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True)
        (folder / "seatrial").symlink_to(Path(seatrial.__file__).resolve().parent)
    except OSError as error:
        raise BlockedError(f"cannot make {folder}: {error.strerror}; give another --output") from error
    return folder


def interpreter(word: str) -> str:
    """Return the interpreter of `--python`: itself, or the one of an environment's folder.

    Raises:
        UsageError: there is none.
    """
    path = Path(word)
    found = path / "bin" / "python" if path.is_dir() else path
    if not found.is_file() and shutil.which(word) is None:
        raise UsageError(
            f"--python {word}: no interpreter and no environment; give venv/bin/python, or the folder venv"
        )
    # The link itself: its environment is found from where it is.
    return str(found.absolute()) if found.is_file() else word


@contextmanager
def checked_out(repository: Path, names: Sequence[str], sides: Sequence[Side]) -> Iterator[list[Side]]:
    """Check both commits out in a private copy of a repository, and remove it at the end.

    Args:
        repository: a folder in the user's repository, which is only read.
        names: of the two commits.
        sides: the sides without their checkouts.

    Yields:
        The sides with their checkouts.

    Raises:
        UsageError: a name is no commit, or both are the same.
        BlockedError: a checkout is not possible.
    """
    user = UserRepository(repository)
    with tempfile.TemporaryDirectory(prefix="seatrial-compare-", ignore_cleanup_errors=True) as folder:
        private = open_private(user, Path(folder).resolve() / "repository")
        shas = [user.resolve(name, role, private) for name, role in zip(names, NAMES, strict=True)]
        if shas[0] == shas[1]:
            raise UsageError(
                f"BASE {names[0]!r} and HEAD {names[1]!r} are the same commit {shas[0][:12]}: name two"
            )
        trees = Trees(private, private.with_name("trees"), most=2)
        try:
            with trees.checked_out(shas[0]) as base, trees.checked_out(shas[1]) as head:
                yield [
                    replace(
                        side,
                        tree=tree,
                        label=f"{name} ({sha[:12]})" if not sha.startswith(name) else sha[:12],
                        target=_in_tree(side.target, user.top, tree),
                    )
                    for side, tree, name, sha in zip(sides, (base.tree, head.tree), names, shas, strict=True)
                ]
        except (UntestableError, CheckoutBlockedError) as error:
            raise BlockedError(str(error)) from error


def _in_tree(target: str, top: Path, tree: Path) -> str:
    """Return the target of a side; a YAML file of the repository is copied, as it is now, into the checkout.

    The same file describes both sides; `{here}` is then the folder of the checkout.
    """
    if not target.endswith((".yaml", ".yml")):
        return target
    file = Path(target).resolve()
    if not file.is_relative_to(top.resolve()):
        return str(file)
    copy = tree / file.relative_to(top.resolve())
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, copy)
    return str(copy)
