"""GitHub Actions: the job summary (Markdown), and an annotation for each verdict that needs attention.

Source: GitHub's "Workflow commands" (GITHUB_STEP_SUMMARY; ::error title=...::message with %, CR, LF escaped).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.report.markdown import markdown_table
from seatrial.report.rows import WORDS
from seatrial.verdict import Outcome, Verdict, combine

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_LEVELS = {Outcome.FAIL: "error", Outcome.BLOCKED: "warning"}


def verdicts_markdown(title: str, verdicts: Sequence[Verdict]) -> str:
    """Return verdicts as a section of Markdown."""
    return f"## {title}: {WORDS[combine(verdicts)]}\n\n{markdown_table(verdicts)}\n"


def annotation_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a workflow command for each Fail (an error) and each Blocked (a warning)."""
    return [
        f"::{_LEVELS[verdict.outcome]} title={_property(f'{WORDS[verdict.outcome]}: {verdict.name}')}"
        f"::{_message(verdict.reason)}"
        for verdict in verdicts
        if verdict.outcome in _LEVELS
    ]


def append_summary(text: str, environment: Mapping[str, str]) -> None:
    """Add to the job's summary; nothing is done outside of GitHub Actions.

    Raises:
        BlockedError: the file that GitHub names cannot be written.
    """
    path = environment.get(SUMMARY_VARIABLE)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as stream:
            stream.write(text.rstrip("\n") + "\n\n")
    except OSError as error:
        raise BlockedError(f"{SUMMARY_VARIABLE} {path}: {error.strerror}") from error


def write_to_github(
    title: str, text: str, verdicts: Sequence[Verdict], environment: Mapping[str, str]
) -> None:
    """Inside GitHub Actions: add `text` to the job's summary and print the annotations."""
    if not environment.get(SUMMARY_VARIABLE):
        return
    append_summary(text or verdicts_markdown(title, verdicts), environment)
    for line in annotation_lines(verdicts):
        print(line)


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
