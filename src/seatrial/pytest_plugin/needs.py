"""What a lane needs from its environment, and whether it is available."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

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
