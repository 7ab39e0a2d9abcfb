"""What a law of the ledger is: what it finds, how that becomes a verdict, and which rows have the columns it needs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seatrial.evidence.ledger.schema import LedgerFacts, LedgerRow
from seatrial.verdict import Outcome, Verdict

_SHOWN = 3
_LISTED = 50


class Fault(NamedTuple):
    """One violation of a law."""

    step: int
    row: int | None
    """Index of the row in its step; None where no single row is at fault."""
    what: str

    def __str__(self) -> str:
        """Return it with its place: `step 2 row 5: ...`."""
        return f"step {self.step}{'' if self.row is None else f' row {self.row}'}{self.what}"


def at(row: LedgerRow, what: str) -> Fault:
    """Return a fault of one row."""
    return Fault(row.step, row.index, f": {what}")


@dataclass(frozen=True, kw_only=True)
class LawResult:
    """What a law found. Without faults and with nothing to judge, `not_exercised` says what it needs."""

    faults: Sequence[Fault] = ()
    num_samples: int = 0
    """Rows, groups or tokens that it is based on."""
    summary: str = ""
    """What was confirmed, in a few words."""
    value: float | None = None
    bound: str | None = None
    not_exercised: str | None = None


Law = Callable[[Sequence[LedgerRow], LedgerFacts], LawResult]


def not_exercised(reason: str, bound: str | None = None, num_samples: int = 0) -> LawResult:
    """Return the result of a law that had nothing to judge."""
    return LawResult(not_exercised=reason, bound=bound, num_samples=num_samples)


def verdict_of(name: str, law: Law, rows: Sequence[LedgerRow], facts: LedgerFacts) -> Verdict:
    """Check rows against a law: Fail names the rows, Skipped what the law needs. No rows are no evidence: Fail."""
    result = law(rows, facts) if rows else LawResult()
    if result.faults:
        outcome, reason = Outcome.FAIL, _summarise(result.faults)
    elif not rows:
        outcome, reason = Outcome.FAIL, "the ledger holds no rows"
    elif result.not_exercised or not result.num_samples:
        outcome, reason = Outcome.SKIPPED, result.not_exercised or "no row has what this law looks at"
    else:
        outcome, reason = Outcome.PASS, result.summary
    steps = [row.step for row in rows]
    return Verdict(
        name=name,
        outcome=outcome,
        reason=reason,
        value=result.value,
        bound=result.bound,
        num_samples=result.num_samples,
        steps=(min(steps), max(steps)) if steps else None,
        source="hand-set",
        details={"rows": [_place(fault) for fault in result.faults[:_LISTED]]} if result.faults else {},
    )


def _summarise(faults: Sequence[Fault]) -> str:
    more = f" (and {len(faults) - _SHOWN} more)" if len(faults) > _SHOWN else ""
    return "; ".join(str(fault) for fault in faults[:_SHOWN]) + more


def _place(fault: Fault) -> dict[str, int | None]:
    return {"step": fault.step, "index": fault.row}


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
