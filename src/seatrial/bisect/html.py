"""Renders a bisect as one HTML page without scripts: the commit graph, the answer, the evidence of each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seatrial.bisect.answer import Answer
from seatrial.bisect.history import History
from seatrial.bisect.picture import COLOURS, picture
from seatrial.bisect.prober import shown_command
from seatrial.bisect.records import Run
from seatrial.bisect.search import Search
from seatrial.bisect.task import Task
from seatrial.pages import render


def page(task: Task, search: Search, runs: Sequence[Run], answer: Answer, note: str | None) -> str:
    """Return the whole page; all outside text is escaped."""
    return render(
        "seatrial.bisect",
        "bisect.html",
        answer=answer,
        note=note,
        runs=runs,
        question=_question(task),
        command=shown_command(task),
        good=search.history.good.sha,
        bad=task.bad,
        by_value=bool(task.metric),
        picture=picture(search, runs),
        colours=COLOURS,
        place=lambda run: _place(search.history, run),
        evidence=_evidence,
    )


def _question(task: Task) -> str:
    """Return the question that each run answers."""
    if task.metric:
        return f"which commit shifts {task.metric}"
    if task.checks:
        return f"which commit breaks {' and '.join(task.checks)}"
    return f"which commit breaks {task.test}" if task.test else "from which commit on the command fails"


def _evidence(run: Run) -> str:
    """Return the path of a run's directory, relative to the page in the same state directory."""
    return "/".join(Path(run.evidence).parts[-2:])


def _place(history: History, run: Run) -> str:
    """Return the position of a run's commit between GOOD and BAD."""
    position = history.position(run.commit)
    return {0: "GOOD", history.bad_position: "BAD", None: ""}.get(position, str(position))
