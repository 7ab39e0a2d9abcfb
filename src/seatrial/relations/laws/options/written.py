"""R18.written: commands next to training write where it is requested, and every option of theirs has an effect."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seatrial.relations.law import Measure, NoCase, Relation

WRITTEN = Relation(
    id="R18.written",
    name="commands-write-what-is-requested",
    component="written_commands",
    statement="A command that writes files writes them into the named directory alone, the same ones each time, and "
    "each of its options changes them.",
    catalogue="SB020 SB188",
    cost="CPU, seconds",
    cases=lambda stack, seed, tidy: NoCase(),
    seeded=False,
)
Files = dict[str, str]
"""Digests by path."""


@WRITTEN.law(
    "files are where they are requested", "an option for the directory that one of several paths ignores"
)
def files_are_where_requested(stack: Any, case: Any) -> Measure:
    """Check that each command writes into the named directory, and nothing into the current one."""
    wrong = []
    for name, words in stack.writing_commands().items():
        there, here, status = _written(stack, words)
        if status != 0 or not there or here:
            wrong.append(f"{name}: status {status}, {len(there)} files there, {sorted(here)} here")
    return Measure.count(wrong, "commands that write elsewhere, or nothing")


@WRITTEN.law("options take effect", "a flag that is parsed and not passed on, a seed that is not used")
def options_take_effect(stack: Any, case: Any) -> Measure:
    """Check that a command writes the same files twice, and that each of its options changes some of them."""
    wrong = []
    for name, words in stack.writing_commands().items():
        options = stack.options_of(name)
        if not options:
            continue
        first, again = (_written(stack, words)[0] for _ in range(2))
        if first != again:
            wrong.append(f"{name}: two calls write different files")
        for option, more in options.items():
            changed, _, status = _written(stack, (*words, *more))
            if status != 0 or changed == first:
                wrong.append(
                    f"{name} {option}: status {status}, {'nothing' if changed == first else 'files'} changed"
                )
    return Measure.count(wrong, "options without effect, or files that differ by chance")


def _written(stack: Any, words: Sequence[str]) -> tuple[Files, Files, int]:
    """Return the files in the named directory, those in the current one, and the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        here, there = Path(folder) / "here", Path(folder) / "there"
        here.mkdir()
        ended = stack.run_in(here, (*words, stack.output_option, str(there)))
        return _files(there), _files(here), ended.status


def _files(folder: Path) -> Files:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
