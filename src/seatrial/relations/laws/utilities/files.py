"""R31.files: checkpoints are found and deleted by their steps, and random states come back whole."""

from __future__ import annotations

from seatrial.relations.laws.utilities.plain import Plain, add_laws, relation_of

FILES = relation_of(
    "files",
    "checkpoints-are-found-and-kept-by-step",
    "The checkpoint that was written last is found, as many as configured are kept, and random states come back.",
)


def latest(steps: list[int], tracked: int | None) -> int | None:
    """Return the step that is noted as the last, if there is such a checkpoint."""
    return tracked if tracked in steps else None


def kept(number: int, limit: int | None) -> list[int]:
    """Return the steps that are left of checkpoints of steps from 1 on: the last ones; all without a limit."""
    steps = list(range(1, number + 1))
    return steps[-limit:] if limit else steps


FILE_FUNCTIONS = (
    Plain(
        name="latest checkpoint",
        law="the checkpoint that was written last",
        suspects="steps compared as texts, a folder that is newer than the note",
        cases=lambda case: [([9, 10, 100], 100), ([9, 10], 9), ([9, 10], 11), ([9, 10], None), ([], 3)],
        right=latest,
    ),
    Plain(
        name="kept checkpoints",
        law="checkpoints that are kept",
        suspects="one more or one fewer than configured, the oldest kept",
        cases=lambda case: [(number, limit) for number in (1, 3, 5) for limit in (None, 1, 2, 3)],
        right=kept,
    ),
    Plain(
        name="random state",
        law="random states that are saved",
        suspects="the state of one library left out",
        cases=lambda case: [()],
        right=lambda: {"torch": True, "numpy": True, "random": True},
    ),
)
add_laws(FILES, FILE_FUNCTIONS)
