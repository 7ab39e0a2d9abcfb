"""Stacks under trial."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from seatrial.errors import UsageError
from seatrial.targets.base import Target


def _reference() -> Target:
    from seatrial.targets.reference import ReferenceTarget

    return ReferenceTarget()


TARGETS: dict[str, Callable[[], Target]] = {"reference": _reference}
"""Every target by the name that `--target` takes; a target's module is imported when it is asked for."""


def get_target(name: str) -> Target:
    """Return a target by name.

    Raises:
        UsageError: it is unknown; the nearest name is given.
    """
    if name not in TARGETS:
        near = difflib.get_close_matches(name, TARGETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(TARGETS)}"
        raise UsageError(f"--target {name!r} is unknown; {hint}")
    return TARGETS[name]()
