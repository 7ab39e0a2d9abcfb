"""The trend of each tracked value over many runs: rows, sparklines, Markdown with charts."""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from seatrial.report.history import History, Point
from seatrial.report.markdown import escape_cell
from seatrial.report.rows import WORDS, format_value
from seatrial.report.svg import Line, line_chart
from seatrial.statistics.change_points import change_points
from seatrial.verdict import Outcome

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-=+*#@"
"""For outputs that cannot show the bars."""
NOT_FINITE, ABSENT = "x", " "
MAX_SPARKS = 40
"""Newest points that a sparkline shows."""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One value over the runs; NaN where a run has no value under this name, or one that is NaN."""

    name: str
    values: Sequence[float]
    """By run, in the order of the history."""
    present: Sequence[bool]
    """Whether a run has a value."""
    outcomes: Sequence[Outcome | None]
    changes: Sequence[int]
    """Runs at which a new level starts."""

    def outcome_words(self) -> str:
        """Return how often it ended how: `5 Pass, 1 Fail`."""
        counts = Counter(outcome for outcome in self.outcomes if outcome is not None)
        return ", ".join(f"{counts[kind]} {WORDS[kind]}" for kind in Outcome if counts[kind])


def trends(history: History, patterns: Sequence[str], alpha: float) -> list[Trend]:
    """Return the trend of every name, or of those that match one of the patterns."""
    names = [
        name
        for name in history.names()
        if not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    ]
    found = []
    for name in names:
        values = [point.values.get(name, math.nan) for point in history.points]
        found.append(
            Trend(
                name=name,
                values=values,
                present=[name in point.values for point in history.points],
                outcomes=[point.outcomes.get(name) for point in history.points],
                changes=change_points(values, alpha),
            )
        )
    return found


def sparkline(trend: Trend, bars: str = BARS) -> str:
    """Return the newest values as bars of their height; `x` where a value is not finite, a blank for none."""
    shown = trend.values[-MAX_SPARKS:]
    finite = [value for value in shown if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    # Halves first: the range of two huge values may overflow.
    half_range = high / 2 - low / 2
    marks = []
    for value, present in zip(shown, trend.present[-MAX_SPARKS:], strict=True):
        if not math.isfinite(value):
            marks.append(NOT_FINITE if present else ABSENT)
        elif half_range == 0:
            marks.append(bars[3])
        else:
            marks.append(bars[min(len(bars) - 1, int((value / 2 - low / 2) / half_range * len(bars)))])
    return "".join(marks)


def name_of_run(point: Point) -> str:
    """Return the commit, or the date where none is known."""
    return point.commit[:9] if point.commit else f"{point.date:%Y-%m-%d %H:%M}"


def change_words(trend: Trend, history: History) -> str:
    """Say where new levels start and what they are: `1a2b3c4d5 (2026-08-01): 0.9 -> 1.2`."""
    words = []
    edges = [0, *trend.changes, len(trend.values)]
    for before, start, end in zip(edges, edges[1:], edges[2:], strict=False):
        point = history.points[start]
        words.append(
            f"{name_of_run(point)} ({point.date:%Y-%m-%d}): {_level(trend.values[before:start])} -> "
            f"{_level(trend.values[start:end])}"
        )
    return "; ".join(words)


def _level(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    return format_value(math.fsum(finite) / len(finite)) if finite else "-"


def figures(trend: Trend) -> tuple[str, str, str, str, str]:
    """Return number of values, first, last, smallest and largest as text."""
    values = [value for value, present in zip(trend.values, trend.present, strict=True) if present]
    finite = [value for value in values if math.isfinite(value)]
    return (
        str(len(values)),
        format_value(values[0] if values else None),
        format_value(values[-1] if values else None),
        format_value(min(finite, default=None)),
        format_value(max(finite, default=None)),
    )


def chart(trend: Trend, history: History) -> str:
    """Return the trend as an SVG chart; rings mark where a new level starts."""
    line = Line(name=trend.name, xs=range(len(trend.values)), ys=trend.values, marks=trend.changes)
    return line_chart(
        [line], title=trend.name, x_label="run", x_names=[name_of_run(point) for point in history.points]
    )


def markdown(history: History, found: Sequence[Trend], alpha: float, charts: Sequence[str]) -> str:
    """Return the page; `charts` are the files of the trends that have one, in their order, "" where not."""
    first, last = history.points[0], history.points[-1]
    lines = [
        "# Trend",
        "",
        f"{len(history.points)} runs from {first.date:%Y-%m-%d %H:%M} to {last.date:%Y-%m-%d %H:%M}. A change of level "
        f"is shown where a series without one would show it with a probability of at most {alpha:g}.",
        "",
        "| value | runs | first | last | min | max | trend | outcomes | changes of level |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for trend in found:
        cells = [
            trend.name, *figures(trend), sparkline(trend), trend.outcome_words(), change_words(trend, history),
        ]  # fmt: skip
        lines.append("| " + " | ".join(escape_cell(cell) for cell in cells) + " |")
    lines += ["", "## Runs", "", "| run | date | commit |", "|---|---|---|"]
    lines += [
        f"| {escape_cell(point.source)} | {point.date:%Y-%m-%d %H:%M} | {point.commit or '-'} |"
        for point in history.points
    ]
    for trend, file in zip(found, charts, strict=True):
        if file:
            lines += ["", f"## {escape_cell(trend.name)}", "", f"![{escape_cell(trend.name)}]({file})"]
    if history.unreadable:
        lines += ["", "## Not read", "", *(f"- {escape_cell(words)}" for words in history.unreadable)]
    return "\n".join(lines) + "\n"
