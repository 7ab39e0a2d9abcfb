"""The identity of a run: commits and dirty files, packages, devices, interpreter, host. No secrets, no user names."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from seatrial.evidence.identity.origins import Import, module_file
from seatrial.evidence.identity.redaction import Redactor
from seatrial.words import counted

ENVIRONMENT_PREFIXES = (
    "CUDA_", "HF_", "HUGGINGFACE_", "KMP_", "MASTER_", "MKL_", "NCCL_", "NVIDIA_VISIBLE", "OMP_", "PYTHON",
    "PYTORCH_", "RANK", "RAY_", "SEATRIAL_", "SLURM_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_", "VLLM_",
    "WORLD_SIZE",
)  # fmt: skip
"""Variables that change what a training run does; only these are kept, redacted."""
_TIMEOUT_SECONDS = 20


@dataclass(frozen=True, kw_only=True)
class Repository:
    """The state of the code in one folder."""

    path: str
    commit: str | None
    """None when the folder is not in a git checkout."""
    branch: str | None
    dirty_files: tuple[str, ...]
    """Lines of `git status --porcelain`; empty in a clean checkout."""
    source_digest: str
    """SHA-256 over names and contents of the Python files of the folder: says what ran even without git."""
    reason: str | None = None
    """Why the commit is not known."""

    def describe(self) -> str:
        """Say it in a line: `commit 1a2b3c4d5e6f, 2 files changed`."""
        if self.commit is None:
            return f"no commit ({self.reason}); sources {self.source_digest[:12]}"
        number = len(self.dirty_files)
        dirty = "clean" if not number else f"{counted(number, 'file')} changed"
        return f"commit {self.commit[:12]}, {dirty}"


def repository_of(folder: Path) -> Repository:
    """Return the state of the checkout that holds `folder` (a package's folder)."""
    digest = source_digest(folder)
    commit, reason = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return Repository(
            path=str(folder), commit=None, branch=None, dirty_files=(), source_digest=digest, reason=reason
        )
    top, _ = _git(folder, "rev-parse", "--show-toplevel")
    branch, _ = _git(folder, "rev-parse", "--abbrev-ref", "HEAD")
    status, reason = _git(folder, "status", "--porcelain", "--untracked-files=normal", "--", ":/")
    return Repository(
        path=top or str(folder),
        commit=commit,
        branch=branch,
        dirty_files=tuple((status or "").splitlines()) if reason is None else (f"unknown: {reason}",),
        source_digest=digest,
    )


def _git(folder: Path, *words: str) -> tuple[str | None, str | None]:
    """Return the output of a git command that changes nothing, or the reason why there is none."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    environment.pop("GIT_DIR", None)
    try:
        ran = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return None, "git is not installed"
    except subprocess.TimeoutExpired:
        return None, f"git did not answer in {_TIMEOUT_SECONDS} s"
    if ran.returncode:
        return None, (ran.stderr.strip().splitlines() or ["git failed"])[0]
    return ran.stdout.rstrip("\n"), None


def source_digest(folder: Path) -> str:
    """Return a SHA-256 over the relative names and contents of the Python files under `folder`."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def package_versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the installed version of each distribution; None when it is not installed."""
    versions: dict[str, str | None] = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def gpus() -> list[dict[str, str]]:
    """Return name, memory and driver of each NVIDIA device that the driver's own tool lists."""
    fields = ["index", "name", "memory.total", "driver_version"]
    try:
        ran = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if ran.returncode:
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.stdout.splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def host_facts() -> dict[str, Any]:
    """Return the facts of the machine that matter to a run."""
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus(),
        "container": Path("/.dockerenv").exists() or "container" in os.environ,
    }


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def collect_identity(
    *,
    repositories: Mapping[str, Repository],
    modules: Sequence[str],
    packages: Iterable[str],
    environment: Mapping[str, str],
    redactor: Redactor,
) -> dict[str, Any]:
    """Return the identity of a run as JSON values.

    Args:
        repositories: state of the code by the name of what it holds.
        modules: whose origin on the driver is written down.
        packages: distributions whose version is written down.
        environment: variables of the run; those that matter are kept, redacted.
        redactor: takes secrets out.
    """
    return {
        "repositories": {name: asdict(state) for name, state in repositories.items()},
        "driver": {
            "python": sys.version.split()[0],
            "executable": sys.executable,
            "origins": {name: str(module_file(name)) if module_file(name) else None for name in modules},
        },
        "runs": {},
        "packages": package_versions(packages),
        "environment": redactor.environment(environment, ENVIRONMENT_PREFIXES),
        "host": host_facts(),
    }


def imports_as_json(imports: Sequence[Import], redactor: Redactor) -> list[dict[str, Any]]:
    """Return what the processes of a run imported, as JSON values, secrets redacted."""
    return [
        {
            **asdict(item),
            "file": str(item.file) if item.file else None,
            "program": redactor.argv(item.program),
        }
        for item in imports
    ]
