"""Prints verdicts: as a table on a wide terminal, otherwise as plain lines."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from seatrial.report.rows import format_value, printable, steps_text
from seatrial.verdict import Outcome, Verdict, combine
from seatrial.words import counted

JSON_SCHEMA = 1

MIN_TABLE_WIDTH = 100
"""Narrowest terminal for a table, in columns."""


def print_verdicts(verdicts: Sequence[Verdict], outcome: Outcome) -> None:
    """Print each verdict with its value, bound, samples and steps, then the overall outcome."""
    width = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and width >= MIN_TABLE_WIDTH:
        _print_table(verdicts, width)
    else:
        for verdict in verdicts:
            print("\n".join(plain_lines(verdict)))
    print(conclusion(verdicts, outcome))


def plain_lines(verdict: Verdict) -> list[str]:
    """Return a verdict as three lines without colour or frame."""
    figures = [f"value {format_value(verdict.value)}"]
    if verdict.bound:
        figures.append(f"bound {verdict.bound}")
    figures.append(f"samples {verdict.num_samples}")
    if verdict.steps:
        figures.append(f"steps {steps_text(verdict)}")
    if verdict.source:
        figures.append(f"threshold {verdict.source}")
    return [
        printable(f"{verdict.outcome.value:8}{verdict.name}"),
        printable(f"{'':8}{', '.join(figures)}"),
        printable(f"{'':8}{verdict.reason}"),
    ]


def conclusion(verdicts: Sequence[Verdict], outcome: Outcome) -> str:
    """Return the last line: the overall outcome, and the number of checks by outcome."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    summary = ", ".join(f"{counts[kind]} {kind.value}" for kind in Outcome if counts[kind])
    return f"{outcome.value}: {counted(len(verdicts), 'check')}: {summary}"


def _print_table(verdicts: Sequence[Verdict], width: int) -> None:
    from rich.console import Console

    from seatrial.report.console import verdict_table

    Console(width=width, height=25).print(
        verdict_table(verdicts)
    )  # rich ignores a width alone where TERM=dumb


def verdicts_json(verdicts: Sequence[Verdict], **facts: Any) -> str:
    """Return the JSON document that commands write: the facts, the overall outcome and every verdict."""
    document = {
        "schema_version": JSON_SCHEMA,
        **facts,
        "outcome": combine(verdicts).value,
        "verdicts": [verdict.to_json() for verdict in verdicts],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
