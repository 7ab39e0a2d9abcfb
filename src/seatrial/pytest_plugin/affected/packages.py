"""Finds installed distributions: the one behind a top-level module, and the ones that it requires."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

_INSTALLED = (".dist-info", ".egg-info")
_IN_RECORD = re.compile(r'^"?([^/,"\n]+?)(?:/[^\n]*)?\.py"?,', re.MULTILINE)
"""The top folder, or the module itself, of each Python file in a distribution's RECORD."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ABSENT = "absent"


def version(distribution: str) -> str:
    """Return the installed version of a distribution, or `absent`."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ABSENT


class Packages:
    """Finds distributions; the environment is indexed once, on first use."""

    def __init__(self) -> None:
        self._index: Mapping[str, list[str]] | None = None
        self._requirements: dict[str, frozenset[str]] = {}

    def behind(self, modules: Iterable[str]) -> set[str]:
        """Return the distributions behind top-level modules, and all that they require, transitively.

        A module without a distribution counts as a distribution of its own name, so that installing it is noticed.
        """
        outside = {name for name in modules if name not in sys.stdlib_module_names}
        if not outside:
            return set()
        if self._index is None:
            self._index = distributions_by_module()
        found: set[str] = set()
        waiting = [name for module in outside for name in self._index.get(module, [module])]
        while waiting:
            name = _normal(waiting.pop())
            if name not in found:
                found.add(name)
                waiting.extend(self._required(name) - found)
        return found

    def _required(self, distribution: str) -> frozenset[str]:
        known = self._requirements.get(distribution)
        if known is None:
            known = self._requirements[distribution] = frozenset(_requirements(distribution))
        return known


def distributions_by_module() -> dict[str, list[str]]:
    """Return the distributions that provide each top-level module, like `metadata.packages_distributions`.

    That function parses each distribution's metadata for its name; the folder's name takes a tenth of the time.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for folder in dict.fromkeys(sys.path):
        try:
            installed = [path for path in Path(folder).iterdir() if path.name.endswith(_INSTALLED)]
        except OSError:
            continue
        for path in installed:
            for module in _modules_of(path):
                found[module].append(path.stem.partition("-")[0])
    return found


def _modules_of(installed: Path) -> Iterator[str]:
    for name in ("top_level.txt", "RECORD"):
        try:
            text = (installed / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield from set(text.split() if name == "top_level.txt" else _IN_RECORD.findall(text))
        return


def _requirements(distribution: str) -> list[str]:
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    names = [match[0] for line in lines if "extra ==" not in line and (match := _NAME.match(line))]
    # What only another system requires is absent, and its later presence is not a change of this project.
    return [name for name in map(_normal, names) if version(name) != ABSENT]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
