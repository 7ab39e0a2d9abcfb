"""The project's settings: `[tool.seatrial]` in its `pyproject.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

_TABLE = b"[tool.seatrial"
_TABLES = frozenset({"tracker", "lanes", "affected"})


def read_settings(root: Path) -> Mapping[str, Any]:
    """Return the table `[tool.seatrial]`; empty without the file or the table.

    Raises:
        pytest.UsageError: the file is not TOML, or contains an unknown table.
    """
    path = root / "pyproject.toml"
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    # The parser takes longer than the rest of the plugin's start: only projects with the table pay for it.
    if _TABLE not in content:
        return {}
    import tomllib

    try:
        data = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"{path} is no TOML: {error}") from error
    settings = data.get("tool", {}).get("seatrial", {})
    if not isinstance(settings, dict):
        raise pytest.UsageError(f"{path}: tool.seatrial must be a table, not {settings!r}")
    refuse_unknown(settings, _TABLES, "tool.seatrial")
    return settings


def table(settings: Mapping[str, Any], name: str, known: frozenset[str]) -> Mapping[str, Any]:
    """Return one table of the settings after a check of its keys.

    Raises:
        pytest.UsageError: the value is not a table, or a key is unknown.
    """
    found = settings.get(name, {})
    if not isinstance(found, dict):
        raise pytest.UsageError(f"tool.seatrial.{name} must be a table, not {found!r}")
    refuse_unknown(found, known, f"tool.seatrial.{name}")
    return found


def refuse_unknown(found: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    """Reject unknown keys.

    Raises:
        pytest.UsageError: names the first unknown key and the known ones.
    """
    for key in found:
        if key not in known:
            raise pytest.UsageError(f"{where}.{key} is unknown; known keys: {', '.join(sorted(known))}")


def default_results(root: Path) -> Path:
    """Return the guide's path, `tests/unit/unit_results.json`, if the folder exists; otherwise one in the root."""
    unit = root / "tests" / "unit"
    return (unit if unit.is_dir() else root) / "unit_results.json"
