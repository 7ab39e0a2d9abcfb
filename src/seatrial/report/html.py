"""report.html: the verdict and what failed first, then curves, rows, configuration and every verdict, in one file."""

from __future__ import annotations

import hashlib
import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.configuration import find_configuration
from seatrial.evidence.identity.redaction import MARK, Redactor, is_secret_name
from seatrial.pages import render
from seatrial.report.causes import Advice, advice_of, by_importance
from seatrial.report.rows import HEADINGS, WORDS, format_value, row
from seatrial.report.samples import Samples, trial_samples
from seatrial.report.summary import not_requested_line, summary_text, unfinished
from seatrial.report.watched import WatchedRun, charts, watched
from seatrial.rules.rule import Level
from seatrial.trials.results import Results, TrialResult
from seatrial.verdict import Outcome, Verdict

MAX_TEXT, MAX_ROWS, MAX_FAILURES, MAX_RUNS = 2000, 2000, 10, 8
"""Characters of a text, rows of a table, failures, and runs of a chart that the page shows."""

_MARKS = {
    Outcome.PASS: "\N{CHECK MARK}",
    Outcome.FAIL: "\N{MULTIPLICATION X}",
    Outcome.BLOCKED: "\N{BLACK SQUARE}",
    Outcome.SKIPPED: "\N{EN DASH}",
    Outcome.NOT_REQUESTED: "\N{MIDDLE DOT}",
}
"""Shown next to the word, so that the outcome can be read without colour."""


class Failure(NamedTuple):
    """A verdict that is Fail or Blocked, as the page shows it."""

    outcome: Outcome
    check: str
    figures: Sequence[tuple[str, str]]
    reason: str
    advice: Advice
    anchor: str
    last_lines: str = ""


@dataclass(frozen=True, kw_only=True)
class TrialPage:
    """What the page shows of a requested trial."""

    trial: TrialResult
    failures: Sequence[Failure]
    charts: Sequence[str]
    alarms: Sequence[str]
    """What the rules find in the curves; it is not part of the verdict."""
    samples: Samples
    settings: Sequence[tuple[str, str]]
    verdicts: Sequence[tuple[str, Verdict]]
    """Each with its anchor."""
    notes: Sequence[str]


def report_html(results: Results, directory: Path) -> str:
    """Return the report as an HTML document.

    Args:
        results: what is reported; every verdict comes from here.
        directory: the run directory; curves, rows and the configuration come from the folders of its trials.
    """
    return render(
        "seatrial.report",
        "report.html",
        **page_parts(),
        results=results,
        pages=[_page(trial, directory, results.seed) for trial in results.requested_trials()],
        not_requested=not_requested_line(results),
        names=[f"level {t.level}: {t.name}" for t in results.trials if not t.requested],
        summary=summary_text(results),
        headings=HEADINGS,
        marks=_MARKS,
        row=row,
        number=format_value,
        max_rows=MAX_ROWS,
        max_failures=MAX_FAILURES,
    )


@cache
def page_parts() -> Mapping[str, Any]:
    """Return what each page of this package needs: style, script, a policy that allows these two alone, and filters."""
    texts = {
        name: (files("seatrial.report") / "templates" / f"page.{name}").read_text(encoding="utf-8")
        for name in ("css", "js")
    }
    hashes = {
        name: b64encode(hashlib.sha256(text.encode()).digest()).decode() for name, text in texts.items()
    }
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashes['css']}'; script-src 'sha256-{hashes['js']}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return {
        "style": texts["css"], "script": texts["js"], "policy": policy, "words": WORDS, "visible": visible,
        "shortened": shortened,
    }  # fmt: skip


def visible(text: str) -> str:
    """Return text with control characters, direction marks and lone surrogates written as escapes."""
    return "".join(
        sign if sign.isprintable() or sign in "\n\t" else sign.encode("unicode_escape").decode()
        for sign in shortened(text)
    )


def shortened(text: str, limit: int = MAX_TEXT) -> str:
    """Return the beginning of a long text, and how much is left out."""
    left = len(text) - limit
    return text if left <= 0 else f"{text[:limit]} ... ({left:,} more characters)"


def _page(trial: TrialResult, directory: Path, seed: int) -> TrialPage:
    folder = directory / trial.directory if trial.directory else None
    anchors: dict[str, Verdict] = {}
    for verdict in trial.verdicts:
        name = re.sub(r"[^a-z0-9]+", "-", f"{trial.name} {verdict.name[:80]}".lower()).strip("-")
        number = next(n for n in range(1, len(trial.verdicts) + 2) if f"{name}.{n}" not in anchors)
        anchors[f"{name}.{number}"] = verdict
    runs, notes = _runs(folder) if folder else ([], [])
    rows = {
        (int(place["step"]), int(place["index"]))
        for verdict in trial.verdicts
        for place in _rows_named(verdict)
        if place.get("step") is not None and place.get("index") is not None
    }
    return TrialPage(
        trial=trial,
        failures=_failures(trial, anchors),
        charts=list(charts(runs)),
        alarms=[
            f"{level.word}: {item.rule.id} from step {item.finding.step} of {run.name}: {item.finding.reason}. "
            f"Next: {item.rule.remedy}"
            for level in (Level.ALARM, Level.NOTICE)
            for run in runs
            for item in run.at(level)
        ],
        samples=trial_samples(folder, rows, seed) if folder else Samples(),
        settings=_settings(folder) if folder else (),
        verdicts=list(anchors.items()),
        notes=notes,
    )


def _failures(trial: TrialResult, anchors: Mapping[str, Verdict]) -> list[Failure]:
    anchor_of = {id(verdict): anchor for anchor, verdict in anchors.items()}
    found = [
        Failure(
            verdict.outcome, verdict.name, _figures(verdict), verdict.reason,
            advice_of(verdict, trial.verdicts), anchor_of[id(verdict)],
            "\n".join(str(line).rstrip("\n") for line in verdict.details.get("last_lines", ())),
        )
        for verdict in by_importance(trial.verdicts)
    ]  # fmt: skip
    if not found and trial.outcome is Outcome.BLOCKED:
        advice = Advice(
            "The run was interrupted, or the process ended", "Continue it: `seatrial run --resume DIR`"
        )
        found.append(
            Failure(Outcome.BLOCKED, "the trial concludes", (), unfinished(trial), advice, trial.name)
        )
    return found


def _rows_named(verdict: Verdict) -> list[Mapping[str, Any]]:
    """Return the places of rows that a law of the ledger names."""
    rows = verdict.details.get("rows", ())
    return [place for place in rows if isinstance(place, dict)] if isinstance(rows, list) else []


def _figures(verdict: Verdict) -> list[tuple[str, str]]:
    step = verdict.details.get("step")
    rows = _rows_named(verdict)
    where = f"{step}" if step is not None else ""
    if rows:
        step, place = rows[0].get("step"), rows[0].get("index")
        where = f"{step}" if place is None else f"{step}, row {place}"
    cells = row(verdict)
    figures = [
        ("Value", cells.value),
        ("Bound", cells.bound),
        ("Step", where or "-"),
        ("Steps read", cells.steps),
        ("Samples", cells.samples),
    ]
    return [(name, text) for name, text in figures if text != "-"]


def _runs(folder: Path) -> tuple[list[WatchedRun], list[str]]:
    """Read the runs of a trial: each folder with a metrics.json."""
    runs: list[WatchedRun] = []
    notes: list[str] = []
    logs = sorted(folder.rglob("metrics.json"))
    if len(logs) > MAX_RUNS:
        notes.append(f"curves of {len(logs) - MAX_RUNS} more runs")
    for path in logs[:MAX_RUNS]:
        name = str(path.parent.relative_to(folder))
        try:
            run = watched("this run" if name == "." else name, path)
        except (BlockedError, UsageError) as error:
            notes.append(str(error))
            continue
        runs.append(run)
        notes += [f"{path.name} of {name}: {damage}" for damage in run.streams.log.damage]
    return runs, notes


def _settings(folder: Path) -> list[tuple[str, str]]:
    """Return the configuration of the trial's first run, by dotted key, without secrets."""
    places = [folder / "logs", *sorted(file.parent for file in folder.rglob("run_info.json"))]
    found = next((options for place in places if (options := find_configuration(place))), {})
    redactor = Redactor(os.environ)
    return [
        (key, MARK if is_secret_name(key) else redactor.text(shortened(str(value), 300)))
        for key, value in sorted(found.items())
    ]
