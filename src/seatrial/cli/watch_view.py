"""What `seatrial watch` shows: a live view on a terminal, lines everywhere else, and the report at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from seatrial.cli.verdict_table import plain_lines
from seatrial.evidence.runlog import Series
from seatrial.report.rows import printable
from seatrial.report.watched import SHOWN, rule_counts
from seatrial.rules.engine import Judged
from seatrial.rules.monitor import Look
from seatrial.rules.rule import Level
from seatrial.verdict import Verdict, combine

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

WIDTH = 32
_MOST_NAMES = 12
"""Unknown series that are listed."""
_BARS = "▁▂▃▄▅▆▇█"
_STYLE = {Level.ALARM: "bold red", Level.NOTICE: "yellow", Level.QUIET: "green", Level.NOT_TRIGGERED: "dim"}


def sparkline(series: Series, width: int = WIDTH) -> str:
    """Return a series as bars, each the mean of a stretch of it; a stretch without a finite value is a space."""
    bars = []
    means = [_mean(part) for part in np.array_split(series.values, min(width, len(series))) if len(part)]
    finite = [mean for mean in means if np.isfinite(mean)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    for mean in means:
        place = (
            0
            if high == low
            else int((mean - low) / (high - low) * (len(_BARS) - 1))
            if np.isfinite(mean)
            else 0
        )
        bars.append(_BARS[place] if np.isfinite(mean) else " ")
    return "".join(bars)


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def report_lines(look: Look, verdicts: Sequence[Verdict], path: Path) -> Iterator[str]:
    """Yield the report: what is wrong first, then notices, then who was quiet and who was not triggered."""
    assert look.streams is not None
    stack = (
        look.streams.stack.name
        if look.streams.stack
        else "not recognised: plain names, or name it with --stack"
    )
    yield f"{path}: {len(look.streams.log.series)} series to step {look.last_step}; stack {stack}"
    named = [f"{several[0].tag} = {name}" for name, several in sorted(look.streams.by_name.items())]
    yield f"recognised: {', '.join(named) or 'nothing'}"
    unknown = look.streams.unknown
    if unknown:
        more = f" and {len(unknown) - _MOST_NAMES} more" if len(unknown) > _MOST_NAMES else ""
        yield f"not recognised: {', '.join(unknown[:_MOST_NAMES])}{more}"
    for note in look.streams.log.notes:
        yield f"note: {note}"
    for verdict in verdicts:
        if not verdict.name.startswith("rule "):
            yield from plain_lines(verdict)
    for item in look.judged:
        if item.finding.level is Level.ALARM:
            yield from plain_lines(item.verdict)
            yield from _chart(item, look)
    for item in look.judged:
        if item.finding.level is Level.NOTICE:
            yield f"{'notice':8}{item.rule.id} from step {item.finding.step}: {item.finding.reason}"
    for level in (Level.QUIET, Level.NOT_TRIGGERED):
        names = [item.rule.id for item in look.judged if item.finding.level is level]
        if names:
            yield f"{level.word}: {', '.join(names)}"
    yield f"{combine(verdicts).value}: {rule_counts(look.judged)}"


def _chart(item: Judged, look: Look) -> Iterator[str]:
    """Yield the series that an alarm rests on, up to the step at which it fired."""
    assert look.streams is not None
    for tag in item.finding.tags[:2]:
        series = look.streams.log.series.get(tag)
        if series is not None and item.finding.step is not None:
            upto = series.steps <= item.finding.step
            part = Series(tag=tag, steps=series.steps[upto], values=series.values[upto])
            if len(part):
                yield f"{'':8}{sparkline(part)}  {tag} up to step {item.finding.step}, there {part.values[-1]:.4g}"


class LiveView:
    """A view that is redrawn at each look; without a terminal, a line for each new finding."""

    def __init__(self, path: Path, last_step: int | None) -> None:
        """Look whether anybody watches."""
        from rich.console import Console

        self._path = path
        self._last_step = last_step
        self._console = Console(highlight=False, emoji=False)
        self._live: Live | None = None
        self._first: tuple[float, int] | None = None
        self._was_waiting = ""

    def __enter__(self) -> LiveView:
        """Begin to show."""
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the view away; the report follows."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the view."""
        self._console.print(printable(text), markup=False, soft_wrap=True)

    def show(self, look: Look) -> None:
        """Show a look."""
        if look.shrunk:
            self.say(f"{self._path}: the log holds fewer points than before; alarms that were raised stand")
        if self._live is not None:
            self._live.update(self._drawn(look), refresh=True)
            return
        if look.waiting != self._was_waiting:
            self._was_waiting = look.waiting
            if look.waiting:
                self.say(f"waiting: {look.waiting}")
        for item in look.news:
            self.say(
                f"{item.finding.level.word:8}{item.rule.id} from step {item.finding.step}: {item.finding.reason}"
            )

    def _drawn(self, look: Look) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        if look.streams is None:
            return Group(Text(f"waiting: {printable(look.waiting)}", style="yellow"))
        curves = Table.grid(padding=(0, 2))
        for name in SHOWN:
            series = look.streams.one(name)
            if series is not None:
                curves.add_row(
                    Text(name), Text(sparkline(series), style="cyan"), Text(f"{series.values[-1]:.4g}")
                )
        rules = Table.grid(padding=(0, 2))
        for item in sorted(look.judged, key=lambda item: -item.finding.level):
            if item.finding.level > Level.QUIET:
                style = _STYLE[item.finding.level]
                step = f"step {item.finding.step}"
                rules.add_row(Text(item.finding.level.word, style=style), Text(item.rule.id), Text(step))
        counts = {level: sum(item.finding.level is level for item in look.judged) for level in Level}
        summary = Text("  ").join(
            Text(f"{counts[level]} {level.word}", style=_STYLE[level])
            for level in sorted(Level, reverse=True)
        )
        return Group(Text(self._headline(look), style="bold"), curves, rules, summary)

    def _headline(self, look: Look) -> str:
        """Return the path, the stack, the last step, and the time that is left."""
        assert look.streams is not None
        step = look.last_step
        text = (
            f"{self._path}  {look.streams.stack.name if look.streams.stack else 'unknown stack'}  step {step}"
        )
        if step is None or self._last_step is None:
            return printable(text)
        now = time.monotonic()
        self._first = self._first or (now, step)
        began, first = self._first
        left = (now - began) / (step - first) * (self._last_step - step) if step > first else None
        return printable(
            f"{text} of {self._last_step}" + (f"  about {left:.0f} s left" if left is not None else "")
        )
