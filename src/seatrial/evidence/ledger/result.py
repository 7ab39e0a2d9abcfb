"""What a law says of a ledger, and how that becomes a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from seatrial.evidence.ledger.facts import LedgerFacts
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.verdict import Outcome, Verdict

_SHOWN = 3
_LISTED = 50


class Fault(NamedTuple):
    """One breach of a law."""

    step: int
    row: int | None
    """Place of the row in its step; None where no single row is at fault."""
    what: str

    def __str__(self) -> str:
        """Return it with its place: `step 2 row 5: ...`."""
        return f"step {self.step}{'' if self.row is None else f' row {self.row}'}{self.what}"


def at(row: LedgerRow, what: str) -> Fault:
    """Return a fault of one row."""
    return Fault(row.step, row.index, f": {what}")


@dataclass(frozen=True, kw_only=True)
class LawResult:
    """What a law found. Without faults and with nothing looked at, `not_exercised` says what would arm it."""

    faults: Sequence[Fault] = ()
    num_samples: int = 0
    """Rows, groups or tokens that it rests on."""
    summary: str = ""
    """What held, in a few words."""
    value: float | None = None
    bound: str | None = None
    not_exercised: str | None = None


Law = Callable[[Sequence[LedgerRow], LedgerFacts], LawResult]


def not_exercised(reason: str, bound: str | None = None, num_samples: int = 0) -> LawResult:
    """Return the result of a law that had nothing to judge."""
    return LawResult(not_exercised=reason, bound=bound, num_samples=num_samples)


def verdict_of(name: str, law: Law, rows: Sequence[LedgerRow], facts: LedgerFacts) -> Verdict:
    """Hold rows to a law: Fail names the rows, Skipped what would arm the law. No rows are no evidence: Fail."""
    result = law(rows, facts) if rows else LawResult()
    if result.faults:
        outcome, reason = Outcome.FAIL, _told(result.faults)
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


def _told(faults: Sequence[Fault]) -> str:
    more = f" (and {len(faults) - _SHOWN} more)" if len(faults) > _SHOWN else ""
    return "; ".join(str(fault) for fault in faults[:_SHOWN]) + more


def _place(fault: Fault) -> dict[str, int | None]:
    return {"step": fault.step, "index": fault.row}
