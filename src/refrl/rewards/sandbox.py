"""Runs an untrusted program with limited time, memory, files, processes and network.

Each run has a fresh folder of bounded size that alone it may write to, reads nothing else but Python and its
libraries, and has a process group of its own, an empty environment, and an isolated Python without site packages.
Which kind of sandbox holds it, and what the machine does not permit, is said in `SandboxResult.isolation`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from refrl.rewards.sandbox_kinds import KINDS, Kind, command_of, order_of
from refrl.rewards.verifiers import VerifierError

_PROBE = "print(6 * 7)"
_LOOKS_PER_SECOND = 50
"""How often the size of a scratch folder on disk is looked at."""
Outcome = Literal["exited", "killed", "timeout"]


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
    scratch_bytes: int = 2**24
    """All files together."""
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

    kind: Kind
    """What holds the program."""
    network: bool
    """No network: a namespace without interfaces, or no sockets at all."""
    files: bool
    """Writes in the run's folder alone, reads there and of Python (a root of its own, or Landlock)."""
    processes: bool
    """No new process, no signal to others, no shared memory (seccomp)."""

    def missing(self) -> tuple[str, ...]:
        """Return the names of the locks that were not permitted."""
        return tuple(name for name in ("network", "files", "processes") if not getattr(self, name))

    def describe(self) -> str:
        """Say it in a line: `bubblewrap`, or `audit hook, without a lock on files`."""
        missing = self.missing()
        return f"{self.kind}, without a lock on {', '.join(missing)}" if missing else self.kind


@dataclass(frozen=True)
class SandboxResult:
    """How a run ended."""

    outcome: Outcome
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


@cache
def isolation() -> Isolation:
    """Return what holds programs on this machine: the strongest kind of sandbox that runs one, tried once.

    Warns, once in a process, if a stronger kind does not run, with the reason.

    Raises:
        VerifierError: none does.
    """
    reasons = []
    for kind in KINDS:
        try:
            result = run_python(_PROBE, limits=SandboxLimits(wall_seconds=60, cpu_seconds=30), kind=kind)
        except VerifierError as error:
            reasons.append(f"{kind}: {error}")
            continue
        if result.stdout == "42\n":
            if reasons:
                warnings.warn(
                    f"programs run in the sandbox {result.isolation.describe()}, which is weaker than others: "
                    f"{'; '.join(reasons)}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return result.isolation
        reasons.append(f"{kind}: {result.outcome} with {result.return_code}: {result.stderr[-200:].strip()}")
    raise VerifierError(f"no sandbox runs a program on this machine; {'; '.join(reasons)}")


def run_python(
    program: str, stdin: str = "", limits: SandboxLimits | None = None, kind: Kind | None = None
) -> SandboxResult:
    """Run a Python program.

    Args:
        program: its text.
        stdin: what it may read.
        limits: what it may use.
        kind: of the sandbox; the strongest that this machine permits unless given.

    Raises:
        VerifierError: the sandbox itself could not be set up; the program was not judged.
    """
    limits = limits or SandboxLimits()
    kind = kind or isolation().kind
    with tempfile.TemporaryDirectory(prefix="refrl-sandbox-", ignore_cleanup_errors=True) as outside:
        # Standard streams are outside the folder, where the program cannot replace them.
        files = {name: Path(outside) / name for name in ("stdin", "stdout", "stderr")}
        inside, root = Path(outside) / "work", Path(outside) / "root"
        inside.mkdir()
        root.mkdir()
        source = inside / "program.py"
        source.write_text(program, encoding="utf-8", errors="surrogatepass")
        files["stdin"].write_text(stdin, encoding="utf-8")
        order = order_of(
            kind, limits=_possible(limits), scratch_bytes=limits.scratch_bytes, program=source, root=root
        )
        outcome, return_code, seconds, report = _run(inside, files, limits, order)
        return SandboxResult(
            outcome=outcome,
            return_code=return_code,
            stdout=_head(files["stdout"], limits.file_bytes),
            stderr=_head(files["stderr"], limits.file_bytes),
            seconds=seconds,
            isolation=Isolation(
                kind=kind,
                network=report["network_namespace"] or report["processes"],
                files=report["files"],
                processes=report["processes"],
            ),
        )


def _run(
    inside: Path, files: Mapping[str, Path], limits: SandboxLimits, order: Mapping[str, Any]
) -> tuple[Outcome, int, float, dict[str, bool]]:
    read_end, write_end = os.pipe()
    command = command_of(order, write_end)
    started = time.monotonic()
    try:
        with (
            files["stdin"].open("rb") as stdin,
            files["stdout"].open("wb") as stdout,
            files["stderr"].open("wb") as stderr,
        ):
            process = subprocess.Popen(
                command,
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
        raise VerifierError(f"the sandbox cannot start {command[0]}: {error}") from error
    finally:
        os.close(write_end)
    # In a root of its own the program writes to memory of a fixed size, and never to this folder.
    watched = None if order["kind"] in ("bubblewrap", "namespaces") else inside
    try:
        outcome = _wait(process, limits, watched)
    finally:
        _end(process)
    seconds = time.monotonic() - started
    with os.fdopen(read_end, "rb") as stream:
        written = stream.read(1000)
    if not written:
        reason = _head(files["stderr"], 2000).strip().splitlines()[-1:] or [outcome]
        raise VerifierError(f"the sandbox could not be set up: {reason[0]}")
    if outcome == "exited" and (process.returncode < 0 or _of_bubblewrap(order, process.returncode)):
        outcome = "killed"
    return outcome, process.returncode, seconds, json.loads(written)


def _wait(process: subprocess.Popen[bytes], limits: SandboxLimits, watched: Path | None) -> Outcome:
    """Wait for the end, for the wall clock, or for a folder on disk to outgrow its size."""
    deadline = time.monotonic() + limits.wall_seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            process.wait(left if watched is None else min(left, 1 / _LOOKS_PER_SECOND))
            return "exited"
        except subprocess.TimeoutExpired:
            if watched is not None and _size(watched) > limits.scratch_bytes:
                return "killed"
    return "timeout"


def _size(folder: Path) -> int:
    """Return the bytes on disk of all files in a folder; files may go while it is looked at."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(parent, name).lstat().st_blocks * 512
    return total


def _of_bubblewrap(order: Mapping[str, Any], return_code: int) -> bool:
    """Whether bwrap reports a program that a signal ended, as a shell does: 128 and the signal's number."""
    return order["kind"] == "bubblewrap" and return_code - 128 in (
        signal.SIGKILL,
        signal.SIGXCPU,
        signal.SIGXFSZ,
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGSYS,
    )


def _possible(limits: SandboxLimits) -> dict[str, int]:
    """Return the limits, none above this process's own."""
    possible = {}
    for name, value in limits.as_rlimits().items():
        hard = resource.getrlimit(getattr(resource, name))[1]
        possible[name] = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return possible


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group that this run started, with every process left in it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _head(path: Path, num_bytes: int) -> str:
    with path.open("rb") as stream:
        return stream.read(num_bytes).decode("utf-8", errors="replace")
