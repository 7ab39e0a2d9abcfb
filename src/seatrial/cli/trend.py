"""`seatrial trend RESULTS...`: show how tracked values changed over many runs, and where their level shifted."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.files import write_text
from seatrial.report.history import History, read_history
from seatrial.report.rows import printable
from seatrial.report.trend import (
    ASCII_BARS,
    BARS,
    Trend,
    change_words,
    chart,
    figures,
    markdown,
    sparkline,
    trends,
)
from seatrial.statistics.change_points import DEFAULT_ALPHA
from seatrial.trials.rundir import make_directory
from seatrial.verdict import EXIT_BLOCKED, EXIT_NOTHING_RAN, EXIT_PASS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial trend`."""
    parser.add_argument(
        "results",
        nargs="+",
        type=Path,
        metavar="RESULTS",
        help="run directories, a folder of them, or unit_results/ of the pytest plugin",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="show only values whose name matches, such as '*reward*'",
    )
    parser.add_argument(
        "--alpha",
        type=float,
        default=DEFAULT_ALPHA,
        metavar="A",
        help="probability of a false change point per unchanged series (default: 0.01)",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder to write trend.md and a chart per value to"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the trend of each value.

    Returns:
        0; 3 if a file could not be read; 5 if there is nothing to show.
    """
    if not 1e-4 <= arguments.alpha < 1:
        raise UsageError(f"--alpha {arguments.alpha:g}: give a probability from 0.0001 on and below 1")
    history = read_history(arguments.results)
    found = trends(history, arguments.only, arguments.alpha)
    if found:
        _print_table(history, found, arguments.alpha)
        if arguments.output is not None:
            _write(arguments.output, history, found, arguments.alpha)
    elif not history.unreadable:
        print("seatrial trend: no values to show", file=sys.stderr)
    for words in history.unreadable:
        print(printable(f"seatrial trend: Blocked: {words}"), file=sys.stderr)
    if history.unreadable:
        return EXIT_BLOCKED
    return EXIT_PASS if found else EXIT_NOTHING_RAN


def _print_table(history: History, found: list[Trend], alpha: float) -> None:
    from rich.table import Table
    from rich.text import Text

    from seatrial.report.console import make_console

    bars = BARS if "utf" in (sys.stdout.encoding or "").lower() else ASCII_BARS
    table = Table(title=Text(f"{len(history.points)} runs, {len(found)} values"), title_justify="left")
    table.add_column("value", overflow="fold")
    for heading in ("runs", "first", "last", "min", "max"):
        table.add_column(heading, justify="right")
    for heading in ("trend", "outcomes"):
        table.add_column(heading, no_wrap=heading == "trend")
    for trend in found:
        cells = [trend.name, *figures(trend), sparkline(trend, bars), trend.outcome_words()]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    console = make_console(sys.stdout)
    console.print(table)
    changed = [trend for trend in found if trend.changes]
    for trend in changed:
        console.print(
            printable(f"change of level: {trend.name}: {change_words(trend, history)}"), soft_wrap=True
        )
    if not changed:
        console.print("no change of level", soft_wrap=True)
    console.print(
        f"(a series that does not change shows one with a probability of at most {alpha:g})", soft_wrap=True
    )


def _write(folder: Path, history: History, found: list[Trend], alpha: float) -> None:
    make_directory(folder, exist_ok=True)
    charts = []
    for number, trend in enumerate(found, start=1):
        file = f"trend-{number:03d}.svg" if any(trend.present) else ""
        if file:
            write_text(folder / file, chart(trend, history))
        charts.append(file)
    write_text(folder / "trend.md", markdown(history, found, alpha, charts))
    print(f"written to {folder / 'trend.md'}")
