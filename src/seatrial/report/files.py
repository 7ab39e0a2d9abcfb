"""Writes every view of a run directory: its verdicts come from results.json alone."""

from __future__ import annotations

from pathlib import Path

from seatrial.files import write_text
from seatrial.report.html import report_html
from seatrial.report.junit import junit_xml
from seatrial.report.markdown import report_markdown
from seatrial.trials.results import Results

REPORT = "report.md"
PAGE = "report.html"
JUNIT = "junit.xml"


def write_views(directory: Path, results: Results) -> Path:
    """Write report.md, report.html and junit.xml; return the path of the report.

    Raises:
        BlockedError: a file cannot be written.
    """
    write_text(directory / REPORT, report_markdown(results))
    write_text(directory / PAGE, report_html(results, directory))
    write_text(directory / JUNIT, junit_xml(results))
    return directory / REPORT
