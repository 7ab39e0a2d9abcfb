"""A bisect as one HTML file without scripts: the commit line as a picture, the answer, the evidence of each run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from seatrial.bisect.answer import Answer
from seatrial.bisect.history import History
from seatrial.bisect.judge import RunOutcome
from seatrial.bisect.prober import shown_command
from seatrial.bisect.records import Run
from seatrial.bisect.search import Search
from seatrial.bisect.task import Task

_WIDTH, _LEFT, _BARS, _DOTS = 1100.0, 60.0, 160.0, 180.0
_COLOURS = {
    RunOutcome.PASS: "#1a7f37",
    RunOutcome.FAIL: "#cf222e",
    RunOutcome.SKIP: "#6e7781",
    RunOutcome.BLOCKED: "#bf8700",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1240px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 4px 10px; border-bottom: 1px solid #d0d7de; vertical-align: top; }
code { font: 13px ui-monospace, monospace; }
.answer { font-size: 1.15em; padding: 1em; background: #f6f8fa; border-left: 5px solid #0969da; }
svg { width: 100%; height: auto; }
svg text { font: 12px ui-monospace, monospace; }
"""


def page(task: Task, search: Search, runs: Sequence[Run], answer: Answer, note: str | None) -> str:
    """Return the whole page; every text from outside is escaped."""
    suspects = "".join(
        f"<tr><td>{item.probability:.4f}</td><td><code>{escape(item.commit)}</code></td>"
        f"<td>{escape(item.subject)}{' (merge)' if item.is_merge else ''}</td></tr>"
        for item in answer.suspects
    )
    advice = f"<p><b>Next:</b> {escape(answer.advice)}</p>" if answer.advice else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Bisect: {escape(answer.conclusion.value)}</title><style>{_STYLE}</style></head><body>
<h1>Bisect</h1>
<p class="answer">{escape(answer.sentence)}</p>{advice}
<p><code>{escape(shown_command(task))}</code></p>
{f"<p>{escape(note)}</p>" if note else ""}
<p>GOOD <code>{escape(search.history.good.sha[:12])}</code>: {escape(answer.good)}.
BAD <code>{escape(task.bad[:12])}</code>: {escape(answer.bad)}.
Probability of no culprit: {answer.no_culprit:.4f}. Cost: {answer.num_runs} runs, {answer.minutes:.1f} minutes.</p>
{picture(search, runs)}
<h2>Credible set</h2><table><tr><th>Probability</th><th>Commit</th><th>Subject</th></tr>{suspects}</table>
<h2>Runs</h2><table><tr><th>Run</th><th>Commit</th><th>Place</th><th>Outcome</th><th>Value</th><th>Reason</th><th>Seconds</th><th>Evidence</th></tr>
{"".join(_row(search.history, run) for run in runs)}</table>
</body></html>
"""


def _row(history: History, run: Run) -> str:
    position = history.position(run.commit)
    place = {0: "GOOD", history.bad_position: "BAD", None: ""}.get(position, str(position))
    value = "" if run.value is None else f"{run.value:.6g}"
    colour = _COLOURS[run.outcome]
    return (
        f"<tr><td>{run.number}</td><td><code>{escape(run.commit[:12])}</code></td><td>{place}</td>"
        f'<td style="color:{colour}">{run.outcome.value}</td><td>{value}</td><td>{escape(run.reason)}</td>'
        f"<td>{run.seconds:.1f}</td><td><code>{escape(run.evidence)}</code></td></tr>\n"
    )


def picture(search: Search, runs: Sequence[Run]) -> str:
    """Return the commits from GOOD to BAD as SVG: the posterior above the line, the probes below it.

    Probes of a metric stand at the height of their value, others in a row for each outcome.
    """
    history, weights = search.history, search.belief().suspects_H
    step = _WIDTH / max(1, history.num_suspects)
    top = max(float(weights.max()), 1e-12)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH + 2 * _LEFT:.0f} {_BARS + _DOTS + 60:.0f}" role="img" '
        'aria-label="commits, posterior and probes">'
    ]
    for suspect, weight in enumerate(weights):
        if weight / top > 0.002:
            height = (_BARS - 20) * float(weight) / top
            commit = history.suspects[suspect]
            label = f"{commit.sha[:12]} {commit.subject}: {weight:.4f}"
            parts.append(
                f'<rect x="{_LEFT + suspect * step:.2f}" y="{_BARS - height:.2f}" width="{max(step * 0.9, 1.5):.2f}" '
                f'height="{height:.2f}" fill="#0969da"><title>{escape(label)}</title></rect>'
            )
    parts.append(f'<line x1="{_LEFT}" y1="{_BARS}" x2="{_LEFT + _WIDTH}" y2="{_BARS}" stroke="#1f2328"/>')
    parts.append(
        f'<text x="4" y="{_BARS + 4}">GOOD</text><text x="{_LEFT + _WIDTH + 8}" y="{_BARS + 4}">BAD</text>'
    )
    parts.append(f'<text x="4" y="24">{top:.2f}</text>')
    parts += _dots(history, runs, step)
    parts.append("</svg>")
    return "\n".join(parts)


def _dots(history: History, runs: Sequence[Run], step: float) -> list[str]:
    values = [run.value for run in runs if run.value is not None and history.position(run.commit) is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    rows = {outcome: 40.0 + 40.0 * number for number, outcome in enumerate(RunOutcome)}
    parts = []
    for run in runs:
        position = history.position(run.commit)
        if position is None:
            continue
        x = _LEFT + (position - 0.5) * step if position else _LEFT - 10
        y = _BARS + rows[run.outcome]
        if run.value is not None and high > low:
            y = _BARS + 20 + (_DOTS - 40) * (high - run.value) / (high - low)
        value = "" if run.value is None else f" value {run.value:.6g}"
        label = f"run {run.number} {run.commit[:12]}: {run.outcome.value}{value}"
        parts.append(
            f'<circle cx="{x:.2f}" cy="{y:.2f}" r="5" fill="{_COLOURS[run.outcome]}" fill-opacity="0.7">'
            f"<title>{escape(label)}</title></circle>"
        )
    if high > low and values:
        parts.append(
            f'<text x="4" y="{_BARS + 24}">{high:.4g}</text><text x="4" y="{_BARS + _DOTS - 16}">{low:.4g}</text>'
        )
    return parts
