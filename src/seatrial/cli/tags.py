"""`seatrial tags LOGS`: show the contents of a log, tag by tag."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog, Series
from seatrial.report.rows import printable
from seatrial.verdict import EXIT_BLOCKED, EXIT_PASS
from seatrial.vocabulary import Stack, canonical, recognise, stack_named
from seatrial.words import counted


class TagSummary(NamedTuple):
    """Summary of one tag of a log; the range covers finite values and is None without any."""

    tag: str
    kind: str
    """`series`, `number` (one without a step), or what else it is: `histogram`, `text`."""
    num_points: int
    first_step: int | None
    last_step: int | None
    minimum: float | None
    maximum: float | None
    last: float | None
    num_nonfinite: int
    """NaN and infinities; nulls are not counted here."""
    num_nulls: int
    num_abandoned: int
    canonical: str
    """Name in the vocabulary, empty when it does not know the tag."""
    unit: str
    meaning: str


class Known(NamedTuple):
    """Entry of the vocabulary for a tag; empty if there is none."""

    canonical: str = ""
    unit: str = ""
    meaning: str = ""


Meaning = Callable[[str], Known]

_WORDS = {"canonical", "unit", "meaning"}
_RARE = {"not finite", "null", "abandoned", *_WORDS}
"""Columns that are shown only if a tag has a value in them."""
_WIDTH_WITHOUT_TERMINAL = 160
MAX_TABLE_ROWS = 1000
"""Largest number of tags drawn as a table; drawing is slow for many."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial tags`."""
    parser.add_argument("logs", metavar="LOGS", help="TensorBoard folder or any other log")
    parser.add_argument(
        "--prefix", metavar="PREFIX", default="", help="show only tags that start with this prefix"
    )
    parser.add_argument(
        "--stack", metavar="NAME", help="stack that wrote the log (default: recognised by its tags)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def run(arguments: argparse.Namespace) -> int:
    """Print the tags of a log.

    Returns:
        0; 3 when part of the log could not be read.

    Raises:
        UsageError: the stack is unknown.
        BlockedError: nothing could be read.
    """
    named = stack_named(arguments.stack) if arguments.stack else None
    log = read_logs(Path(arguments.logs))
    stack = named or recognise(log.tags())
    rows = [
        row
        for row in summarise(log, lambda tag: known_of(tag, stack))
        if row.tag.startswith(arguments.prefix)
    ]
    if arguments.json:
        for row in rows:
            print(json.dumps(row._asdict()))
    else:
        _print_table(rows, log, stack)
    for item in log.damage:
        print(f"seatrial tags: Blocked: {item.path}: {item.what}", file=sys.stderr)
    return EXIT_BLOCKED if log.damage else EXIT_PASS


def known_of(tag: str, stack: Stack | None) -> Known:
    """Return the vocabulary's entry for a tag of a stack."""
    metric = canonical(tag, stack)
    return Known(metric.name, metric.unit, metric.meaning) if metric else Known()


def summarise(log: RunLog, meaning: Meaning) -> list[TagSummary]:
    """Return one row per tag, sorted by name."""
    rows = [_of_series(series, meaning) for series in log.series.values()]
    for tag, value in log.scalars.items():
        finite = value if math.isfinite(value) else None
        rows.append(
            TagSummary(
                tag, "number", 1, None, None, finite, finite, value, int(finite is None), 0, 0, *meaning(tag)
            )
        )
    rows += [
        TagSummary(tag, kind, 0, None, None, None, None, None, 0, 0, 0, *meaning(tag))
        for tag, kind in log.unread.items()
    ]
    return sorted(rows, key=lambda row: row.tag)


def _of_series(series: Series, meaning: Meaning) -> TagSummary:
    known = meaning(series.tag)
    nulls = np.zeros(len(series), dtype=np.bool_) if series.nulls is None else series.nulls
    finite = np.isfinite(series.values)
    values = series.values[finite]
    return TagSummary(
        tag=series.tag,
        kind="series",
        num_points=len(series),
        first_step=int(series.steps[0]) if len(series) else None,
        last_step=int(series.steps[-1]) if len(series) else None,
        minimum=float(values.min()) if len(values) else None,
        maximum=float(values.max()) if len(values) else None,
        last=float(series.values[-1]) if len(series) else None,
        num_nonfinite=int((~finite & ~nulls).sum()),
        num_nulls=int(nulls.sum()),
        num_abandoned=series.abandoned,
        canonical=known.canonical,
        unit=known.unit,
        meaning=known.meaning,
    )


def _print_table(rows: list[TagSummary], log: RunLog, stack: Stack | None) -> None:
    shown = _columns(rows)
    who = f"stack {stack.name}" if stack else "stack not recognised, name it with --stack"
    title = f"{counted(len(rows), 'tag')} in {counted(len(log.sources), 'file')}; {who}"
    if len(rows) > MAX_TABLE_ROWS:
        print(title)
        for line in _aligned({"tag": [row.tag for row in rows], **shown}):
            print(printable(line))
        for note in log.notes:
            print(printable(f"note: {note}"))
        return
    _draw_table(title, rows, shown, log.notes)


def _columns(rows: list[TagSummary]) -> dict[str, list[str]]:
    """Return the cells of each visible column by heading."""
    columns: dict[str, list[str]] = {
        "points": [str(row.num_points) if row.kind == "series" else row.kind for row in rows],
        "steps": ["" if row.first_step is None else f"{row.first_step}..{row.last_step}" for row in rows],
        "min": [_number(row.minimum) for row in rows],
        "max": [_number(row.maximum) for row in rows],
        "last": [_number(row.last) for row in rows],
        "not finite": [str(row.num_nonfinite or "") for row in rows],
        "null": [str(row.num_nulls or "") for row in rows],
        "abandoned": [str(row.num_abandoned or "") for row in rows],
        "canonical": [row.canonical for row in rows],
        "unit": [row.unit for row in rows],
        "meaning": [row.meaning for row in rows],
    }
    return {name: cells for name, cells in columns.items() if name not in _RARE or any(cells)}


def _aligned(columns: dict[str, list[str]]) -> Iterator[str]:
    """Yield table lines with aligned columns: text on the left, numbers on the right."""
    widths = {name: max(len(name), *map(len, cells)) for name, cells in columns.items()}
    for row in zip(*([name, *cells] for name, cells in columns.items()), strict=True):
        cells = [
            cell.ljust(widths[name]) if name in _WORDS or name == "tag" else cell.rjust(widths[name])
            for name, cell in zip(columns, row, strict=True)
        ]
        yield "  ".join(cells).rstrip()


def _draw_table(
    title: str, rows: list[TagSummary], shown: dict[str, list[str]], notes: Sequence[str]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    table.add_column("tag", overflow="fold")
    for name in shown:
        table.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=name == "canonical")
    for row, *cells in zip(rows, *shown.values(), strict=True):
        # Tags are text of the log: brackets in them are no markup.
        table.add_row(*(Text(cell) for cell in (row.tag, *cells)))
    console = Console(width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)
    console.print(table)
    for note in notes:
        console.print(Text(f"note: {note}"))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
