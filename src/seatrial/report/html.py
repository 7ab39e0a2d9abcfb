"""report.html: the report for a browser. One file: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path

from seatrial.pages import render
from seatrial.report.curves import trial_curves
from seatrial.report.rows import HEADINGS, WORDS, row
from seatrial.report.summary import summary_text
from seatrial.trials.results import Results, TrialResult
from seatrial.verdict import Outcome

_MARKS = {
    Outcome.PASS: "\N{CHECK MARK}",
    Outcome.FAIL: "\N{MULTIPLICATION X}",
    Outcome.BLOCKED: "\N{BLACK SQUARE}",
    Outcome.SKIPPED: "\N{EN DASH}",
    Outcome.NOT_REQUESTED: "\N{MIDDLE DOT}",
}
"""Read beside the word, so that nothing hangs on colour."""


def report_html(results: Results, directory: Path) -> str:
    """Return the report as an HTML document.

    Args:
        results: what is reported.
        directory: the run directory; curves are drawn from the metrics.json files of its trials.
    """
    return render(
        "seatrial.report",
        "report.html",
        results=results,
        requested=[(trial, *_curves(trial, directory)) for trial in results.requested_trials()],
        summary=summary_text(results),
        headings=HEADINGS,
        words=WORDS,
        marks=_MARKS,
        row=row,
    )


def _curves(trial: TrialResult, directory: Path) -> tuple[list[str], list[str]]:
    return trial_curves(directory / trial.directory) if trial.directory else ([], [])
