"""Runs a program that nobody has read: limited in time, memory, files, processes and network.

Each run has a fresh folder that it alone may write to, a process group of its own, an empty environment, and an
isolated Python without site packages. What the machine does not permit is said in `SandboxResult.isolation`.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from refrl.rewards.verifiers import VerifierError

CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True)
class SandboxLimits:
    """What one run may use."""

    wall_seconds: float = 5.0
    cpu_seconds: int = 4
    """Of the process; it ends with SIGXCPU."""
    memory_bytes: int = 512 * 2**20
    """Address space."""
    file_bytes: int = 2**20
    """Largest file, standard output included."""
    num_processes: int = 32
    """Threads and processes of the user in the sandbox. New processes are refused anyway where seccomp is."""
    num_open_files: int = 32

    def __post_init__(self) -> None:
        """Refuse limits that nothing could run under (ValueError)."""
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name}={value} must be positive")

    def as_rlimits(self) -> dict[str, int]:
        """Return the limits by their names in the module `resource`."""
        return {
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NPROC": self.num_processes,
            "RLIMIT_NOFILE": self.num_open_files,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True)
class Isolation:
    """Which locks the machine permitted."""

    network: bool
    """No network: a namespace without interfaces, or no sockets at all."""
    files: bool
    """Writes only in the run's folder (Landlock)."""
    processes: bool
    """No new process, no signal to others (seccomp)."""

    def missing(self) -> tuple[str, ...]:
        """Return the names of the locks that were not permitted."""
        return tuple(name for name, held in vars(self).items() if not held)


@dataclass(frozen=True)
class SandboxResult:
    """How a run ended."""

    outcome: Literal["exited", "killed", "timeout"]
    """`killed` by a signal, such as SIGXCPU; `timeout` by the wall clock."""
    return_code: int
    stdout: str
    stderr: str
    seconds: float
    isolation: Isolation

    @property
    def succeeded(self) -> bool:
        """Whether the program ended by itself with exit code 0."""
        return self.outcome == "exited" and self.return_code == 0


def run_python(program: str, stdin: str = "", limits: SandboxLimits | None = None) -> SandboxResult:
    """Run a Python program.

    Raises:
        VerifierError: the sandbox itself could not be set up; the program was not judged.
    """
    limits = limits or SandboxLimits()
    with tempfile.TemporaryDirectory(prefix="refrl-sandbox-", ignore_cleanup_errors=True) as outside:
        # Standard streams lie beside the folder, where the program cannot replace them.
        files = {name: Path(outside) / name for name in ("stdin", "stdout", "stderr")}
        inside = Path(outside) / "work"
        inside.mkdir()
        (inside / "program.py").write_text(program, encoding="utf-8", errors="surrogatepass")
        files["stdin"].write_text(stdin, encoding="utf-8")
        outcome, return_code, seconds, report = _run(inside, files, limits)
        return SandboxResult(
            outcome=outcome,
            return_code=return_code,
            stdout=_head(files["stdout"], limits.file_bytes),
            stderr=_head(files["stderr"], limits.file_bytes),
            seconds=seconds,
            isolation=Isolation(
                network=report["network_namespace"] or report["processes"],
                files=report["files"],
                processes=report["processes"],
            ),
        )


def _run(
    inside: Path, files: Mapping[str, Path], limits: SandboxLimits
) -> tuple[Literal["exited", "killed", "timeout"], int, float, dict[str, bool]]:
    read_end, write_end = os.pipe()
    command = [sys.executable, "-I", "-S", "-B", str(CHILD), json.dumps(_possible(limits)), str(write_end)]
    started = time.monotonic()
    try:
        with (
            files["stdin"].open("rb") as stdin,
            files["stdout"].open("wb") as stdout,
            files["stderr"].open("wb") as stderr,
        ):
            process = subprocess.Popen(
                [*command, "program.py"],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=inside,
                env={},
                pass_fds=(write_end,),
                start_new_session=True,
            )
    except OSError as error:
        os.close(read_end)
        raise VerifierError(f"the sandbox cannot start {sys.executable}: {error}") from error
    finally:
        os.close(write_end)
    outcome: Literal["exited", "killed", "timeout"]
    try:
        return_code = process.wait(limits.wall_seconds)
        outcome = "exited" if return_code >= 0 else "killed"
    except subprocess.TimeoutExpired:
        outcome = "timeout"
    finally:
        _end(process)
    seconds = time.monotonic() - started
    with os.fdopen(read_end, "rb") as stream:
        written = stream.read(1000)
    if not written:
        reason = _head(files["stderr"], 2000).strip().splitlines()[-1:] or [outcome]
        raise VerifierError(f"the sandbox could not be set up: {reason[0]}")
    return outcome, process.returncode, seconds, json.loads(written)


def _possible(limits: SandboxLimits) -> dict[str, int]:
    """Return the limits, none above what this process itself is held to."""
    possible = {}
    for name, value in limits.as_rlimits().items():
        hard = resource.getrlimit(getattr(resource, name))[1]
        possible[name] = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return possible


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process group that this run started, whoever is left in it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _head(path: Path, num_bytes: int) -> str:
    with path.open("rb") as stream:
        return stream.read(num_bytes).decode("utf-8", errors="replace")
