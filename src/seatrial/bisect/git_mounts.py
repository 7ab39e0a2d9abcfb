"""The folders that git needs to work in a checkout: those that its `.git` file points to."""

from __future__ import annotations

from pathlib import Path

from seatrial.launch.container import Mount

_POINTER = "gitdir: "


def git_mounts(tree: Path) -> list[Mount]:
    """Return the mounts with which git works in a container; the user's objects are read-only."""
    try:
        text = (tree / ".git").read_text(encoding="utf-8")
    except OSError:
        return []
    if not text.startswith(_POINTER):
        return []
    of_tree = Path(tree, text.removeprefix(_POINTER).strip())
    common = of_tree
    if (of_tree / "commondir").is_file():
        common = Path(of_tree, (of_tree / "commondir").read_text(encoding="utf-8").strip()).resolve()
    borrowed = {folder for store in _stores(common, of_tree) for folder in _alternates(store)}
    mounts = [Mount(source=str(common), target=str(common))]
    return mounts + [
        Mount(source=str(folder), target=str(folder), read_only=True)
        for folder in sorted(borrowed)
        if not folder.is_relative_to(common)
        and not any(folder != o and folder.is_relative_to(o) for o in borrowed)
    ]


def _stores(common: Path, of_tree: Path) -> list[Path]:
    """Return the object stores of the repository and of the checkout's submodules."""
    return [common / "objects", *(of_tree / "modules").glob("**/objects")]


def _alternates(store: Path) -> set[Path]:
    """Return the stores that a store borrows objects from, transitively."""
    found: set[Path] = set()
    pending = [store]
    while pending:
        current = pending.pop()
        try:
            lines = (current / "info" / "alternates").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in filter(None, lines):
            folder = Path(current, line).resolve()
            if folder not in found and folder.is_dir():
                found.add(folder)
                pending.append(folder)
    return found
