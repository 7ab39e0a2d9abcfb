"""R31.workers: what a group of workers gets of a batch, and gives back, is the batch in its order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from seatrial.relations.contracts.utilities import Batch
from seatrial.relations.laws.utilities.batches import at_places, made_batch, num_rows_of
from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

WORKERS = relation_of(
    "workers",
    "workers-get-every-row-once-and-give-it-back-in-order",
    "Each worker of a group gets its rows of a batch; what they give back is the whole batch, in its order.",
)
DISPATCHED = "dispatched to workers"
MESHES: Sequence[tuple[Sequence[int], Sequence[bool]]] = (
    ([0, 1], [True, True]),
    ([0, 0, 1, 1], [True, False, True, False]),
    ([0, 1, 0, 1], [True, True, False, False]),
    ([0, 1, 2], [True, True, True]),
    ([0, 0, 0, 0, 0, 0], [False, False, False, True, False, False]),
)
"""The part of the data that each worker works on, and whether it answers: parts of a model share a part of the data."""


def dispatched(
    batch: Batch, mesh: Sequence[int], answers: Sequence[bool], options: dict[str, Any]
) -> tuple[list[list[int]], Any]:
    """Return the rows of each worker, and the results by the definition of the mode.

    Args:
        batch: whose column `ids` names the rows.
        mesh: number of the part that each worker gets.
        answers: which workers' results are collected.
        options: `all` sends every worker the whole batch; `metric` collects numbers; `padded` allows any number of
            rows; `named` gives the batch by name, and `both` by position and by name.
    """
    ids = [int(row[0]) for row in batch.tensors["ids"]]
    if options.get("all"):
        return [ids for _ in mesh], [ids for _ in mesh]
    size = -(-len(ids) // (max(mesh) + 1))
    # Where the rows do not divide evenly, any rows fill the last parts: they are not compared.
    filled = [ids[place % len(ids)] for place in range(size * (max(mesh) + 1))]
    parts = [filled[size * part : size * (part + 1)] for part in mesh]
    if options.get("metric"):
        return parts, [sum(part) for part in parts]
    own = [part[: max(0, len(ids) - size * number)] for part, number in zip(parts, mesh, strict=True)]
    given = [place for part, answer in zip(own, answers, strict=True) if answer for place in part]
    return own, given


def _cases(case: Numbers, **options: Any) -> Iterable[Arguments]:
    for mesh, answers in MESHES:
        flat = len(set(mesh)) == len(mesh)
        if flat or options.get("mesh"):
            for rows in (len(mesh) * 2, 12):
                yield made_batch(case, num_rows=rows), mesh, answers, options


def _uneven(case: Numbers, **options: Any) -> Iterable[Arguments]:
    for mesh, answers in (([0, 1], [True, True]), ([0, 1, 2], [True, True, True])):
        for rows in (5, 7, 6):
            yield made_batch(case, num_rows=rows), mesh, answers, {**options, "padded": True}


def facts_of_parts(batch: Batch, mesh: Sequence[int]) -> list[tuple[Batch, dict[str, Any]]]:
    """Return the columns of each worker's part, and the facts of the batch."""
    size = num_rows_of(batch) // (max(mesh) + 1)
    return [(at_places(batch, range(size * part, size * (part + 1))), batch.facts) for part in mesh]


def _parts(case: Numbers) -> Iterable[Arguments]:
    for form in ("proto", "tensordict"):
        for mesh, _ in MESHES:
            yield made_batch(case, num_rows=12), mesh, form


MODES: Sequence[tuple[str, str, dict[str, Any], bool]] = (
    ("a part of the rows each", "rows in another order, results of one worker alone", {}, False),
    (
        "a part of the rows each, given by name",
        "arguments by name that are not divided",
        {"named": True},
        False,
    ),
    ("rows that do not divide evenly", "filled rows among the results, or too many taken off", {}, True),
    (
        "rows that do not divide evenly, given by name",
        "filled rows among the results where arguments have names",
        {"named": True},
        True,
    ),
    ("a function and its rows", "the function in the place of rows", {"function": True}, False),
    ("numbers of each worker", "numbers joined, or taken of the first worker", {"metric": True}, False),
    ("all rows to all", "parts instead of the whole", {"all": True}, False),
    ("all rows to all, given by name", "parts instead of the whole", {"all": True, "named": True}, False),
    (
        "workers that share rows",
        "results of every copy, parts by the worker's own number",
        {"mesh": True},
        False,
    ),
    (
        "workers that share rows, given twice",
        "arguments by name that are sent by another mapping",
        {"mesh": True, "both": True},
        False,
    ),
    (
        "workers that share rows of a TensorDict",
        "results of every copy, parts by the worker's own number",
        {"mesh": True, "form": "tensordict"},
        False,
    ),
)
WORKER_FUNCTIONS = (
    *(
        Plain(
            name=DISPATCHED,
            law=name,
            suspects=suspects,
            cases=partial(_uneven if uneven else _cases, **options),
            right=dispatched,
        )
        for name, suspects, options, uneven in MODES
    ),
    Plain(
        name="parts for workers",
        law="every column of a part",
        suspects="a column of other rows, facts lost",
        cases=_parts,
        right=lambda batch, mesh, form: facts_of_parts(batch, mesh),
    ),
)
add_laws(WORKERS, WORKER_FUNCTIONS)
