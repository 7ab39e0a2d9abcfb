"""Versions of packages that are imported from a source tree, which has no metadata of a distribution."""

from __future__ import annotations

import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_STATEMENT = re.compile(r"^__version__\s*=\s*[\"']([0-9][^\"'\s]*)[\"']", re.MULTILINE)
_ALONE = re.compile(r"\A([0-9]\S*)\s*\Z")
FILES = {"../VERSION": _ALONE, "VERSION": _ALONE, "__init__.py": _STATEMENT, "version.py": _STATEMENT}
"""Where a package may state its version, seen from its folder, and how."""


def add_metadata(packages: Iterable[str]) -> None:
    """Let `importlib.metadata` know the versions of packages that are imported from a source tree.

    Stacks read their own version as that of a distribution, and raise where there is none. A tree may lie before an
    installed release of the package, whose version it then does not have. The metadata are put on `sys.path`, before
    installed packages, so that ranks get them too; a package that states no version gets none.
    """
    for package in packages:
        stated = None if _is_of_distribution(package) else stated_version(package)
        if stated is not None:
            folder = Path(_folder().name)
            home = folder / f"{package}-{stated}.dist-info"
            home.mkdir(exist_ok=True)
            (home / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: {stated}\n", encoding="utf-8"
            )
            if str(folder) not in sys.path:
                sys.path.insert(1, str(folder))
            importlib.invalidate_caches()


def stated_version(package: str) -> str | None:
    """Return the version that a package states in its own files, read without importing it; None if it has none."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    for home in map(Path, (spec and spec.submodule_search_locations) or ()):
        for name, pattern in FILES.items():
            path = home / name
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            if (found := pattern.search(text)) is not None:
                return found[1]
    return None


def _is_of_distribution(package: str) -> bool:
    """Return whether a package is imported from where its distribution put it; one put nowhere is a tree of its own."""
    module = package.replace("-", "_")
    try:
        own = Path(str(distribution(package).locate_file(module))).resolve()
    except PackageNotFoundError:
        return False
    spec = importlib.util.find_spec(module)
    homes = [Path(home).resolve() for home in (spec and spec.submodule_search_locations) or ()]
    return not homes or not own.is_dir() or own in homes


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return where the metadata lie; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="seatrial-metadata-")
