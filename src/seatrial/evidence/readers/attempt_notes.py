"""What is said of abandoned steps, duplicates and conflicts when attempts are put together."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from seatrial.evidence.runlog import Series


def account(series: dict[str, Series], abandoned_steps: list[npt.NDArray[np.int64]]) -> list[str]:
    """Describe abandoned steps and duplicates, the tags with most of them first."""
    notes = []
    abandoned = {tag: one.abandoned for tag, one in series.items() if one.abandoned}
    if abandoned:
        steps = np.concatenate(abandoned_steps)
        notes.append(
            f"left out, logged by abandoned attempts: {count(sum(abandoned.values()), 'point')} at steps {steps.min()} "
            f"to {steps.max()} ({_most(abandoned)})"
        )
    conflicts = {tag: one.conflicts for tag, one in series.items() if one.conflicts}
    if conflicts:
        notes.append(
            f"written again with another value, of which the last counts: "
            f"{count(sum(conflicts.values()), 'point')} ({_most(conflicts)})"
        )
    repeats = sum(one.duplicates - one.conflicts for one in series.values())
    if repeats:
        notes.append(f"written again with the same value: {count(repeats, 'point')}")
    return notes


def count(number: int, thing: str) -> str:
    """Return a number of things in words: `1 point`, `2 points`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _most(counts: dict[str, int]) -> str:
    ranked = sorted(counts, key=lambda tag: (-counts[tag], tag))
    shown = ", ".join(f"{tag} {counts[tag]}" for tag in ranked[:5])
    return shown + (f" and {len(ranked) - 5} more tags" if len(ranked) > 5 else "")


def some(names: Collection[str]) -> str:
    ranked = sorted(names)
    return ", ".join(ranked[:5]) + (f" and {len(ranked) - 5} more" if len(ranked) > 5 else "")
