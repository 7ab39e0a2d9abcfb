"""Assets of a lane: tiny models, tokenizers and data that its tests read and a command creates.

The command runs when the lane is opened and its assets are not those of the last run: one is missing or has other
content, or the command or a file on its command line changed. Two concurrent sessions run it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import pytest

from seatrial.files import write_whole

_FOLDER = Path(".seatrial/prepared")
_TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True, kw_only=True)
class Assets:
    """Files that a command creates."""

    command: tuple[str, ...]
    patterns: tuple[str, ...]
    """Globs below the project; each must match."""

    def problems(self, root: Path, *, may_run: bool) -> list[str]:
        """Return why the assets are not available, with the command as the remedy; empty if they are.

        Args:
            root: the project.
            may_run: whether the command may run to create them.
        """
        folder = root / _FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        key = json.dumps([self.command, self.patterns]).encode()
        stem = folder / hashlib.blake2b(key, digest_size=8).hexdigest()
        with stem.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stamp = stem.with_suffix(".json")
            if self._is_current(root, stamp):
                return []
            failure = self._run(root, stem.with_suffix(".log")) if may_run else ""
            missing = [pattern for pattern in self.patterns if not any(root.glob(pattern))]
            if failure or missing:
                stamp.unlink(missing_ok=True)
                problems = [failure] if failure else []
                problems += [f"{', '.join(missing)} missing"] if missing else []
                return [f"run `{shlex.join(self.command)}`: {'; '.join(problems)}"]
            if may_run:
                write_whole(stamp, json.dumps(self._content(root)))
            return []

    def _is_current(self, root: Path, stamp: Path) -> bool:
        try:
            return bool(json.loads(stamp.read_text()) == self._content(root))
        except (OSError, ValueError):
            return False

    def _content(self, root: Path) -> dict[str, str]:
        """Return a digest of each input file of the command, and of each asset."""
        inputs = [path for word in self.command if (path := root / word).is_file()]
        assets = [path for pattern in self.patterns for path in root.glob(pattern)]
        return {str(path.relative_to(root)): _digest(path) for path in sorted({*inputs, *assets})}

    def _run(self, root: Path, log: Path) -> str:
        from seatrial.errors import BlockedError
        from seatrial.evidence.identity.redaction import Redactor
        from seatrial.launch.local import run_command

        argv = (sys.executable, *self.command[1:]) if self.command[0] == "python" else self.command
        try:
            launched = run_command(
                argv,
                log_path=log,
                environment=os.environ,
                timeout_seconds=_TIMEOUT_SECONDS,
                directory=root,
                redact=Redactor(os.environ).text,
            )
        except BlockedError as error:
            return str(error)
        return "" if launched.ok else f"{launched.describe()}; its output is in {log.relative_to(root)}"


def _digest(path: Path) -> str:
    if not path.is_file():
        return "folder"
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def parse_assets(data: Mapping[str, Any], where: str) -> Assets | None:
    """Read `prepare` and `assets` of a lane; None if it has neither.

    Raises:
        pytest.UsageError: a key is missing or has the wrong type.
    """
    if "prepare" not in data and "assets" not in data:
        return None
    command, patterns = data.get("prepare"), data.get("assets")
    words = shlex.split(command) if isinstance(command, str) else command
    if not _is_words(words):
        raise pytest.UsageError(f"{where}.prepare must be a command, as text or a list, not {command!r}")
    globs = [patterns] if isinstance(patterns, str) else patterns
    if not _is_words(globs) or any(Path(pattern).is_absolute() for pattern in globs):
        raise pytest.UsageError(
            f"{where}.assets must name the files that `prepare` creates, below the project, not {patterns!r}"
        )
    return Assets(command=tuple(words), patterns=tuple(globs))


def _is_words(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) and word for word in value)
