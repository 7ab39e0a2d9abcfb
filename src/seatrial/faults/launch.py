"""`python -m seatrial.faults.launch FAULT -- grpo --config FILE key=value ...`: run refrl with a planted fault."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import seatrial
from seatrial.errors import UsageError
from seatrial.faults.catalogue import get_fault
from seatrial.verdict import EXIT_USAGE


def main(argv: Sequence[str]) -> int:
    """Read the words, plant the fault, run."""
    if len(argv) < 3 or argv[1] != "--":
        print("usage: python -m seatrial.faults.launch FAULT -- grpo|sft|make-model ...", file=sys.stderr)
        return EXIT_USAGE
    try:
        fault = get_fault(argv[0])
    except UsageError as error:
        print(f"seatrial.faults: {error}", file=sys.stderr)
        return EXIT_USAGE
    from seatrial.faults.planted import run_with_fault

    return run_with_fault(fault.id, list(argv[2:]))


def entry(fault_id: str) -> tuple[str, ...]:
    """Return the words of Python's command line that stand before refrl's own.

    Raises:
        UsageError: the fault is unknown.
    """
    return ("-m", "seatrial.faults.launch", get_fault(fault_id).id, "--")


def copy_of_refrl(directory: Path) -> dict[str, str]:
    """Copy refrl into a folder; return the variables under which Python imports that copy."""
    source = Path(seatrial.__file__).parent.parent / "refrl"
    shutil.copytree(source, directory / "refrl", ignore=shutil.ignore_patterns("__pycache__"))
    return {"PYTHONPATH": str(directory)}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
