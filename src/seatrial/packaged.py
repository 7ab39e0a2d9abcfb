"""Files that ship with seatrial: its tables, and the check suites and equivalence classes that users name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from seatrial.errors import UsageError
from seatrial.nearest import hint

FOLDERS = {
    "suite": Path(__file__).resolve().parent / "suites",
    "equivalence class": Path(__file__).resolve().parent / "comparisons" / "classes",
}

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C reads the same in a tenth of the time; not every build of PyYAML has it."""


def read_table(package: str, *path: str) -> Any:
    """Return the content of a YAML file of a package of ours, named by its path below the package."""
    text = resources.files(package).joinpath(*path).read_text(encoding="utf-8")
    return yaml.load(text, Loader=_Loader)


def packaged_names(kind: Literal["suite", "equivalence class"]) -> list[str]:
    """Return the names of all files of a kind."""
    return sorted(path.stem for path in FOLDERS[kind].glob("*.yaml"))


def find_file(kind: Literal["suite", "equivalence class"], given: Path) -> Path:
    """Return the file for a command-line argument: a path, or the name of a packaged file.

    An argument without folder and suffix is such a name if no file of that name exists.

    Raises:
        UsageError: it is neither; the nearest name is given.
    """
    if given.exists() or given.suffix or len(given.parts) > 1:
        return given
    names = packaged_names(kind)
    if given.name in names:
        return FOLDERS[kind] / f"{given.name}.yaml"
    raise UsageError(f"there is no {kind} and no file {given.name!r}; {hint(given.name, names)}")
