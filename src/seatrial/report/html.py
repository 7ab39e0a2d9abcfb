"""report.html: the report for a browser. One file: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from seatrial.report.curves import trial_curves
from seatrial.report.rows import HEADINGS, WORDS, row
from seatrial.report.summary import summary_text
from seatrial.trials.results import Results, TrialResult
from seatrial.verdict import Outcome, Verdict

_MARKS = {
    Outcome.PASS: "\N{CHECK MARK}",
    Outcome.FAIL: "\N{MULTIPLICATION X}",
    Outcome.BLOCKED: "\N{BLACK SQUARE}",
    Outcome.SKIPPED: "\N{EN DASH}",
    Outcome.NOT_REQUESTED: "\N{MIDDLE DOT}",
}
"""Read beside the word, so that nothing hangs on colour."""

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881;
  --pass: #1a7f37; --fail: #c4321c; --blocked: #9a6700; --skipped: #6e7781; --notrequested: #6e7781; }
@media (prefers-color-scheme: dark) { :root { --pass: #4ac26b; --fail: #ff7b6b; --blocked: #d4a72c;
  --skipped: #9198a1; --notrequested: #9198a1; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
th { position: sticky; top: 0; background: Canvas; white-space: nowrap; }
td > span { white-space: nowrap; font-weight: 600; }
.verdicts td:nth-child(5), .verdicts td:nth-child(6) { white-space: nowrap; }
.verdicts td:nth-child(2), .verdicts td:nth-child(3) { min-width: 11rem; }
.wide { overflow-x: auto; } pre { white-space: pre-wrap; background: var(--soft); padding: 1rem; border-radius: .5rem; }
.pass { color: var(--pass); } .fail { color: var(--fail); } .blocked { color: var(--blocked); }
.skipped { color: var(--skipped); } .notrequested { color: var(--notrequested); }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; margin-top: 1rem; }
.curves svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: .5rem; }
"""


def report_html(results: Results, directory: Path) -> str:
    """Return the report as an HTML document.

    Args:
        results: what is told.
        directory: the run directory; curves are drawn from the metrics.json files of its trials.
    """
    title = f"{results.target}: {WORDS[results.outcome]}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(results.target)}: {_word(results.outcome)}</h1>",
        f"<p>{escape(results.requested)}, seed {results.seed}, started {escape(results.started_at)}, "
        f"finished {escape(results.finished_at or 'not yet')}, seatrial {escape(results.seatrial_version)}</p>",
        _table(("Deliverable", "Outcome", "What it does"), [_deliverable(trial) for trial in results.trials]),
        *(_trial(trial, directory) for trial in results.requested_trials()),
        f"<h2>Summary</h2><pre>{escape(summary_text(results))}</pre>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _word(outcome: Outcome) -> str:
    word = WORDS[outcome]
    return f'<span class="{word.replace(" ", "").lower()}">{_MARKS[outcome]} {word}</span>'


def _deliverable(trial: TrialResult) -> tuple[str, ...]:
    return (escape(f"level {trial.level}: {trial.name}"), _word(trial.outcome), escape(trial.summary))


def _trial(trial: TrialResult, directory: Path) -> str:
    charts, notes = trial_curves(directory / trial.directory) if trial.directory else ([], [])
    parts = [
        f"<h2>Level {trial.level}: {escape(trial.name)}: {_word(trial.outcome)}</h2>",
        f"<p>{escape(trial.summary)}. <b>Proves:</b> {escape(trial.proves)}. "
        f"<b>Does not prove:</b> {escape(trial.does_not_prove)}.</p>",
        _table(HEADINGS, [_verdict(verdict) for verdict in trial.verdicts], "verdicts"),
    ]
    if charts:
        parts.append(f'<div class="curves">{"".join(charts)}</div>')
    parts += [f"<p>Not drawn: {escape(note)}</p>" for note in notes]
    return "\n".join(parts)


def _verdict(verdict: Verdict) -> tuple[str, ...]:
    return (_word(verdict.outcome), *(escape(cell) for cell in row(verdict)[1:]))


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "plain") -> str:
    """Return a table; the cells are HTML already."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n" for cells in rows)
    return f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
