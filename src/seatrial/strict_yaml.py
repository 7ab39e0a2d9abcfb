"""Strict YAML for files that users write: small, no aliases, no duplicate keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from seatrial.errors import UsageError

MAX_BYTES = 1_000_000


def read_yaml(path: Path, what: str) -> object:
    """Read a small YAML file without aliases and without duplicate keys.

    Raises:
        UsageError: the file cannot be read, is too large, or is not such YAML; `what` names it in the message.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{what} {path}: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise UsageError(f"{what} {path}: {len(raw):,} bytes; at most {MAX_BYTES:,} are read")
    try:
        content: object = yaml.load(raw.decode("utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise UsageError(f"{what} {path}: not YAML: {' '.join(str(error).split())}") from error
    return content


class _StrictLoader(yaml.SafeLoader):
    """YAML without aliases (they can grow without bound) and without duplicate keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Refuse an alias."""
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is given twice."""
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        double = next((key for place, key in enumerate(keys) if key in keys[:place]), None)
        if double is not None:
            raise yaml.YAMLError(f"the key {double!r} is given twice {node.start_mark}")
        return super().construct_mapping(node, deep=deep)
