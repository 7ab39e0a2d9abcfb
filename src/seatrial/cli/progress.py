"""A status line that shows what a command is waiting for."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status


class StatusLine:
    """A line on standard error that is replaced while work continues; without a terminal, each change is a line.

    Use as a context manager: the line is gone when the block ends.
    """

    def __init__(self) -> None:
        """Prepare a console on standard error."""
        self._console = Console(file=sys.stderr, highlight=False, emoji=False)
        self._status: Status | None = None
        self._last_subject = ""

    def say(self, text: str) -> None:
        """Show what the command is waiting for."""
        if self._status is not None:
            self._status.update(escape(text[: self._console.width - 4]))
            return
        subject = text.partition(":")[0]
        if subject != self._last_subject:
            self._last_subject = subject
            self._console.print(subject, markup=False)

    def __enter__(self) -> StatusLine:
        """Start the status line, on a terminal."""
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()
            self._status = None
