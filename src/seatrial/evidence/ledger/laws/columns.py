"""Which rows have what a law needs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from seatrial.evidence.ledger.schema import LedgerRow

_CHANCE = 1e-6
"""Of a false alarm over a whole ledger."""


def having(rows: Sequence[LedgerRow], *columns: str) -> list[LedgerRow]:
    """Return the rows that have all of these columns."""
    return [row for row in rows if all(getattr(row, column) is not None for column in columns)]


def missing(*columns: str) -> str:
    """Return what a law says that no row has the columns for."""
    return f"not exercised: needs {' and '.join(columns)}, which no row has"


def by_step(rows: Sequence[LedgerRow]) -> Mapping[int, list[LedgerRow]]:
    """Return the rows of each step, in the order of steps."""
    steps: dict[int, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        steps[row.step].append(row)
    return dict(sorted(steps.items()))


def beyond_chance(row: LedgerRow, num_rows: int) -> bool:
    """Whether a row's completion is too unlikely to be sampled twice among `num_rows` rows.

    The chance that a row repeats one of at most n others is below n times its own probability, and there are n rows
    that could: n * n * p < 1e-6. The log-probabilities are those that the tokens were drawn with.
    """
    logprobs = row.generation_logprobs
    if not logprobs or not all(math.isfinite(value) for value in logprobs):
        return False
    return math.fsum(logprobs) + 2 * math.log(max(num_rows, 1)) < math.log(_CHANCE)
