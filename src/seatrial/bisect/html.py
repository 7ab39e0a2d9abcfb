"""A bisect as one HTML file without scripts: the commit graph as a picture, the answer, the evidence of each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from seatrial.bisect.answer import Answer
from seatrial.bisect.history import History
from seatrial.bisect.picture import COLOURS, picture
from seatrial.bisect.plain import escaped
from seatrial.bisect.prober import shown_command
from seatrial.bisect.records import Run
from seatrial.bisect.search import Search
from seatrial.bisect.task import Task

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1240px; margin: 2em auto; padding: 0 1em;
       color: #1f2328; background: #ffffff; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 4px 10px; border-bottom: 1px solid #d0d7de; vertical-align: top; }
code { font: 13px ui-monospace, monospace; }
.answer { font-size: 1.15em; padding: 1em; background: #f6f8fa; border-left: 5px solid #0969da; }
svg { width: 100%; height: auto; }
.legend { color: #57606a; font-size: 0.9em; }
svg text { font: 12px ui-monospace, monospace; }
"""


_SIGNS = "● passed, ■ failed, ▲ skipped, ◆ blocked. "
_BY_OUTCOME = "A commit takes the colour of its runs, purple where they differ; white commits were not run."
_BY_VALUE = "Colour is the value: blue the lowest, orange the highest. White commits were not run."


def page(task: Task, search: Search, runs: Sequence[Run], answer: Answer, note: str | None) -> str:
    """Return the whole page; every text from outside is escaped."""
    suspects = "".join(
        f"<tr><td>{item.probability:.4f}</td><td><code>{escaped(item.commit)}</code></td>"
        f"<td>{escaped(item.subject)}{' (merge)' if item.is_merge else ''}</td></tr>"
        for item in answer.suspects
    )
    advice = f"<p><b>Next:</b> {escaped(answer.advice)}</p>" if answer.advice else ""
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Bisect: {escaped(answer.conclusion.value)}</title><style>{_STYLE}</style></head><body>
<h1>Bisect</h1>
<p class="answer">{escaped(answer.sentence)}</p>{advice}
<p>Asked: {escaped(_question(task))}<br><code>{escaped(shown_command(task))}</code></p>
{f"<p>{escaped(note)}</p>" if note else ""}
<p>GOOD <code>{escaped(search.history.good.sha[:12])}</code>: {escaped(answer.good)}.
BAD <code>{escaped(task.bad[:12])}</code>: {escaped(answer.bad)}.
Probability of no culprit: {answer.no_culprit:.4f}. Cost: {answer.cost}.</p>
{picture(search, runs)}
<p class="legend">{_SIGNS}{_BY_VALUE if task.metric else _BY_OUTCOME} Hover for hashes, subjects and values.</p>
<h2>Credible set</h2><table><tr><th>Probability</th><th>Commit</th><th>Subject</th></tr>{suspects}</table>
<h2>Runs</h2><table><tr><th>Run</th><th>Commit</th><th>Place</th><th>Outcome</th><th>Value</th><th>Reason</th><th>Seconds</th><th>Evidence</th></tr>
{"".join(_row(search.history, run) for run in runs)}</table>
</body></html>
"""


def _question(task: Task) -> str:
    """Say what each run was held to."""
    if task.metric:
        return f"which commit shifts {task.metric}"
    if task.checks:
        return f"which commit breaks {' and '.join(task.checks)}"
    return f"which commit breaks {task.test}" if task.test else "from which commit on the command fails"


def _evidence(run: Run) -> str:
    """Return a link to the directory of a run, which lies beside the page."""
    if not run.evidence:
        return ""
    place = "/".join(Path(run.evidence).parts[-2:])
    return f'<a href="{escaped(quote(place))}"><code>{escaped(place)}</code></a>'


def _row(history: History, run: Run) -> str:
    position = history.position(run.commit)
    place = {0: "GOOD", history.bad_position: "BAD", None: ""}.get(position, str(position))
    value = "" if run.value is None else f"{run.value:.6g}"
    colour = COLOURS[run.outcome]
    return (
        f"<tr><td>{run.number}</td><td><code>{escaped(run.commit[:12])}</code></td><td>{place}</td>"
        f'<td style="color:{colour}">{run.outcome.value}</td><td>{value}</td><td>{escaped(run.reason)}</td>'
        f"<td>{run.seconds:.1f}</td><td>{_evidence(run)}</td></tr>\n"
    )
