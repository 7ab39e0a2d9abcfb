"""What a run needs of its environment, checked before anything starts: one verdict an item.

An item is Pass, Blocked with the remedy as its reason, or Skipped where it cannot be known from here. Nothing is
changed, downloaded or started except for interpreters that look where modules would be imported from.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil

from seatrial.errors import BlockedError
from seatrial.evidence.weights import stored_tensors
from seatrial.verdict import Outcome, Verdict

SECONDS = 8.0
"""Time limit of each program that is asked."""
ENGINES = ("podman", "docker", "enroot", "apptainer", "singularity")
RAY_PORT = 6379
MAX_USED_MIB = 1024
"""GPU memory that others may use."""
_ORIGINS = """
import importlib.metadata, importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    found[name] = None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or []), None)
clashes = []
try:
    from packaging.requirements import Requirement
    for name in sys.argv[1:]:
        for line in importlib.metadata.requires(name) or []:
            need = Requirement(line)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            try:
                version = importlib.metadata.version(need.name)
            except importlib.metadata.PackageNotFoundError:
                clashes.append(f"{name} needs {need}, which is not installed")
                continue
            if not need.specifier.contains(version, prereleases=True):
                clashes.append(f"{name} needs {need}, and {version} is installed")
except ImportError:
    clashes = None
except importlib.metadata.PackageNotFoundError:
    pass
print(json.dumps([found, clashes]))
"""
"""Runs in the stack's interpreter, without importing the modules."""


def verdict(name: str, good: bool | None, found: str, remedy: str = "", bound: str = "") -> Verdict:
    """Return an item: Pass, Blocked with the remedy, or, of None, Skipped: it cannot be known from here."""
    outcome = Outcome.SKIPPED if good is None else Outcome.PASS if good else Outcome.BLOCKED
    reason = (
        found if good else f"unknown: {found}" if good is None else f"{found}; {remedy}" if remedy else found
    )
    return Verdict(name=name, outcome=outcome, reason=reason, value=found, bound=bound or None, num_samples=1)


def programs(names: Iterable[str], path: str | None = None) -> list[Verdict]:
    """Check that programs are found."""
    found = {name: shutil.which(name, path=path) for name in names}
    return [
        verdict(
            f"program {name}", place is not None, place or "not found", f"install {name}, or put it on PATH"
        )
        for name, place in found.items()
    ]


def repository(name: str, folder: Path, submodules: Sequence[str] = ()) -> list[Verdict]:
    """Check a checkout: its commit, and that it is whole; changed files are named, and are not Blocked."""
    commit = _said(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if commit is None:
        remedy = "give a git checkout, so that the report can name its commit"
        return [verdict(f"checkout {name}", False, f"{folder} has no commit", remedy)]
    changed = (_said(["git", "-C", str(folder), "status", "--porcelain"]) or "").splitlines()
    state = "clean" if not changed else f"{len(changed)} files changed, first {changed[0].strip()}"
    items = [verdict(f"checkout {name}", True, f"commit {commit[:12]}, {state}")]
    if _said(["git", "-C", str(folder), "rev-parse", "--is-shallow-repository"]) == "true":
        items.append(
            verdict(
                f"history {name}",
                False,
                "a shallow clone",
                f"git -C {folder} fetch --unshallow: bisect needs it",
            )
        )
    missing = [place for place in submodules if not any((folder / place).glob("*"))]
    if submodules:
        remedy = f"git -C {folder} submodule update --init --recursive"
        found = (
            f"{len(missing)} of {len(submodules)} missing: {', '.join(missing)}" if missing else "all there"
        )
        items.append(verdict(f"submodules of {name}", not missing, found, remedy))
    return items


def files(name: str, folder: Path, paths: Iterable[str]) -> Verdict:
    """Check that paths exist in a checkout: with a path that is gone, pytest ends with status 4 before any test."""
    wanted = sorted(set(paths))
    missing = [path for path in wanted if not (folder / path).exists()]
    found = (
        f"{len(missing)} of {len(wanted)} missing: {', '.join(missing[:3])}"
        if missing
        else f"{len(wanted)} there"
    )
    return verdict(f"files of {name}", not missing, found, "the checkout has moved on: read its tests folder")


def gpus(needed: int) -> Verdict:
    """Check the number of GPUs, and that no other process uses their memory."""
    query = ["nvidia-smi", "--query-gpu=index,memory.total,memory.used", "--format=csv,noheader,nounits"]
    lines = (_said(query) or "").splitlines()
    used = [line for line in lines if int(line.split(",")[2]) > MAX_USED_MIB]
    found = f"{len(lines)} GPUs" + (f", {len(used)} with memory in use" if used else "")
    good = len(lines) >= needed and not used
    remedy = "run on a machine, or in an allocation, that has them"
    if len(lines) >= needed:
        remedy = "end what uses them, or wait"
    return verdict("GPUs", good, found, remedy, bound=f">= {needed}, none in use")


def space(name: str, folder: Path, gib: float) -> Verdict:
    """Check that a folder can be written and has free space."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = psutil.disk_usage(str(place)).free / 2**30
    good = free >= gib and os.access(place, os.W_OK)
    found = f"{free:.0f} GiB free on {place}" + ("" if os.access(place, os.W_OK) else ", not writable")
    return verdict(
        f"space for {name}", good, found, "free space, or move the folder", bound=f">= {gib:g} GiB"
    )


def snapshot(model: str, hf_home: Path) -> Verdict:
    """Check that a model loads offline: configuration, tokenizer, and a tensor of each file of its newest snapshot."""
    name = f"model {model}"
    root = Path(model)
    if not root.is_dir():
        folder = hf_home / "hub" / f"models--{model.replace('/', '--')}" / "snapshots"
        found = sorted(folder.glob("*"), key=lambda place: place.stat().st_mtime) if folder.is_dir() else []
        if not found:
            return verdict(name, False, f"not in {hf_home}", f"HF_HOME={hf_home} hf download {model}")
        root = found[-1]
    try:
        json.loads((root / "config.json").read_text(encoding="utf-8"))
        tokenizer = [file for file in ("tokenizer.json", "tokenizer_config.json") if (root / file).is_file()]
        for file in tokenizer:
            json.loads((root / file).read_text(encoding="utf-8"))
        tensors = stored_tensors(root)
        of_file = {
            tensor.file: tensor for tensor in sorted(tensors.values(), key=lambda one: -one.end + one.start)
        }
        for tensor in of_file.values():
            np.asarray(tensor.read())
        index = root / "model.safetensors.index.json"
        listed = (
            set(json.loads(index.read_text(encoding="utf-8"))["weight_map"]) if index.is_file() else set()
        )
    except (OSError, ValueError, KeyError, BlockedError) as error:
        return verdict(name, False, f"{root} does not load: {error}", f"hf download {model} again")
    missing = sorted(listed - tensors.keys())
    wrong = [*(["no tokenizer"] if not tokenizer else []), *(f"{key} is missing" for key in missing[:1])]
    found_words = ", ".join(wrong) or f"{len(tensors)} tensors in {len(of_file)} files"
    return verdict(name, not wrong, f"{root}: {found_words}", f"hf download {model} again")


def variables(names: Iterable[str], environment: Mapping[str, str]) -> list[Verdict]:
    """Check that variables that would change what a run means are not set."""
    return [
        verdict(f"variable {name}", False, f"{name}={environment[name]}", f"unset {name}")
        for name in names
        if environment.get(name)
    ]


def ray_cluster() -> Verdict:
    """Check that no Ray cluster of others is joined: a stack joins any that is at `auto`."""
    address = os.environ.get("RAY_ADDRESS")
    with socket.socket() as probe:
        probe.settimeout(0.2)
        is_open = probe.connect_ex(("127.0.0.1", RAY_PORT)) == 0
    good = not address and not is_open
    found = f"RAY_ADDRESS={address}" if address else f"port {RAY_PORT} is open" if is_open else "none"
    return verdict(
        "Ray cluster at auto", good, found, "unset RAY_ADDRESS, or stop the cluster if it is yours"
    )


def schedulers() -> Iterator[Verdict]:
    """Yield what containers and jobs could be started with; none is needed for a local run."""
    engines = [name for name in ENGINES if shutil.which(name)]
    yield verdict(
        "container engine", bool(engines) or None, ", ".join(engines) or f"none of {', '.join(ENGINES)}"
    )
    partitions = _said(["sinfo", "--noheader", "--format=%P %l"]) if shutil.which("sinfo") else None
    yield verdict(
        "Slurm", partitions is not None or None, (partitions or "no sinfo here").replace("\n", ", ")
    )


def origins(
    where: str,
    python: str,
    modules: Sequence[str],
    expected: Mapping[str, Path],
    environment: Mapping[str, str],
) -> list[Verdict]:
    """Check where an interpreter would import modules from, in the environment of the run.

    Args:
        where: `driver` or `worker`.
        python: the interpreter.
        modules: names; packages of these names are also checked for requirements that clash.
        expected: folder that a module must come from.
        environment: variables of the run.
    """
    said = _said([python, "-c", _ORIGINS, *modules], environment)
    if said is None:
        return [verdict(f"imports on the {where}", None, f"{python} gave no answer")]
    found, clashes = json.loads(said.splitlines()[-1])
    items = []
    for module, place in found.items():
        root = expected.get(module)
        good = place is not None and (root is None or Path(place).resolve().is_relative_to(root.resolve()))
        remedy = f"it must come from {root}: fix PYTHONPATH" if root else f"install it for {python}"
        items.append(verdict(f"origin of {module} on the {where}", good, str(place or "not found"), remedy))
    if clashes is None:
        items.append(verdict(f"packages on the {where}", None, "no packaging module there"))
    else:
        text = "; ".join(clashes[:3]) or "no clash among direct requirements"
        items.append(verdict(f"packages on the {where}", not clashes, text, "install what fits"))
    return items


def interpreter_of(program: str, path: str | None = None) -> str | None:
    """Return the Python of a program: itself, or that of its first line; None where it is no Python."""
    place = shutil.which(program, path=path)
    if place is None:
        return None
    if Path(place).name.startswith("python"):
        return place
    with Path(place).open("rb") as file:
        first = file.readline(500).decode("utf-8", errors="replace").strip()
        second = file.readline(500).decode("utf-8", errors="replace").strip()
    if first.startswith("#!") and "python" in first:
        word = first[2:].split()[-1]
        return word if word.startswith("/") else shutil.which(word, path=path)
    # Installers write a shell line where the path of the interpreter is too long for the first line.
    words = [
        word for word in second.replace('"', "'").split("'") if word.startswith("/") and "python" in word
    ]
    return words[0] if first == "#!/bin/sh" and words else None


def blocked(items: Sequence[Verdict]) -> str:
    """Return the blocked items in one line; empty where there is none."""
    wrong = [f"{item.name}: {item.reason}" for item in items if item.outcome is Outcome.BLOCKED]
    return "; ".join(wrong)


def _said(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str | None:
    """Return what a program prints; None where it is missing, fails or takes too long."""
    try:
        ran = subprocess.run(
            list(argv),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=None if environment is None else {**os.environ, **environment},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
