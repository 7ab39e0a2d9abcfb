"""Line charts as SVG text without script, fonts or files from elsewhere; a page may add style and a script."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

WIDTH, HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 16, 40, 48
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colour-blind readers can distinguish them (Okabe and Ito)."""
MAX_NAME = 80
"""Characters of a name that are drawn."""
MAX_VALUE = 1e300
"""A larger value is drawn as a gap: the range of two such values overflows."""
MAX_DOTS = 120
"""Points of a longer line have no dots."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line; a value that is not finite leaves a gap."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    dashed: bool = False
    marks: Sequence[int] = ()
    """Places along the line to mark with a ring: change points."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A place on the x axis with a label: where a rule fired."""

    x: float
    text: str
    line: int
    """Number of the line whose colour the mark has."""
    dashed: bool = False


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str = "",
    y_label: str = "",
    y_range: tuple[float, float] | None = None,
    x_names: Sequence[str] = (),
    marks: Sequence[Mark] = (),
    with_data: bool = False,
) -> str:
    """Return a chart as an SVG document.

    Args:
        lines: what to draw; those past the number of colours use them again.
        title: shown above the chart, and read out by screen readers.
        x_label: below the axis.
        y_label: left of the axis.
        y_range: lowest and highest value shown; that of the data unless given.
        x_names: names of the places 0, 1, ... on the x axis instead of numbers.
        marks: vertical lines with a label each.
        with_data: whether the SVG carries its values, for the script of our pages.
    """
    xs = [x for line in lines for x in line.xs]
    ys = [y for line in lines for y in line.ys if _drawable(y)]
    x_low, x_high = _span(xs)
    y_low, y_high = y_range or _span(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT)
        down = HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - _TOP - _BOTTOM)
        return round(across, 1), round(down, 1)

    data = _data(lines, marks, (x_low, x_high), x_label, x_names) if with_data else ""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12"{data}>',
        f"<title>{escape(_clean(title))}</title>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 20, title, "middle", size=14),
        _text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, x_label, "middle"),
        f'<text transform="translate(14 {(HEIGHT - _BOTTOM + _TOP) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(_clean(y_label))}</text>",
        '<g class="plot">',
    ]
    for value, name in _ticks(y_low, y_high):
        left, down = place(x_low, value)
        parts.append(f'<path class="grid" d="M{left} {down}H{WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(_text(left - 6, down + 4, name, "end"))
    for value, name in _x_ticks(xs, x_names):
        across, _ = place(value, y_low)
        parts.append(_text(across, HEIGHT - _BOTTOM + 18, name, "middle"))
    drawn = [
        [place(x, y) if _drawable(y) else None for x, y in zip(line.xs, line.ys, strict=True)]
        for line in lines
    ]
    for number, (line, points) in enumerate(zip(lines, drawn, strict=True)):
        parts += _drawn(line, points, COLOURS[number % len(COLOURS)])
    legend = _legend(lines, [point for points in drawn for point in points if point])
    for number, mark in enumerate(marks):
        across, _ = place(mark.x, y_low)
        parts += _marked(mark, across, HEIGHT - _BOTTOM - 8 - 14 * (number % 14))
    return "\n".join([*parts, "</g>", *legend, "</svg>"]) + "\n"


def _legend(lines: Sequence[Line], points: Sequence[tuple[float, float]]) -> list[str]:
    """Return the names of the lines in the upper corner that hides fewer points, the left one of equals."""
    width, bottom = (
        36 + 7 * max((min(len(line.name), MAX_NAME) for line in lines), default=0),
        _TOP + 4 + 16 * len(lines),
    )
    corners = (_LEFT + 4, WIDTH - _RIGHT - width)
    left = min(
        corners,
        key=lambda start: sum(
            start - 8 <= across <= start + width and down <= bottom for across, down in points
        ),
    )
    parts = []
    for number, line in enumerate(lines):
        colour, down = COLOURS[number % len(COLOURS)], _TOP + 14 + 16 * number
        own = 36 + 7 * min(len(line.name), MAX_NAME)
        parts.append(
            f'<rect class="paper" x="{left}" y="{down - 13}" width="{own}" height="17" fill="white" '
            'fill-opacity="0.75"/>'
        )
        parts.append(f'<path d="M{left + 4} {down - 4}h18" stroke="{colour}" stroke-width="2"{_dash(line)}/>')
        parts.append(_text(left + 28, down, line.name, "start"))
    return parts


def _marked(mark: Mark, across: float, down: float) -> list[str]:
    """Return a vertical line with its label, on the side that has more space."""
    colour = COLOURS[mark.line % len(COLOURS)]
    dash = ' stroke-dasharray="3 3"' if mark.dashed else ""
    anchor, start = ("start", across + 4) if across < WIDTH / 2 else ("end", across - 4)
    return [
        f'<path d="M{across} {_TOP}V{HEIGHT - _BOTTOM}" stroke="{colour}" stroke-width="1.5"{dash}/>',
        _text(start, down, mark.text, anchor, size=11),
    ]


def _drawn(line: Line, points: Sequence[tuple[float, float] | None], colour: str) -> list[str]:
    path, pen_down = "", False
    for point in points:
        if point is not None:
            path += f"{'L' if pen_down else 'M'}{point[0]} {point[1]}"
        pen_down = point is not None
    parts = (
        [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{_dash(line)}/>'] if path else []
    )
    if len(points) <= MAX_DOTS:
        parts += [f'<circle cx="{p[0]}" cy="{p[1]}" r="2.5" fill="{colour}"/>' for p in points if p]
    marked = [points[place] for place in line.marks]
    parts += [
        f'<circle class="ring" cx="{p[0]}" cy="{p[1]}" r="7" fill="none" stroke="black"/>'
        for p in marked
        if p
    ]
    return parts


def _dash(line: Line) -> str:
    return ' stroke-dasharray="6 4"' if line.dashed else ""


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}">{escape(_clean(text))}</text>'
    )


def _data(
    lines: Sequence[Line],
    marks: Sequence[Mark],
    x_range: tuple[float, float],
    label: str,
    names: Sequence[str],
) -> str:
    """Return an attribute with what is drawn, seven digits a value; null where there is a gap."""
    content = {
        "plot": [_LEFT, WIDTH - _RIGHT, _TOP, HEIGHT - _BOTTOM],
        "x": x_range,
        "label": label,
        "names": list(names) or None,
        "lines": [
            {
                "name": _clean(line.name),
                "colour": COLOURS[number % len(COLOURS)],
                "x": list(line.xs),
                "y": [float(f"{y:.7g}") if _drawable(y) else None for y in line.ys],
            }
            for number, line in enumerate(lines)
        ],
        "marks": [
            {"x": mark.x, "text": _clean(mark.text), "colour": COLOURS[mark.line % len(COLOURS)]}
            for mark in marks
        ],
    }
    return f" data-chart={quoteattr(json.dumps(content, separators=(',', ':')))}"


def _drawable(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= MAX_VALUE


def _clean(text: str) -> str:
    """Return the beginning of a text, control characters replaced: names may come from a log."""
    short = text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."
    return "".join(character if character.isprintable() else "?" for character in short)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Return the range of values, widened where it is too narrow to divide."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if high - low > 1e-300:
        return low, high
    spread = abs(low) * 0.1 if abs(low) > 1e-290 else 0.5
    return low - spread, high + spread


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Return about five round values within a range, each with enough digits to distinguish it from the next."""
    step = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 5)
    first = math.ceil(low / step - 1e-9)
    values = [number * step for number in range(first, first + 12) if number * step <= high + step * 1e-9]
    decimals = max(0, -math.floor(math.log10(step)))
    return [(value, f"{round(value, decimals):.10g}") for value in values]


def _x_ticks(xs: Sequence[float], names: Sequence[str]) -> list[tuple[float, str]]:
    """Return named places, or round values: whole ones alone where all are whole, as steps are."""
    if not names:
        ticks = _ticks(*_span(xs))
        whole = all(float(x).is_integer() for x in xs)
        return [(value, name) for value, name in ticks if not whole or math.isclose(value, round(value))]
    every = max(1, math.ceil(len(names) / 8))
    return [(float(place), name) for place, name in enumerate(names) if place % every == 0]
