"""`seatrial triage run.log`: why a run crashed: the first error, where the cause is, and what to do next."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from seatrial.report.rows import printable
from seatrial.triage.diagnose import Diagnosis, diagnose_file
from seatrial.triage.patterns import BOUNDARIES
from seatrial.verdict import combine, exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial triage`."""
    parser.add_argument(
        "logs", metavar="LOG", nargs="+", type=Path, help="console log of the run, compressed or not"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object per log")


def run(arguments: argparse.Namespace) -> int:
    """Explain each log.

    Returns:
        1 if the stack failed or the failure is unknown, 3 if the environment failed, 5 if there is no error.

    Raises:
        BlockedError: a log cannot be read.
    """
    found = [(path, diagnose_file(path)) for path in arguments.logs]
    for path, diagnosis in found:
        if arguments.json:
            error = diagnosis.error
            document = {
                "log": str(path),
                "verdict": diagnosis.verdict.to_json(),
                "first_error": error
                and {
                    "line": error.line,
                    "who": error.who,
                    "text": error.text,
                    "raised_in": error.raised_in,
                    "own_frame": error.own_frame,
                },
            }
            print(json.dumps(document, allow_nan=False))
        else:
            _print(path, diagnosis)
    return exit_code(combine(diagnosis.verdict for _, diagnosis in found))


def _print(path: Path, diagnosis: Diagnosis) -> None:
    verdict, error, pattern = diagnosis.verdict, diagnosis.error, diagnosis.pattern
    lines = [f"{verdict.outcome.value:8}{path}: {pattern.id if pattern else verdict.reason}"]
    if pattern is not None:
        lines += [f"  boundary     {pattern.boundary}: {BOUNDARIES[pattern.boundary]}"]
        lines += [f"  meaning      {pattern.meaning}"]
    if error is not None:
        lines += [f"  process      {error.process or 'the log does not name it'}"]
        lines += [f"  raised in    {error.raised_in}"] if error.raised_in else []
        lines += [f"  your code    {error.own_frame}"] if error.own_frame not in ("", error.raised_in) else []
    if pattern is not None:
        lines += [f"  next         {pattern.next}"]
        lines += [f"  rerun alone  {pattern.isolate}"] if pattern.isolate else []
        if diagnosis.shown_by is not None:
            lines.append(f"  line {diagnosis.shown_by.number:<8}{diagnosis.shown_by.text.strip()[:300]}")
    if error is not None:
        lines.append(f"  first error, line {error.line}:")
        lines += [f"    {text[:300]}" for text in (*error.context, error.text)]
    print("\n".join(printable(line) for line in lines))
