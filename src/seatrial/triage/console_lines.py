"""Lines of a console log of many processes: who said what, with the wrapping of launchers taken off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
_WRAPPINGS = (
    # Ray: `(Worker pid=12, ip=10.0.0.1) text`, `(pid=12) text`.
    re.compile(r"^\((?P<name>[^()]*?)\s?pid=(?P<number>\d+)(?:, ip=[\w.:]+)?\)\s?"),
    # PyTorch: `[rank1]: text`; torchrun --tee: `[default1]:text`, `[trainer1]:text`.
    re.compile(r"^\[(?P<name>rank|default|trainer|worker)(?P<number>\d+)\]:\s?"),
    # Ray's autoscaler: `(autoscaler +26s) text`.
    re.compile(r"^\((?P<name>autoscaler) \+(?P<number>\w+)\)\s?"),
    # srun --label: `1: text`.
    re.compile(r"^(?P<name>)(?P<number>\d{1,5}): "),
)


class Line(NamedTuple):
    """A line of a log."""

    number: int
    """From 1."""
    who: str
    """The process as the launcher names it: `rank 1`, `Worker 1234`; empty where nothing is said."""
    text: str


def console_lines(text: str) -> Iterator[Line]:
    """Yield the lines of a log."""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _COLOUR.sub("", raw.rsplit("\r", 1)[-1]).rstrip()
        who = ""
        while (found := _wrapping(line)) is not None:
            who = who or f"{found['name'] or 'process'} {found['number']}".strip()
            line = line[found.end() :]
        yield Line(number, who, line)


def _wrapping(line: str) -> re.Match[str] | None:
    return next((found for wrapping in _WRAPPINGS if (found := wrapping.match(line))), None)
