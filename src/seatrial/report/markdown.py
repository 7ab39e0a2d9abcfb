"""report.md: the summary form, then every verdict of every requested trial."""

from __future__ import annotations

from collections.abc import Sequence

from seatrial.report.rows import HEADINGS, WORDS, row
from seatrial.report.summary import summary_text
from seatrial.trials.results import Results, TrialResult
from seatrial.verdict import Verdict


def report_markdown(results: Results) -> str:
    """Return the report as Markdown; lone surrogates, which no file can hold, become question marks."""
    parts = [
        f"# {results.target}: {WORDS[results.outcome]}",
        summary_text(results),
        *(_trial(trial) for trial in results.requested_trials()),
        _facts(results),
    ]
    text = "\n\n".join(part.strip("\n") for part in parts) + "\n"
    return text.encode(errors="replace").decode()


def _trial(trial: TrialResult) -> str:
    lines = [
        f"## Level {trial.level}: {trial.name}: {WORDS[trial.outcome]}",
        "",
        f"{trial.summary}. Proves: {trial.proves}. Does not prove: {trial.does_not_prove}.",
        "",
        markdown_table(trial.verdicts),
    ]
    return "\n".join(lines)


def markdown_table(verdicts: Sequence[Verdict]) -> str:
    """Return verdicts as a table; a row of dashes where there are none."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    lines += ["| " + " | ".join(escape_cell(cell) for cell in row(verdict)) + " |" for verdict in verdicts]
    if not verdicts:
        lines.append("|" + " - |" * len(HEADINGS))
    return "\n".join(lines)


def escape_cell(text: str) -> str:
    """Escape what would break a table or be read as markup."""
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
    for character in "`*_[]":
        escaped = escaped.replace(character, "\\" + character)
    return " ".join(escaped.split())


def _facts(results: Results) -> str:
    rows = {
        "run": results.run,
        "started": results.started_at,
        "finished": results.finished_at or "not finished",
        "seed": str(results.seed),
        "overrides": " ".join(results.overrides) or "none",
        "seatrial": results.seatrial_version,
        "schema of results.json": str(results.schema_version),
    }
    return "\n".join(["## Run", "", *(f"- {name}: {escape_cell(value)}" for name, value in rows.items())])
