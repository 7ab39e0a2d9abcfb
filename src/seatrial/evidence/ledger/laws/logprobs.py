"""Laws of log-probabilities: possible, the row's own, equal between sampler and trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seatrial.evidence.ledger.law import Fault, LawResult, at, having, missing, not_exercised
from seatrial.evidence.ledger.schema import LedgerFacts, LedgerRow

ROUNDING = 1e-5
"""Nats above 0 that a log-softmax in float32 may come out at."""
_MIN_TOKENS = 3
"""From this many tokens on, equal log-probabilities of different tokens are not due to chance."""
_COLUMNS = ("generation_logprobs", "prev_logprobs", "reference_logprobs")


class Agreement(NamedTuple):
    """How far sampler and trainer may differ, in nats."""

    token: float
    """Any one token."""
    row: float
    """Mean over the tokens of a row of at least eight."""
    mean_error: float
    """Mean over all tokens of exp(|difference|), less 1; NeMo RL's bound on `token_mult_prob_error`."""


AGREEMENT = {
    "float32": Agreement(token=1e-4, row=1e-4, mean_error=1e-4),
    "bfloat16": Agreement(token=2.0, row=0.25, mean_error=0.05),
    "int8": Agreement(token=0.5, row=0.1, mean_error=0.05),
    "float16": Agreement(token=1.0, row=0.1, mean_error=0.05),
}
"""Hand-set, by the precision of the trainer, or of the sampler where it is coarser.
Engines in half precision differ by 0.02 to 0.05 nats on unlikely tokens."""
_LONG_ROW = 8
_LEAST_TOKENS = 100
"""From so many tokens on, rows without a known precision show their own."""


def estimated_agreement(gaps: Sequence[float]) -> Agreement | None:
    """Return the bounds that rows of unknown precision show by nine in ten of their tokens; None of too few tokens.

    One token may differ by 50 times the 90th percentile and 0.05 nats in any case, a row on average by ten times and
    0.02, and neither by more than in bfloat16. Faults of up to a tenth of the tokens leave the percentile. Hand-set.
    """
    finite = sorted(gap for gap in gaps if math.isfinite(gap))
    if len(finite) < _LEAST_TOKENS:
        return None
    usual, most = finite[len(finite) * 9 // 10], AGREEMENT["bfloat16"]
    token = min(most.token, max(0.05, 50 * usual))
    return Agreement(token=token, row=min(most.row, max(0.02, 10 * usual)), mean_error=most.mean_error)


def logprobs_possible(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """Log-probabilities are finite and at most 0, differ between tokens, and are no other row's."""
    columns = [(name, having(rows, name)) for name in _COLUMNS]
    if not any(known for _, known in columns):
        return not_exercised(missing(" or ".join(_COLUMNS)))
    faults: list[Fault] = []
    for name, known in columns:
        for row in known:
            faults += _impossible(row, name)
        faults += _constant(known, name)
        faults += _shared(known, name)
    faults += _sampled_outside_support(rows)
    tokens = sum(len(getattr(row, name)) for name, known in columns for row in known)
    return LawResult(
        faults=faults, num_samples=tokens, summary=f"{tokens} log-probabilities", bound=f"<= {ROUNDING:g}"
    )


def _impossible(row: LedgerRow, name: str) -> Iterator[Fault]:
    for token, value in enumerate(getattr(row, name)):
        if not (math.isfinite(value) and value <= ROUNDING):
            yield at(row, f"token {token} has {name} {value:.6g}")
            return


def _constant(rows: Sequence[LedgerRow], name: str) -> Iterator[Fault]:
    """Yield a fault where every token of the ledger that had a choice has one and the same log-probability."""
    drawn = [
        (value, size)
        for row in rows
        for value, size in zip(
            getattr(row, name), row.kept_support_sizes or (None,) * len(getattr(row, name)), strict=False
        )
    ]
    values = {value for value, size in drawn if size is None or size > 1}
    tokens = {token for row in rows for token in row.sampled_ids}
    number = sum(size is None or size > 1 for _, size in drawn)
    if len(values) == 1 and len(tokens) > 1 and number > _LONG_ROW and rows:
        (value,) = values
        yield at(rows[0], f"{name} is {value:.6g} for all {number} tokens of the ledger")


def _shared(rows: Sequence[LedgerRow], name: str) -> Iterator[Fault]:
    """Yield rows that have the log-probabilities of another row with other tokens."""
    seen: dict[tuple[float, ...], LedgerRow] = {}
    for row in rows:
        values = getattr(row, name)
        if row.token_ids is None or len(values) < _MIN_TOKENS or len(set(values)) < _MIN_TOKENS:
            continue
        other = seen.setdefault(values, row)
        if other is not row and other.sampled_ids != row.sampled_ids:
            yield at(row, f"its {name} are those of {other.where()}, whose tokens are others")


def _sampled_outside_support(rows: Sequence[LedgerRow]) -> Iterator[Fault]:
    """Yield tokens of a filtered draw with an impossible probability: the only token left has probability 1."""
    for row in having(rows, "kept_support_sizes", "generation_logprobs"):
        pairs = zip(row.kept_support_sizes or (), row.generation_logprobs or (), strict=False)
        for token, (size, logprob) in enumerate(pairs):
            if size < 1 and logprob != 0:
                yield at(row, f"token {token} was drawn from a support of {size} tokens")
                break
            if size == 1 and not abs(logprob) <= ROUNDING:
                yield at(
                    row, f"token {token} was the only one left, at log-probability {logprob:.6g} and not 0"
                )
                break


def sampler_agrees(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """The log-probability that each sampled token had is the one that training computes for it.

    Rows that older weights sampled are left out: theirs should differ.
    """
    stated = AGREEMENT.get(facts.precision or "bfloat16", AGREEMENT["bfloat16"])
    bound_text = f"<= {stated.token:g}"
    logged = having(rows, "generation_logprobs", "prev_logprobs")
    known = [row for row in logged if not is_stale(row, facts.num_updates_per_step)]
    if not logged:
        return not_exercised(missing("generation_logprobs", "prev_logprobs"), bound_text)
    if not known:
        return not_exercised(
            "not exercised: every row was sampled by older weights than it was trained at", bound_text
        )
    faults: list[Fault] = []
    gaps = [_gaps(row) for row in known]
    tokens = [gap for of_row in gaps for gap in of_row]
    estimate = None if facts.precision else estimated_agreement(tokens)
    bound = estimate or stated
    bound_text = f"<= {bound.token:.3g}"
    for row, of_row in zip(known, gaps, strict=True):
        faults += _disagreements(row, of_row, bound)
    faults += _mean_disagreement(known, tokens, bound)
    largest = math.nan if any(math.isnan(gap) for gap in tokens) else max(tokens, default=0.0)
    held = f"held as {facts.precision}" if facts.precision else "precision not known: held as bfloat16"
    if estimate:
        held = "precision not known: bound estimated from the rows, 50 times the difference of nine in ten tokens"
    left_out = (
        f"; {len(logged) - len(known)} rows by older weights left out" if len(known) < len(logged) else ""
    )
    return LawResult(
        faults=faults,
        num_samples=len(tokens),
        summary=f"largest difference of {len(tokens)} tokens, {held}{left_out}",
        value=largest,
        bound=bound_text,
    )


def is_stale(row: LedgerRow, num_updates: int) -> bool:
    """Whether a row says that older weights sampled it than it was trained at; versions count updates."""
    return row.weight_version is not None and row.weight_version < num_updates * (row.step - 1)


def _gaps(row: LedgerRow) -> list[float]:
    pairs = zip(row.generation_logprobs or (), row.prev_logprobs or (), strict=False)
    return [abs(sampled - scored) for sampled, scored in pairs]


def _disagreements(row: LedgerRow, gaps: Sequence[float], bound: Agreement) -> Iterator[Fault]:
    for token, gap in enumerate(gaps):
        # Not "gap > bound": a NaN must not pass.
        if not gap <= bound.token:
            sampled, scored = (row.generation_logprobs or ())[token], (row.prev_logprobs or ())[token]
            yield Fault(
                row.step, row.index, f" token {token}: sampled at {sampled:.6f}, scored at {scored:.6f}"
            )
    if len(gaps) >= _LONG_ROW and math.fsum(gaps) / len(gaps) > bound.row:
        mean = math.fsum(gaps) / len(gaps)
        yield at(row, f"sampler and trainer differ by {mean:.4g} on average, allowed is {bound.row:g}")


def _mean_disagreement(rows: Sequence[LedgerRow], gaps: Sequence[float], bound: Agreement) -> Iterator[Fault]:
    finite = [min(gap, 50.0) for gap in gaps if math.isfinite(gap)]
    error = math.fsum(math.expm1(gap) for gap in finite) / len(finite) if finite else 0.0
    if error > bound.mean_error and rows:
        steps = sorted({row.step for row in rows})
        yield Fault(
            steps[0],
            None,
            f" to {steps[-1]}: tokens are {error:.4g} more or less likely on average, allowed is {bound.mean_error:g}",
        )
