"""`seatrial equivalence FILE`: run configurations that must agree, and compare them with one reference."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from seatrial.cli.progress import StatusLine
from seatrial.cli.verdict_table import print_verdicts
from seatrial.comparisons.equivalence import load_class, run_class
from seatrial.launch.interrupts import termination_interrupts
from seatrial.packaged import find_file
from seatrial.verdict import combine, exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial equivalence`."""
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="a YAML file, or the name of one of ours: grpo-microbatches"
    )
    parser.add_argument(
        "--work",
        type=Path,
        metavar="DIR",
        help="where the configurations' folders are made (default: a temporary one)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the class and print its verdicts.

    Returns:
        0 when every member agrees with the reference, 1 when one does not, 3 when a run gave no evidence.
    """
    group = load_class(find_file("equivalence class", arguments.file))
    work = (arguments.work or Path(tempfile.mkdtemp(prefix="seatrial-equivalence-"))).resolve()
    with termination_interrupts(), StatusLine() as status:
        verdicts = list(run_class(group, work, os.environ, status.say))
    outcome = combine(verdicts)
    print_verdicts(verdicts, outcome)
    print(f"runs: {work}")
    return exit_code(outcome)
