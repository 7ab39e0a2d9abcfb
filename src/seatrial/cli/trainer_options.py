"""`seatrial relations --options`: the table of options of a target's trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from seatrial.errors import UsageError
from seatrial.targets import get_target
from seatrial.verdict import EXIT_PASS


def print_options(target: str | None) -> int:
    """Print which option of a target's trainers a law sees ignored, and return the exit status.

    Raises:
        UsageError: the target has no such table.
    """
    chosen = None if target is None else get_target(target)
    option_lines: Callable[[], Iterable[str]] | None = getattr(chosen, "option_lines", None)
    if option_lines is None:
        raise UsageError(
            f"--options needs a target that lists its options: --target trl, not {target or 'none'}"
        )
    for line in option_lines():
        print(line)
    return EXIT_PASS
