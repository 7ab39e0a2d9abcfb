"""`python -m seatrial.faults.launch FAULT -- grpo --config FILE key=value ...`: run refrl with a planted fault.

FAULT is one of whole runs (`seatrial.faults.catalogue`), or an edit of one module (a mutant or a plant).
"""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import seatrial
from seatrial.errors import UsageError
from seatrial.faults.catalogue import get_fault
from seatrial.faults.claims import claim_edits
from seatrial.faults.mutate import all_mutants
from seatrial.faults.plant import all_plants
from seatrial.faults.planting import Change, plant, plant_engines, plant_scripts
from seatrial.verdict import EXIT_USAGE


def main(argv: Sequence[str]) -> int:
    """Plant the fault that the arguments name, and run the command."""
    if len(argv) < 3 or argv[1] != "--":
        print("usage: python -m seatrial.faults.launch FAULT -- grpo|sft|make-model ...", file=sys.stderr)
        return EXIT_USAGE
    edit = edits().get(argv[0])
    if edit is not None:
        return _run_with_edit(edit, list(argv[2:]))
    try:
        fault = get_fault(argv[0])
    except UsageError as error:
        print(f"seatrial.faults: {error}", file=sys.stderr)
        return EXIT_USAGE
    from seatrial.faults.planted import run_with_fault

    return run_with_fault(fault.id, list(argv[2:]), entry(fault.id))


def edits() -> dict[str, Change]:
    """Return the faults that edit one module, by id."""
    changes: list[Change] = [*all_mutants(), *all_plants(), *claim_edits()]
    return {change.id: change for change in changes}


def _run_with_edit(edit: Change, words: list[str]) -> int:
    """Plant the fault before refrl is imported, here and in the ranks that it starts."""
    plant(edit)
    from refrl.runtime import launcher

    launcher.COMMAND = (sys.executable, *entry(edit.id))
    plant_engines(edit)
    plant_scripts(edit)
    sys.argv = ["refrl", *words]
    runpy.run_module("refrl", run_name="__main__")
    return 0


def entry(fault_id: str) -> tuple[str, ...]:
    """Return the arguments of Python's command line that precede refrl's.

    Raises:
        UsageError: the fault is unknown.
    """
    known = fault_id if fault_id in edits() else get_fault(fault_id).id
    return ("-m", "seatrial.faults.launch", known, "--")


def copy_of_refrl(directory: Path) -> dict[str, str]:
    """Copy refrl into a folder; return the variables under which Python imports that copy."""
    source = Path(seatrial.__file__).parent.parent / "refrl"
    shutil.copytree(source, directory / "refrl", ignore=shutil.ignore_patterns("__pycache__"))
    return {"PYTHONPATH": str(directory)}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
