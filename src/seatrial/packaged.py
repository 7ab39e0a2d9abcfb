"""Files that ship with seatrial and can be named without path and suffix: check suites, equivalence classes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from seatrial.errors import UsageError
from seatrial.nearest import hint

FOLDERS = {
    "suite": Path(__file__).resolve().parent / "suites",
    "equivalence class": Path(__file__).resolve().parent / "comparisons" / "classes",
}


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
