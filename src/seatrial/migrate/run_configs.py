"""Reads a run's number of steps from its configuration, for scripts that do not set it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

MAX_BYTES = 1_000_000
"""Largest size of a configuration."""
_STEPS, _INHERITED = "max_num_steps", "defaults"
_MOST_INHERITED = 10


def find_config(script: Path, written: str) -> Path | None:
    """Return the file that a script gives as `--config`, or None if it cannot be found.

    Args:
        script: the script; the file is searched next to it and in the folders above.
        written: the path in the script, such as `${ROOT}/examples/run.yaml`; a variable at the start is ignored.
    """
    tail = written.partition("/")[2] if written.startswith("$") else written
    if not tail or "$" in tail:
        return None
    return next((path for folder in script.resolve().parents if (path := folder / tail).is_file()), None)


def steps_of_config(path: Path, depth: int = 0) -> int | None:
    """Return `max_num_steps` of the only section that has it, or of an inherited configuration."""
    content = _mapping(path)
    sections = [value for value in content.values() if isinstance(value, Mapping)]
    found = {value for section in sections if isinstance(value := section.get(_STEPS), int)}
    if found:
        return found.pop() if len(found) == 1 else None
    inherited = content.get(_INHERITED)
    names = inherited if isinstance(inherited, list) else [inherited]
    if depth == _MOST_INHERITED or not all(isinstance(name, str) for name in names):
        return None
    # If several define it, the last one wins.
    bases = (steps_of_config(path.parent / str(name), depth + 1) for name in reversed(names))
    return next((steps for steps in bases if steps is not None), None)


def _mapping(path: Path) -> Mapping[object, object]:
    try:
        if path.stat().st_size > MAX_BYTES:
            return {}
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
        return {}
    return content if isinstance(content, Mapping) else {}
