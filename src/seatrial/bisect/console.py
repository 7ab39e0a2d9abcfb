"""A bisect on the console: one line a run, the commit line with its posterior, the answer."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.bisect.answer import Answer
from seatrial.bisect.history import History
from seatrial.bisect.judge import RunOutcome
from seatrial.bisect.records import Run
from seatrial.bisect.search import Search

_BARS = " ▁▂▃▄▅▆▇█"
_SIGNS = {RunOutcome.PASS: "·", RunOutcome.FAIL: "x", RunOutcome.SKIP: "s", RunOutcome.BLOCKED: "b"}
_WIDTH = 96


def run_line(history: History, run: Run) -> str:
    """Return one line on a run."""
    position = history.position(run.commit)
    place = {0: "GOOD", history.bad_position: "BAD", None: "outside"}.get(
        position, f"{position}/{history.bad_position}"
    )
    tries = f" after {run.attempts} attempts" if run.attempts > 1 else ""
    where = f"run {run.number:>3}  {run.commit[:12]}  {place:>9}"
    return f"{where}  {run.outcome.value:<7} {run.reason}{tries} ({run.seconds:.1f} s)"


def commit_line(search: Search, runs: Sequence[Run], width: int = _WIDTH) -> str:
    """Return two lines: the posterior over the suspects as bars, and the probes below (. pass, x fail, s skip)."""
    history, weights = search.history, search.belief().suspects_H
    width = min(width, history.num_suspects)
    mass = [0.0] * width
    for suspect, weight in enumerate(weights):
        mass[suspect * width // history.num_suspects] += float(weight)
    top = max([*mass, 1e-12])
    bars = "".join(_BARS[min(8, round(8 * value / top)) or (1 if value > 1e-3 else 0)] for value in mass)
    probes = [" "] * width
    for run in runs:
        position = history.position(run.commit)
        if position:
            column = (position - 1) * width // history.num_suspects
            sign = _SIGNS[run.outcome]
            probes[column] = sign if probes[column] in (" ", sign) else "?"
    return f"posterior  GOOD|{bars}|BAD\nprobes         |{''.join(probes)}|"


def answer_lines(answer: Answer) -> list[str]:
    """Return the answer, its credible set, the evidence at the ends and the cost."""
    lines = [f"Answer: {answer.sentence}"]
    for item in answer.suspects[:20]:
        merge = " (merge)" if item.is_merge else ""
        lines.append(f"  {item.probability:6.3f}  {item.commit[:12]}  {item.subject}{merge}")
    if len(answer.suspects) > 20:
        lines.append(f"  and {len(answer.suspects) - 20} more")
    lines.append(f"GOOD: {answer.good}; BAD: {answer.bad}; probability of no culprit {answer.no_culprit:.4f}")
    how = (
        "the command is deterministic: each result was taken as exact"
        if answer.exact
        else "results were taken as noisy"
    )
    lines.append(f"Cost: {answer.num_runs} runs, {answer.minutes:.1f} minutes; {how}")
    if answer.advice:
        lines.append(f"Next: {answer.advice}")
    return lines
