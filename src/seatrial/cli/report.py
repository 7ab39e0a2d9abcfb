"""`seatrial report RUN_DIR`: draw the views of a run directory again, from its results.json alone."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from seatrial.report.console import make_console, print_conclusion, print_results
from seatrial.report.files import write_views
from seatrial.report.summary import summary_text
from seatrial.trials.rundir import read_results
from seatrial.verdict import exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the run directory."""
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="such as runs/20260102T030405Z-reference")


def run(arguments: argparse.Namespace) -> int:
    """Write report.md, report.html and junit.xml anew and print; the exit code is that of the run's outcome."""
    results = read_results(arguments.run)
    console = make_console(sys.stdout)
    report = write_views(arguments.run, results)
    print_results(console, results)
    console.print(summary_text(results), soft_wrap=True)
    print_conclusion(console, results, report)
    return exit_code(results.outcome)
