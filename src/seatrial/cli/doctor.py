"""`seatrial doctor`: check this machine before a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import psutil

from seatrial.errors import UsageError
from seatrial.evidence.identity.collect import gpus, package_versions, usable_cores
from seatrial.files import write_text
from seatrial.report.console import make_console, print_verdicts
from seatrial.targets import get_target
from seatrial.targets.base import DescribesRuns
from seatrial.trials.plan import MAX_LEVEL, all_trials, parse_levels
from seatrial.verdict import Outcome, Verdict, combine, exit_code

MIN_PYTHON = (3, 11)
MIN_MEMORY_GIB = 4.0
"""Level 0 takes under 2 GiB; a second process and the page cache need the rest."""
MIN_DISK_GIB = 1.0
EXTRAS = {
    "stack": ("torch", "transformers", "tokenizers", "safetensors", "math-verify"),
    "readers": ("wandb",),
    "ray": ("ray",),
}
"""Packages by the extra that brings them; only `stack` is needed for the reference target."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial doctor`."""
    parser.add_argument(
        "--output", type=Path, default=Path("runs"), metavar="DIR", help="where runs would be written"
    )

    parser.add_argument(
        "--target",
        default=None,
        metavar="NAME|FILE",
        help="also check what the trials of a target need: nemo-rl, verl, or a YAML file",
    )
    parser.add_argument(
        "--level", default=None, metavar="LEVELS", help="of the target's trials (default: 0-6)"
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the checks as JSON")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="of the target, such as checkout=DIR and bridge=DIR"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the checks; return 0 if the target can run here, 3 if something is missing."""
    title, verdicts = "this machine", _machine(arguments.output)
    if arguments.target is not None and arguments.target != "reference":
        title, verdicts = f"{arguments.target} on this machine", _target_items(arguments)
    elif arguments.overrides or arguments.level is not None:
        raise UsageError("--level and key=value go with --target")
    print_verdicts(make_console(sys.stdout), title, verdicts)
    if arguments.json is not None:
        items = [verdict.to_json() for verdict in verdicts]
        write_text(
            arguments.json,
            json.dumps({"schema_version": 1, "checks": items}, indent=2) + "\n",
            option="--json",
        )
    return exit_code(combine(verdicts))


def _target_items(arguments: argparse.Namespace) -> list[Verdict]:
    """Return what the trials of a target need of this machine.

    Raises:
        UsageError: the target does not say, or a word is wrong.
    """
    target = get_target(arguments.target)
    target.check_overrides(arguments.overrides)
    if not isinstance(target, DescribesRuns):
        raise UsageError(
            f"--target {arguments.target}: only YAML files, nemo-rl and verl say what their trials need"
        )
    levels = parse_levels(arguments.level or f"0-{MAX_LEVEL}")
    trials = [trial.name for trial in all_trials() if trial.level in levels]
    return [_python(), _memory(), *target.preflight_items(trials)]


def _machine(output: Path) -> list[Verdict]:
    """Return what the reference target needs of this machine."""
    return [
        _python(),
        _cores(),
        _memory(),
        *_folders([output, Path(tempfile.gettempdir())]),
        *_packages(),
        _gpus(),
    ]


def _verdict(name: str, good: bool, value: float | str, bound: str, reason: str, remedy: str) -> Verdict:
    return Verdict(
        name=name,
        outcome=Outcome.PASS if good else Outcome.BLOCKED,
        reason=reason if good else remedy,
        value=value,
        bound=bound,
        num_samples=1,
    )


def _python() -> Verdict:
    version = ".".join(map(str, sys.version_info[:3]))
    wanted = ".".join(map(str, MIN_PYTHON))
    good = sys.version_info >= MIN_PYTHON
    return _verdict(
        "python", good, version, f">= {wanted}", sys.executable, f"install Python {wanted} or newer"
    )


def _cores() -> Verdict:
    number = usable_cores()
    return _verdict(
        "cores", number >= 1, float(number), ">= 1", "usable by this process", "no core is usable"
    )


def _memory() -> Verdict:
    free = psutil.virtual_memory().available / 2**30
    return _verdict(
        "free memory (GiB)",
        free >= MIN_MEMORY_GIB,
        free,
        f">= {MIN_MEMORY_GIB:g}",
        f"of {psutil.virtual_memory().total / 2**30:.1f} GiB",
        "close other programs",
    )


def _folders(paths: Iterable[Path]) -> list[Verdict]:
    return [_folder(path) for path in paths]


def _folder(path: Path) -> Verdict:
    """Check that a folder, or its nearest existing parent, can be written and has free space."""
    place = path.absolute()
    while not place.exists():
        place = place.parent
    name = f"folder {path}"
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        return _verdict(
            name, False, "not writable", "writable", "", f"{place} cannot be written; give another --output"
        )
    free = psutil.disk_usage(str(place)).free / 2**30
    return _verdict(
        f"{name}: free (GiB)",
        free >= MIN_DISK_GIB,
        free,
        f">= {MIN_DISK_GIB:g}",
        f"on {place}",
        f"free space on {place}",
    )


def _packages() -> list[Verdict]:
    return [
        _package(name, version, extra)
        for extra, names in EXTRAS.items()
        for name, version in package_versions(names).items()
    ]


def _package(name: str, version: str | None, extra: str) -> Verdict:
    if version:
        return Verdict(
            name=f"package {name}",
            outcome=Outcome.PASS,
            reason=f"from the extra {extra}",
            value=version,
            num_samples=1,
        )
    needed = extra == "stack"
    words = "not installed" if needed else "not installed, not needed for levels 0 and 6"
    return Verdict(
        name=f"package {name}",
        outcome=Outcome.BLOCKED if needed else Outcome.NOT_REQUESTED,
        reason=f"{words}: pip install 'seatrial[{extra}]'",
    )


def _gpus() -> Verdict:
    found = gpus()
    if not found:
        return Verdict(
            name="GPUs",
            outcome=Outcome.NOT_REQUESTED,
            reason="none found; levels 0 and 6 of the reference target run on the CPU",
        )
    names = ", ".join(f"{gpu['name']} {gpu['memory.total']}" for gpu in found)
    return Verdict(
        name="GPUs", outcome=Outcome.PASS, reason=names, value=float(len(found)), num_samples=len(found)
    )
