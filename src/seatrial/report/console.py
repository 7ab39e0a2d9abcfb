"""The verdicts on the console: a table per trial, then the whole."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from seatrial.report.rows import HEADINGS, WORDS, printable, row
from seatrial.trials.results import Results, TrialResult
from seatrial.verdict import Outcome, Verdict

STYLES = {
    Outcome.PASS: "green",
    Outcome.FAIL: "bold red",
    Outcome.BLOCKED: "bold yellow",
    Outcome.SKIPPED: "cyan",
    Outcome.NOT_REQUESTED: "dim",
}
_WIDTH_WITHOUT_TERMINAL = 160


def make_console(file: object = None) -> Console:
    """Return a console; without a terminal it is wide, so that rows of a CI log stay whole."""
    stream = file or sys.stdout
    terminal = bool(getattr(stream, "isatty", lambda: False)())
    return Console(
        file=stream,  # type: ignore[arg-type]
        width=None if terminal else _WIDTH_WITHOUT_TERMINAL,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=False,
    )


def print_results(console: Console, results: Results) -> None:
    """Print a table per requested trial."""
    for trial in results.requested_trials():
        console.print(_trial_table(trial))
        console.print(f"  proves: {trial.proves}")
        console.print(f"  does not prove: {trial.does_not_prove}")
        console.print()


def print_conclusion(console: Console, results: Results, report: Path) -> None:
    """Print the outcome of the whole and where the report is."""
    requested = results.requested_trials()
    words = Text.assemble(
        (WORDS[results.outcome], STYLES[results.outcome]),
        f" - {results.target}, {results.requested}, seed {results.seed}: ",
        ", ".join(f"{trial.name} {WORDS[trial.outcome]}" for trial in requested),
    )
    console.print(words)
    console.print(f"report: {report} (for a browser: {report.with_suffix('.html').name})", soft_wrap=True)


def print_verdicts(console: Console, title: str, verdicts: list[Verdict]) -> None:
    """Print verdicts as one table."""
    console.print(verdict_table(verdicts, title))


def _trial_table(trial: TrialResult) -> Table:
    seconds = "" if trial.seconds is None else f", {trial.seconds:.1f} s"
    title = f"level {trial.level} {trial.name}: {WORDS[trial.outcome]} ({trial.state.value}{seconds})"
    return verdict_table(trial.verdicts, title)


def verdict_table(verdicts: Sequence[Verdict], title: str | None = None) -> Table:
    """Return verdicts as a table; cells are plain text, so that brackets in tags are shown and not read as markup."""
    shown = None if title is None else Text(title, style="bold")
    table = Table(title=shown, title_justify="left", pad_edge=False, show_lines=title is None)
    for heading in HEADINGS:
        right = heading in {"Value", "Samples"}
        whole = heading in {"Status", "Steps", "Samples"}
        table.add_column(heading, justify="right" if right else "left", no_wrap=whole, overflow="fold")
    for verdict in verdicts:
        status, *cells = row(verdict)
        table.add_row(Text(status, style=STYLES[verdict.outcome]), *(Text(printable(cell)) for cell in cells))
    return table
