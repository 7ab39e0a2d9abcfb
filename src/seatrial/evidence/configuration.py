"""The configuration next to a log, and the differences between two of them.

Read are `run_info.json` (refrl: its `config`), `config.yaml` and `config.yml` (W&B's values are unwrapped) and
`.hydra/config.yaml`, in the folder of the log and in the one above it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seatrial.errors import UsageError
from seatrial.strict_yaml import MAX_BYTES, read_yaml

Options = Mapping[str, Any]
"""Values by dotted key."""

_PLACES = ("run_info.json", "config.yaml", "config.yml", ".hydra/config.yaml")
_MAY_DIFFER = re.compile(
    r"(?:^|\.)(?:logger|logging|wandb|swanlab|tensorboard|mlflow|trackio|_wandb|wandb_version)(?:\.|$)"
    r"|(?:^|[._])seed$"
    r"|(?:^|[._])(?:dir|directory|folder|run_?name|run_?id|exp_?name|experiment_?name|project|project_?name|group|tags|notes"
    r"|port|host|hostname|address|timestamp|created_at|uuid|resume|resume_from_checkpoint)$"
)
"""Keys that identify the run, its output folders and its random seed, not what it computes."""


def find_configuration(log: Path) -> Options | None:
    """Return the configuration next to a log; None if there is none that can be read."""
    folder = log if log.is_dir() else log.parent
    for place in (folder, folder.parent):
        for name in _PLACES:
            found = _read(place / name)
            if found:
                return dict(_flat(found, ""))
    return None


def differences(one: Options, other: Options) -> list[str]:
    """Return the keys whose values differ, sorted, except for those that identify a run (seed, folders, names)."""
    return sorted(
        key
        for key in one.keys() | other.keys()
        if not _MAY_DIFFER.search(key) and (key not in one or key not in other or one[key] != other[key])
    )


def _read(path: Path) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content: object = (
            json.loads(path.read_text(encoding="utf-8"))
            if path.suffix == ".json" and path.stat().st_size <= MAX_BYTES
            else read_yaml(path, "configuration")
        )
    except (UsageError, OSError, ValueError, RecursionError):
        return None
    if isinstance(content, dict) and path.name == "run_info.json":
        content = content.get("config")
    return content if isinstance(content, dict) else None


def _flat(tree: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and set(value) == {"value", "desc"}:
            value = value["value"]
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value
