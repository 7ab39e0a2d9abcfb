"""R31.samplers: samplers of a trainer give every process the rows that loops over lists give it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

SAMPLERS = relation_of(
    "samplers",
    "samplers-share-out-rows",
    "Rows are grouped by their lengths, shared out to processes and completed at the end as documented; rebalanced "
    "micro-batches have each row of their update once, the most costly ones first.",
)
Options = Mapping[str, Any]


def _lengths(case: Numbers, number: int) -> list[int]:
    stream = random.Random(case.seed)
    return [stream.randint(1, 30) for _ in range(number)]


def grouped(lengths: Sequence[int], batch: int, generator: torch.Generator) -> list[int]:
    """Return an order in which neighbours have about equal lengths, and a longest row comes first.

    Rows are drawn in groups of up to 50 batches, a quarter of all where that is less; each group is sorted.
    """
    drawn = torch.randperm(len(lengths), generator=generator).tolist()
    size = batch * max(1, min(50, len(lengths) // (batch * 4)))
    groups = [
        sorted(drawn[start : start + size], key=lambda row: -lengths[row])
        for start in range(0, len(drawn), size)
    ]
    longest = max(groups, key=lambda group: lengths[group[0]])
    groups[0][0], longest[0] = longest[0], groups[0][0]
    return [row for group in groups for row in group]


def by_length(lengths: Sequence[int], batch: int, seed: int, form: str) -> list[int]:
    """Return the order of rows, whether lengths are given or read from rows."""
    return grouped(lengths, batch, torch.Generator().manual_seed(seed))


def shared_by_length(
    lengths: Sequence[int], batch: int, processes: int, epoch: int, options: Options
) -> list[list[int]]:
    """Return the rows of each process, every `processes`-th of an order of each epoch."""
    order = grouped(lengths, batch, torch.Generator().manual_seed(options["seed"] + epoch))
    number = len(lengths) // processes if options["drop_last"] else -(-len(lengths) // processes)
    order = [*order, *order][: number * processes]
    return [order[process::processes] for process in range(processes)]


def shared(number: int, batch: int, processes: int, drop: bool) -> list[list[int]]:
    """Return the rows of each process, a batch in turn; the first rows complete the last round unless it is dropped."""
    whole = batch * processes
    rounds = number // whole if drop else -(-number // whole)
    rows = [place % number for place in range(rounds * whole)]
    return [
        [row for place, row in enumerate(rows) if place // batch % processes == process]
        for process in range(processes)
    ]


def _length_cases(case: Numbers) -> Iterator[Arguments]:
    for number, batch in ((23, 2), (5, 3), (130, 1), (48, 4)):
        for form in ("lengths", "rows", "tensor"):
            yield _lengths(case, number), batch, case.seed + 3, form


def _shared_length_cases(case: Numbers) -> Iterator[Arguments]:
    for number, processes in ((23, 2), (24, 3), (7, 4)):
        for drop in (False, True):
            for epoch in (0, 2):
                yield _lengths(case, number), 2, processes, epoch, {"seed": 5, "drop_last": drop}


def _shares(case: Numbers) -> Iterator[Arguments]:
    for number in (12, 13, 5, 3):
        for batch, processes in ((2, 2), (1, 3), (4, 1)):
            for drop in (False, True):
                yield number, batch, processes, drop


SAMPLER_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="order by length",
        law="rows by their lengths",
        suspects="the shortest first, groups of another size, a longest row that comes late, rows twice",
        cases=_length_cases,
        right=by_length,
    ),
    Plain(
        name="shares by length",
        law="rows by their lengths, of processes",
        suspects="an epoch that draws the order of another, rows of another process, a cut that is ignored",
        cases=_shared_length_cases,
        right=shared_by_length,
    ),
    Plain(
        name="shares of rows",
        law="rows of processes",
        suspects="a batch of another process, a last round that is dropped or not completed",
        cases=_shares,
        right=shared,
    ),
    Plain(
        name="shares of a stream",
        law="rows of a stream of processes",
        suspects="a batch of another process, a last round that is dropped or completed by other rows",
        cases=_shares,
        right=shared,
    ),
)
add_laws(SAMPLERS, SAMPLER_FUNCTIONS)


def _cost(lengths: Sequence[int], rows: Sequence[int], weight: float) -> float:
    longest = max(lengths[row] for row in rows)
    return len(rows) * (longest + weight * longest**2)


@SAMPLERS.law(
    "rebalanced micro-batches",
    "rows left out, twice or of another update, groups less even than equal ones, an epoch in the order of another",
    excluded=without("rebalanced batches"),
)
def rebalanced_batches_have_their_rows(stack: Any, case: Numbers) -> Measure:
    """Check which rows updates have, that costs fall from one micro-batch to the next, and that they are evened out."""
    wrong = []
    for number, size, processes, parts in ((48, 16, 2, 2), (53, 12, 3, 2), (20, 8, 1, 2), (33, 16, 2, 4)):
        lengths = [length**2 for length in _lengths(case, number)]
        for shuffled, drop, epoch in ((True, True, 0), (True, False, 1), (False, False, 0)):
            options = {"shuffle": shuffled, "drop_last": drop, "seed": 7, "epoch": epoch}
            given = stack.utilities["rebalanced batches"](lengths, size, processes, parts, options)
            named = f"{number} rows, {size} an update, {processes} processes, {parts} parts, {options}"
            order = (
                torch.randperm(number, generator=torch.Generator().manual_seed(7 + epoch)).tolist()
                if shuffled
                else list(range(number))
            )
            updates = number // size if drop else -(-number // size)
            for update in range(updates):
                mine = [own[update * parts : (update + 1) * parts] for own in given]
                due = order[update * size : (update + 1) * size]
                due += order[: max(0, processes * parts - len(due))]
                if sorted(row for own in mine for part in own for row in part) != sorted(due):
                    wrong.append(f"update {update} has other rows: {named}")
                    continue
                slots = [[_cost(lengths, own[part], 0.001) for own in mine] for part in range(parts)]
                if any(max(later) > min(earlier) for earlier, later in itertools.pairwise(slots)):
                    wrong.append(f"costs of update {update} do not fall: {named}")
                ordered = sorted(due, key=lambda row: -lengths[row])
                groups = processes * parts
                even = [
                    ordered[len(due) * one // groups : len(due) * (one + 1) // groups]
                    for one in range(groups)
                ]
                spread = [cost for slot in slots for cost in slot]
                plain = [_cost(lengths, rows, 0.001) for rows in even]
                if len(due) % groups == 0 and max(spread) - min(spread) > max(plain) - min(plain) + 1e-6:
                    wrong.append(f"update {update} is less even than equal groups: {named}")
            if any(len(own) != updates * parts for own in given):
                wrong.append(f"{[len(own) for own in given]} micro-batches, due {updates * parts}: {named}")
    return Measure.count(wrong, "updates with other micro-batches")
