"""What a lane needs: GPUs, modules, variables and services of its environment, and assets.

Assets are tiny models, tokenizers and data that its tests read and a command creates. The command runs when the lane is
opened and its assets are not those of the last run: one is missing or has other content, or the command or a file on
its command line changed. Two concurrent sessions run it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import pytest

from seatrial.files import write_whole
from seatrial.pytest_plugin.settings import refuse_unknown

IMPORT_SECONDS = 300.0
SERVICE_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of the tests of a lane."""

    gpus: int = 0
    """How many GPUs this process may use."""
    imports: tuple[str, ...] = ()
    """Modules that must be importable; merely finding them is not enough."""
    env: tuple[str, ...] = ()
    """Environment variables that must be set and not empty, for example a token for gated models."""
    services: tuple[str, ...] = ()
    """`host:port` of services that must accept a connection."""

    def missing(self) -> list[str]:
        """Return what is missing, each with its remedy; empty if nothing is."""
        return [
            *self._missing_gpus(),
            *(f"set {name}: it is not set, or empty" for name in self.env if not os.environ.get(name)),
            *(problem for module in self.imports if (problem := _import_problem(module))),
            *(problem for service in self.services if (problem := _service_problem(service))),
        ]

    def _missing_gpus(self) -> list[str]:
        if self.gpus == 0:
            return []
        from seatrial.pytest_plugin.gpus import visible_gpus

        found = len(visible_gpus())
        if found >= self.gpus:
            return []
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden!r})"
        return [f"run where {self.gpus} GPUs are visible: {found} found{seen}"]


def parse_needs(data: Any, where: str) -> Needs:
    """Read the table `needs` of a lane: `gpus`, `import`, `env`, `service`.

    Args:
        data: the table.
        where: its dotted name, for messages.

    Raises:
        pytest.UsageError: a key is unknown or has the wrong type.
    """
    if not isinstance(data, dict):
        raise pytest.UsageError(f"{where} must be a table, not {data!r}")
    refuse_unknown(data, frozenset({"gpus", "import", "env", "service"}), where)
    gpus = data.get("gpus", 0)
    if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 0:
        raise pytest.UsageError(f"{where}.gpus must be a number of GPUs, not {gpus!r}")
    services = _names(data, "service", where)
    for service in services:
        host, _, port = service.rpartition(":")
        if not host or not port.isdigit():
            raise pytest.UsageError(f"{where}.service {service!r} must be host:port")
    return Needs(
        gpus=gpus,
        imports=_names(data, "import", where),
        env=_names(data, "env", where),
        services=services,
    )


def _names(data: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = data.get(key, [])
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise pytest.UsageError(f"{where}.{key} must be a name or a list of names, not {value!r}")
    return tuple(names)


def _import_problem(module: str) -> str:
    """Import a module in a separate process, so that a heavy or broken backend does not affect the tests' process."""
    program = "import importlib, sys; importlib.import_module(sys.argv[1])"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, module],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"fix the installation of {module}: importing it took over {IMPORT_SECONDS:.0f} s"
    if done.returncode == 0:
        return ""
    last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return f"install {module} so that it imports: {last}"


def _service_problem(service: str) -> str:
    host, _, port = service.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=SERVICE_SECONDS):
            return ""
    except OSError as error:
        return f"start the service at {service}: {error.strerror or error}"


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
