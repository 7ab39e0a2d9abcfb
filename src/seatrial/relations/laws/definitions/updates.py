"""R35.updates: a step's rows are cut by the options that are about them, and each update is taken once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.definitions.made import Seeded, seeded, without
from seatrial.relations.worst import relative_error

LENGTHS: Sequence[tuple[int, int]] = (
    (3, 2),
    (1, 5),
    (4, 1),
    (2, 2),
    (6, 4),
    (1, 1),
    (3, 3),
    (2, 6),
    (1, 2),
    (5, 5),
)
"""Tokens of prompt and completion of each row."""
LONGEST = 12
CUTS: Sequence[Mapping[str, Any]] = (
    {"train_micro_batch_size": 3, "logprob_batch_size": 4},
    {"train_micro_batch_size": 1, "logprob_batch_size": 64},
    *(
        {f"{form}.enabled": True, "train_micro_batch_size": 2, "logprob_batch_size": 3, **budgets}
        for form in ("dynamic_batching", "sequence_packing")
        for budgets in (
            {},
            {f"{form}.train_mb_tokens": 13},
            {f"{form}.logprob_mb_tokens": 15},
            {f"{form}.train_mb_tokens": 19, f"{form}.logprob_mb_tokens": 12},
        )
    ),
)
"""Options of the policy, dotted within it."""

UPDATES = Relation(
    id="R35.updates",
    name="steps-are-cut-as-configured",
    component="definitions",
    statement="Micro-batches hold each row once, within the sizes and budgets of their own pass; updates are taken in "
    "the order of the rows, and a step reports their means.",
    catalogue="SB097 SB098 SB099 SB102 SB155 SB217",
    cost="CPU, milliseconds",
    cases=seeded,
    seeded=False,
)


@UPDATES.law(
    "micro-batches are those of their pass",
    "the size of training for scoring, the budget of another form, padding that is not counted",
    excluded=without("cuts"),
)
def micro_batches_of_their_pass(stack: Any, case: Seeded) -> Measure:
    """Cut rows of unequal length for training and for scoring, and compare rows and tokens with the options."""
    wrong = []
    for options in CUTS:
        given = {**options, "max_total_sequence_length": LONGEST}
        cuts = stack.definitions["cuts"](given, LENGTHS)
        for name, size, budget in (
            ("train", "train_micro_batch_size", "train_mb_tokens"),
            ("score", "logprob_batch_size", "logprob_mb_tokens"),
        ):
            wrong += [
                f"{name} with {dict(options)}: {why}" for why in _cut_wrong(options, cuts[name], size, budget)
            ]
    return Measure.count(wrong, "micro-batches that are not those of the options")


def _cut_wrong(
    options: Mapping[str, Any], parts: Sequence[Sequence[int]], size: str, budget: str
) -> list[str]:
    """Return what is wrong with the rows of each micro-batch."""
    rows = [row for part in parts for row in part]
    found = [f"rows {rows}"] * (sorted(rows) != list(range(len(LENGTHS))))
    form = next(
        (name for name in ("dynamic_batching", "sequence_packing") if options.get(f"{name}.enabled")), None
    )
    if form is None:
        due = [
            list(range(len(LENGTHS)))[first : first + options[size]]
            for first in range(0, len(rows), options[size])
        ]
        return found + [f"{parts}, expected {due}"] * ([list(part) for part in parts] != due)
    most = options.get(f"{form}.{budget}") or options[size] * LONGEST
    tokens = [_tokens(part, packed=form == "sequence_packing") for part in parts]
    found += [f"{max(tokens)} tokens, allowed {most}"] * (max(tokens) > most)
    # Filled before the next is opened: two neighbours that would fit together were not.
    merged = [_tokens([*one, *other], packed=form == "sequence_packing") for one, other in pairwise(parts)]
    return found + [f"two of {tokens} tokens fit into {most}"] * (bool(merged) and min(merged) <= most)


def _tokens(rows: Sequence[int], *, packed: bool) -> int:
    """Return how many tokens a micro-batch has, padding included."""
    if packed:
        return sum(sum(LENGTHS[row]) for row in rows)
    return len(rows) * (max(LENGTHS[row][0] for row in rows) + max(LENGTHS[row][1] for row in rows))


STEPS: Sequence[tuple[str, Sequence[int], int, Sequence[float]]] = (
    ("one update", (1, 1, 1), 3, (2.0,)),
    ("an update of fewer rows", (1, 1, 0, 1, 1), 2, (2.0, 3.0, 5.0)),
    ("an update of masked rows", (1, 1, 0, 0, 1, 1), 2, (2.0, 5.0)),
    ("more rows than there are", (1, 0), 8, (2.0,)),
    ("a norm that is not finite", (1, 1, 1, 1, 1, 1), 2, (2.0, math.nan, 5.0)),
)
"""By name: which rows train, the rows of an update, the norm of the gradient of each update."""


@UPDATES.law(
    "updates are those of the rows",
    "masked updates that count, rows numbered within their update, the last rate for the mean, scores used twice",
    excluded=without("updates"),
)
def updates_of_the_rows(stack: Any, case: Seeded) -> Measure:
    """Take the updates of steps, and compare the rows of each, what is observed, and what is reported."""
    wrong = []
    for name, trains, size, norms in STEPS:
        for scored in (False, True):
            taken = stack.definitions["updates"](trains, size, norms, scored)
            due = [
                (first, list(range(first, min(first + size, len(trains)))))
                for first in range(0, len(trains), size)
                if any(trains[first : first + size])
            ]
            last = next(
                (number for number, norm in enumerate(norms, 1) if not math.isfinite(norm)), len(norms)
            )
            due = due[:last]
            scores = len(trains) <= size and not scored
            wrong += [f"{name}: {why}" for why in _steps_wrong(taken, due, norms[:last], scores)]
    return Measure.count(wrong, "updates that are not those of the rows")


def _steps_wrong(
    taken: Any, due: Sequence[tuple[int, list[int]]], norms: Sequence[float], scores: bool
) -> list[str]:
    found = [f"updates of {taken.rows}, expected {[rows for _, rows in due]}"] * (
        taken.rows != [rows for _, rows in due]
    )
    found += [f"scores {taken.scores}"] * (taken.scores != [scores] * len(due))
    found += [f"observed {taken.observed}"] * (taken.observed != [(first, rows) for first, rows in due])
    rates = [0.1 * (number + 1) for number in range(len(due))]
    expected = {
        "grad_norm": sum(norms) / len(norms),
        "lr": sum(rates) / len(rates),
        # Each update's loss is its number: sums over an update, means over updates.
        "loss": sum(range(1, len(due) + 1)) / len(due),
    }
    for name, value in expected.items():
        same = math.isnan(value) and math.isnan(taken.metrics[name])
        if not same and not relative_error(taken.metrics[name], value) <= 1e-9:
            found.append(f"{name} {taken.metrics[name]}, expected {value}")
    return found
