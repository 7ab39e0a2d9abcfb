"""Verdicts on the console: a table on a terminal that is wide enough, plain lines everywhere else."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Sequence

from seatrial.report.rows import format_value
from seatrial.verdict import Outcome, Verdict

MIN_TABLE_WIDTH = 100
"""Columns of a terminal below which a table would break every cell."""
_STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.BLOCKED: "bold yellow",
    Outcome.SKIPPED: "cyan",
    Outcome.NOT_REQUESTED: "dim",
}


def print_verdicts(verdicts: Sequence[Verdict], outcome: Outcome) -> None:
    """Print each verdict with its value, bound, samples and steps, then the whole."""
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
    """Return the last line: the whole, and how many checks ended how."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    told = ", ".join(f"{counts[kind]} {kind.value}" for kind in Outcome if counts[kind])
    return f"{outcome.value}: {len(verdicts)} check{'s' if len(verdicts) != 1 else ''}: {told}"


def steps_text(verdict: Verdict) -> str:
    """Return the first and last step read."""
    if verdict.steps is None:
        return "-"
    first, last = verdict.steps
    return str(first) if first == last else f"{first}-{last}"


def printable(text: str) -> str:
    """Return text that cannot steer the terminal: control characters become question marks."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _print_table(verdicts: Sequence[Verdict], width: int) -> None:
    """Print a table; cells are plain text, so that brackets in tags are shown and not read as markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=len(verdicts) > 1)
    for heading in ("Status", "Check", "Value", "Samples", "Steps", "Message"):
        narrow = heading in {"Status", "Samples", "Steps"}
        table.add_column(
            heading, justify="right" if heading == "Samples" else "left", no_wrap=narrow, overflow="fold"
        )
    for verdict in verdicts:
        table.add_row(
            Text(verdict.outcome.value, style=_STYLES[verdict.outcome]),
            Text(printable(verdict.name)),
            Text(printable(format_value(verdict.value))),
            Text(str(verdict.num_samples)),
            Text(steps_text(verdict)),
            Text(printable(verdict.reason)),
        )
    Console(width=width, height=25).print(table)  # rich ignores a width alone where TERM=dumb
