"""Shows a bisect on the console: one line per run, a picture of the search, the answer."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

from seatrial.bisect.answer import Answer
from seatrial.bisect.history import History, graph_of
from seatrial.bisect.outcomes import Run, RunOutcome
from seatrial.bisect.search import Search
from seatrial.words import counted


def plain(text: str) -> str:
    """Return text without control characters that a terminal would interpret."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def escaped(text: str) -> str:
    """Return text escaped for HTML, without control characters."""
    return html.escape(plain(text))


_BARS = " ▁▂▃▄▅▆▇█"
_SIGNS = {RunOutcome.PASS: "·", RunOutcome.FAIL: "x", RunOutcome.SKIP: "s", RunOutcome.BLOCKED: "b"}
WIDTH = 80
"""Columns of the picture if the width of the terminal is unknown."""
_MARGIN, _MARGIN_OF_VALUES = 20, 44
"""Columns of a row outside the plot; the second also fits the ends of a metric's scale."""


def run_line(history: History, run: Run) -> str:
    """Return one line about a run."""
    position = history.position(run.commit)
    place = {0: "GOOD", history.bad_position: "BAD", None: "outside"}.get(
        position, f"{position}/{history.bad_position}"
    )
    tries = f" after {run.attempts} attempts" if run.attempts > 1 else ""
    where = f"run {run.number:>3}  {run.commit[:12]}  {place:>9}"
    return f"{where}  {run.outcome.value:<7} {plain(run.reason)}{tries} ({run.seconds:.1f} s)"


def wrapped(line: str, columns: int | None) -> str:
    """Return a line folded to the terminal's width with a hanging indent; None (no terminal) leaves it whole."""
    if not columns or len(line) <= columns:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(line, columns, subsequent_indent=indent, break_on_hyphens=False)


def waiting_text(search: Search, runs: Sequence[Run], states: Mapping[int, str], jobs: int) -> str:
    """Return what is being waited for: the run, its state in the scheduler, and the estimated time left."""
    number = min(states)
    state = states[number].replace(": ", " ")
    others = f" and {len(states) - 1} more" if len(states) > 1 else ""
    return f"run {number}{f' ({state})' if state else ''}{others}: {remaining(search, runs, jobs)}"


def remaining(search: Search, runs: Sequence[Run], jobs: int) -> str:
    """Return about how many more runs the search takes, and how long at the median run time."""
    left = search.expected_runs()
    text = f"about {counted(left, 'more run')}"
    seconds = sorted(run.seconds for run in runs if run.evidence)
    if not seconds:
        return text
    minutes = math.ceil(left / jobs) * seconds[len(seconds) // 2] / 60
    return f"{text}, {_duration(minutes)}"


def _duration(minutes: float) -> str:
    if minutes < 1:
        return "less than a minute"
    if minutes < 100:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 72 * 60 else f"{minutes / 1440:.0f} days"


def picture_lines(search: Search, runs: Sequence[Run], columns: int = WIDTH) -> list[str]:
    """Return the search as text lines with the oldest commit on the left.

    The posterior as bars; the commit graph, if it has side branches; the runs (`·` passed, `x` failed, `s` skipped,
    `b` blocked, `?` mixed); for a metric, the mean of each column as bars. A full bar means a probability of 1, or
    eight times the average.
    """
    history, weights = search.history, search.stated().suspects_H
    margin = _MARGIN_OF_VALUES if any(run.value is not None for run in runs) else _MARGIN
    width = min(max(columns - margin, 10), history.num_suspects)

    def column(position: int) -> int:
        return max(0, position - 1) * width // history.num_suspects

    mass = [0.0] * width
    for suspect, weight in enumerate(weights):
        mass[column(suspect + 1)] += float(weight)
    top = max(*mass, min(1.0, 8 / width))
    bars = "".join(_BARS[min(8, round(8 * value / top)) or (1 if value > 1e-3 else 0)] for value in mass)
    probes = [" "] * width
    values: dict[int, list[float]] = {}
    for run in runs:
        position = history.position(run.commit)
        if position is not None and run.value is not None:
            values.setdefault(column(position), []).append(run.value)
        if position:
            sign = _SIGNS[run.outcome]
            probes[column(position)] = sign if probes[column(position)] in (" ", sign) else "?"
    if not search.observations:
        bars = "nothing was judged"[:width].ljust(width)
    lines = [_row("posterior", bars, "GOOD", "BAD")]
    lines += [_row("" if lane else "graph", text) for lane, text in enumerate(_lanes(history, column, width))]
    lines.append(_row("probes", "".join(probes)))
    return [*lines, *_value_line(values, width)]


def _row(label: str, content: str, left: str = "", right: str = "") -> str:
    return f"{label:<11}{left:>4}|{content}|{right}"


def _lanes(history: History, column: Callable[[int], int], width: int) -> list[str]:
    """Return one line per lane of the graph; none if the history is linear."""
    graph = graph_of(history)
    if graph.num_lanes == 1:
        return []
    lanes = [[" "] * width for _ in range(graph.num_lanes)]
    for parent, child in graph.edges:
        lane = max(graph.lanes[parent], graph.lanes[child])
        for place in range(column(parent), column(child) + 1):
            lanes[lane][place] = "─"
    for position in range(1, history.num_suspects + 1):
        lanes[graph.lanes[position]][column(position)] = "o"
    return ["".join(signs) for signs in lanes]


def _value_line(values: dict[int, list[float]], width: int) -> list[str]:
    """Return the mean value of each column that was run, as bars between the lowest and the highest."""
    means = {place: sum(found) / len(found) for place, found in values.items()}
    if len(means) < 2 or max(means.values()) == min(means.values()):
        return []
    low, high = min(means.values()), max(means.values())
    signs = [" "] * width
    for place, mean in means.items():
        signs[place] = _BARS[1 + round(7 * (mean - low) / (high - low))]
    return [_row("value", "".join(signs), right=f"▁ {low:.4g}  █ {high:.4g}")]


def answer_lines(answer: Answer) -> list[str]:
    """Return the answer, its credible set, the results at the ends and the cost."""
    lines = [f"Answer: {plain(answer.sentence)}"]
    for item in answer.suspects[:20]:
        merge = " (merge)" if item.is_merge else ""
        lines.append(f"  {item.probability:6.3f}  {item.commit[:12]}  {plain(item.subject)}{merge}")
    if len(answer.suspects) > 20:
        lines.append(f"  and {len(answer.suspects) - 20} more")
    lines.append(
        f"GOOD: {answer.good}; BAD: {answer.bad}; probability of no culprit {answer.no_culprit:.4f}"
        + (f", of a drift {answer.drift:.4f}" if answer.drift >= 0.001 else "")
    )
    how = (
        "the command is deterministic: each result was taken as exact"
        if answer.exact
        else "results were treated as noisy"
    )
    lines.append(f"Cost: {answer.cost}; {how}")
    if answer.advice:
        lines.append(f"Next: {answer.advice}")
    return lines
