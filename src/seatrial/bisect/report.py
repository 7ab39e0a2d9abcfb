"""Renders a bisect as one HTML page without scripts: an SVG of the search, the answer, the evidence of each run.

The SVG has the posterior on top, the commit graph in the middle, the runs below. All outside text (hashes, subjects,
reasons) is escaped; nothing is loaded from elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.bisect.answer import Answer
from seatrial.bisect.console import escaped
from seatrial.bisect.evidence_model import Question
from seatrial.bisect.history import Graph, History, graph_of
from seatrial.bisect.outcomes import Run, RunOutcome
from seatrial.bisect.prober import shown_command
from seatrial.bisect.search import Search
from seatrial.bisect.task import Task
from seatrial.pages import render

COLOURS = {
    RunOutcome.PASS: "#1a7f37",
    RunOutcome.FAIL: "#cf222e",
    RunOutcome.SKIP: "#6e7781",
    RunOutcome.BLOCKED: "#9a6700",
}
_SIGNS = dict(zip(COLOURS, "●■▲◆", strict=True))
_MIXED, _INK, _BAR, _UNPROBED = "#8250df", "#1f2328", "#0969da", "#ffffff"
_LOWEST, _HIGHEST = (9, 105, 218), (188, 76, 0)
"""Colours at the ends of a metric's scale: blue to orange, which colour-blind readers can distinguish too."""
_WIDTH, _LEFT, _RIGHT = 1060.0, 90.0, 60.0
_BARS_TOP, _BARS_BOTTOM = 40.0, 180.0
_LANE_HEIGHT, _PROBE_HEIGHT, _ROW_HEIGHT = 22.0, 150.0, 32.0


@dataclass(frozen=True)
class _Frame:
    """Positions and sizes on the page."""

    step: float
    scale: tuple[float, float] | None
    """Lowest and highest value of a metric; None if runs pass or fail."""
    graph_y: float
    probes_top: float
    height: float

    def x(self, position: int) -> float:
        return _LEFT + (position + 0.5) * self.step

    def lane_y(self, lane: int) -> float:
        return self.graph_y + _LANE_HEIGHT * lane

    def colour(self, runs: Sequence[Run]) -> str:
        """Return the colour for a commit's runs: by mean value, by outcome, or for mixed outcomes."""
        values = [run.value for run in runs if run.value is not None]
        if self.scale is not None and values and len(values) == len(runs):
            low, high = self.scale
            share = (sum(values) / len(values) - low) / (high - low) if high > low else 0.5
            mixed = (round(a + (b - a) * share) for a, b in zip(_LOWEST, _HIGHEST, strict=True))
            return "#" + "".join(f"{part:02x}" for part in mixed)
        outcomes = {run.outcome for run in runs}
        return _UNPROBED if not outcomes else COLOURS[min(outcomes)] if len(outcomes) == 1 else _MIXED


def picture(search: Search, runs: Sequence[Run]) -> str:
    """Return the commits from GOOD to BAD with their posterior, their graph, and every run.

    Runs of a metric are drawn at the height of their value, others in one row per outcome.
    """
    history = search.history
    graph = graph_of(history)
    seen = [(position, run) for run in runs if (position := history.position(run.commit)) is not None]
    rows = [o for o in RunOutcome if any(run.outcome is o and run.value is None for _, run in seen)]
    values = [run.value for _, run in seen if run.value is not None]
    graph_y = _BARS_BOTTOM + 24
    probes_top = graph_y + _LANE_HEIGHT * graph.num_lanes + 8
    rows_top = probes_top + (_PROBE_HEIGHT if values else 0)
    height = rows_top + _ROW_HEIGHT * len(rows) + 34
    scale = (min(values), max(values)) if values and search.question is Question.METRIC else None
    frame = _Frame(_WIDTH / (history.num_suspects + 1), scale, graph_y, probes_top, height)
    parts = [
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + _RIGHT:.0f} {height:.0f}" role="img" '
        'aria-label="posterior, commit graph and probes from GOOD to BAD">',
        *_posterior(search, frame),
        *_graph(history, graph, seen, frame),
        *_values(seen, frame),
        *_rows(seen, rows, frame, rows_top),
        *_axis(history, frame),
        "</svg>",
    ]
    return "\n".join(parts)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{_INK}" {style}/>'


def _posterior(search: Search, frame: _Frame) -> list[str]:
    """Return a bar for each suspect with a visible probability, and the hash of the most probable one."""
    weights = search.stated().suspects_H
    top = max(float(weights.max()), min(1.0, 8 / len(weights)))
    if not search.observations:
        return [_text(4, _BARS_TOP + 4, "posterior"), _text(_LEFT, _BARS_BOTTOM, "nothing was judged")]
    parts = [
        _text(4, _BARS_TOP + 4, "posterior"),
        _text(_LEFT - 8, _BARS_BOTTOM, "0", "end"),
        _text(_LEFT - 8, _BARS_TOP + 20, f"{top:.2f}", "end"),
        _line(_LEFT, _BARS_BOTTOM, _LEFT + _WIDTH, _BARS_BOTTOM),
    ]
    for suspect, weight in enumerate(weights):
        if weight / top <= 0.002:
            continue
        height = (_BARS_BOTTOM - _BARS_TOP - 16) * float(weight) / top
        commit = search.history.suspects[suspect]
        width = max(frame.step * 0.8, 1.5)
        parts.append(
            f'<rect x="{frame.x(suspect + 1) - width / 2:.2f}" y="{_BARS_BOTTOM - height:.2f}" width="{width:.2f}" '
            f'height="{height:.2f}" fill="{_BAR}"><title>'
            f"{escaped(f'{commit.sha[:12]} {commit.subject}: probability {weight:.4f}')}</title></rect>"
        )
    likeliest = int(weights.argmax())
    x = frame.x(likeliest + 1)
    anchor = "start" if x < _LEFT + 60 else "end" if x > _LEFT + _WIDTH - 60 else "middle"
    parts.append(_text(x, _BARS_TOP + 10, search.history.suspects[likeliest].sha[:12], anchor))
    return parts


def _graph(history: History, graph: Graph, seen: Sequence[tuple[int, Run]], frame: _Frame) -> list[str]:
    """Return edges from parents to children, and a circle per commit in the colour of its runs."""
    parts = [_text(4, frame.graph_y + 4, "commits")]
    for parent, child in graph.edges:
        x1, y1 = frame.x(parent), frame.lane_y(graph.lanes[parent])
        x2, y2 = frame.x(child), frame.lane_y(graph.lanes[child])
        parts.append(f'<path d="{_edge(x1, y1, x2, y2, frame.step)}" fill="none" stroke="#8c959f"/>')
    found: dict[int, list[Run]] = {}
    for position, run in seen:
        found.setdefault(position, []).append(run)
    radius = min(6.0, max(1.2, frame.step * 0.38))
    for position in range(history.num_suspects + 1):
        own, commit = found.get(position, []), history.commit(position)
        outcome = "/".join(sorted({run.outcome.value for run in own})) or "not run"
        parts.append(
            f'<circle class="commit" cx="{frame.x(position):.2f}" cy="{frame.lane_y(graph.lanes[position]):.1f}" '
            f'r="{radius:.1f}" fill="{frame.colour(own)}" stroke="{_INK}" stroke-width="0.7">'
            f"<title>{escaped(f'{commit.sha[:12]} {commit.subject}: {outcome}')}</title></circle>"
        )
    return parts


def _edge(x1: float, y1: float, x2: float, y2: float, step: float) -> str:
    """Return a path along the lower of the two lanes that changes lanes within one column."""
    if y1 == y2:
        return f"M{x1:.1f} {y1:.1f}H{x2:.1f}"
    if y2 > y1:
        return f"M{x1:.1f} {y1:.1f}L{x1 + step:.1f} {y2:.1f}H{x2:.1f}"
    return f"M{x1:.1f} {y1:.1f}H{x2 - step:.1f}L{x2:.1f} {y2:.1f}"


def _values(seen: Sequence[tuple[int, Run]], frame: _Frame) -> list[str]:
    """Return a mark at the height of each run's value, with the scale."""
    values = [run.value for _, run in seen if run.value is not None]
    if not values:
        return []
    low, high = min(values), max(values)
    top, bottom = frame.probes_top + 14, frame.probes_top + _PROBE_HEIGHT - 14
    parts = [_text(4, (top + bottom) / 2, "value")]
    for value, y in ((high, top), (low, bottom)) if high > low else ((high, (top + bottom) / 2),):
        parts.append(_text(_LEFT - 8, y + 4, f"{value:.4g}", "end"))
        parts.append(_line(_LEFT, y, _LEFT + _WIDTH, y, 'stroke-opacity="0.15"'))
    for position, run in seen:
        if run.value is not None:
            share = (high - run.value) / (high - low) if high > low else 0.5
            parts.append(_mark(run, frame, position, top + (bottom - top) * share))
    return parts


def _rows(
    seen: Sequence[tuple[int, Run]], rows: Sequence[RunOutcome], frame: _Frame, top: float
) -> list[str]:
    """Return a row of marks per outcome, with the count next to the mark of a repeated commit."""
    parts = []
    for number, outcome in enumerate(rows):
        y = top + _ROW_HEIGHT * (number + 0.5)
        parts.append(_text(4, y + 4, f"{outcome.value} {_SIGNS[outcome]}"))
        here = [(position, run) for position, run in seen if run.outcome is outcome and run.value is None]
        parts += [_mark(run, frame, position, y) for position, run in here]
        repeats = Counter(position for position, _ in here)
        parts += [
            _text(frame.x(position), y - 8, f"×{count}", "middle")
            for position, count in repeats.items()
            if count > 1
        ]
    return parts


def _mark(run: Run, frame: _Frame, position: int, y: float) -> str:
    """Return the mark of one run: circle = passed, square = failed, triangle = skipped, diamond = blocked."""
    x = frame.x(position)
    shape = {
        RunOutcome.PASS: f"M{x - 5:.1f} {y:.1f}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
        RunOutcome.FAIL: f"M{x - 5:.1f} {y - 5:.1f}h10v10h-10z",
        RunOutcome.SKIP: f"M{x:.1f} {y - 6:.1f}l6 11h-12z",
        RunOutcome.BLOCKED: f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z",
    }[run.outcome]
    value = "" if run.value is None else f" value {run.value:.6g}"
    label = f"run {run.number} {run.commit[:12]}: {run.outcome.value}{value}: {run.reason}"
    return (
        f'<path class="run" d="{shape}" fill="{frame.colour([run])}" fill-opacity="0.75">'
        f"<title>{escaped(label)}</title></path>"
    )


def _axis(history: History, frame: _Frame) -> list[str]:
    """Return the names of both ends and the number of commits between them."""
    y = frame.height - 8
    return [
        _text(_LEFT, y, f"GOOD {history.good.sha[:12]}"),
        _text(_LEFT + _WIDTH / 2, y, f"{history.num_suspects} suspects, oldest first", "middle"),
        _text(_LEFT + _WIDTH, y, f"BAD {history.commit(history.bad_position).sha[:12]}", "end"),
    ]


def page(task: Task, search: Search, runs: Sequence[Run], answer: Answer, note: str | None) -> str:
    """Return the whole page; all outside text is escaped."""
    history = search.history
    places = {commit.sha: str(position) for position, commit in enumerate(history.suspects, start=1)}
    places |= {history.good.sha: "GOOD", history.commit(history.bad_position).sha: "BAD"}
    return render(
        "seatrial.bisect",
        "bisect.html",
        answer=answer,
        note=note,
        runs=runs,
        question=_question(task),
        command=shown_command(task),
        good=history.good.sha,
        bad=task.bad,
        by_value=bool(task.metric),
        picture=picture(search, runs),
        colours=COLOURS,
        place=lambda run: places.get(run.commit, ""),
        # The path of a run's directory, relative to the page in the same state directory.
        evidence=lambda run: "/".join(Path(run.evidence).parts[-2:]),
    )


def _question(task: Task) -> str:
    """Return the question that each run answers."""
    if task.metric:
        return f"which commit shifts {task.metric}"
    if task.checks:
        return f"which commit breaks {' and '.join(task.checks)}"
    return f"which commit breaks {task.test}" if task.test else "from which commit on the command fails"
