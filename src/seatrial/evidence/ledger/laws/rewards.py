"""Laws of rewards: there, finite, the completion's own, from a verifier that worked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from seatrial.evidence.ledger.facts import LedgerFacts
from seatrial.evidence.ledger.laws.columns import having, missing
from seatrial.evidence.ledger.result import Fault, LawResult, at, not_exercised
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.ledger.verifiers import REWARDS, answer_of

REWARD_TOLERANCE = 1e-6
"""Rewards are logged from float32."""


def rewards_finite(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """Every reward is a finite number."""
    known = having(rows, "reward")
    if not known:
        return not_exercised(missing("reward"))
    faults = [
        at(row, f"the reward is {row.reward}")
        for row in known
        if row.reward is None or not math.isfinite(row.reward)
    ]
    distinct = len({row.reward for row in known})
    return LawResult(faults=faults, num_samples=len(known), summary=f"{distinct} different rewards")


def verifier_worked(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """The verifier failed on no more than the stated share of rows."""
    bound = f"<= {facts.max_verifier_error_share:.0%}"
    if not having(rows, "verifier_error"):
        return not_exercised(missing("verifier_error"), bound)
    failed = [row for row in rows if row.verifier_error]
    share = len(failed) / len(rows)
    faults = [at(row, "the verifier failed on it") for row in failed]
    return LawResult(
        faults=faults if share > facts.max_verifier_error_share else (),
        num_samples=len(rows),
        summary=f"the verifier failed on {len(failed)} of {len(rows)} rows",
        value=share,
        bound=bound,
    )


def rewards_right(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """The logged reward of each row is the reward of that row's own completion for its own prompt."""
    known = having(rows, "reward", "prompt", "completion")
    if not known:
        return not_exercised(missing("reward", "prompt", "completion"))
    others = [row for row in known if facts.verifier and row.verifier not in (None, facts.verifier)]
    if others:
        what = f"rewarded by {others[0].verifier}, the run asks for {facts.verifier}"
        return LawResult(faults=[at(row, what) for row in others], num_samples=len(known))
    ruled = [row for row in known if _rule_of(row, facts) in REWARDS]
    if not ruled:
        name = _rule_of(known[0], facts)
        return not_exercised(
            f"there is no independent rule for verifier {name!r}"
            if name
            else "not exercised: needs the name of the verifier (a column `verifier`, or --verifier)"
        )
    answered = [row for row in ruled if _answer(row) is not None and not row.verifier_error]
    if not answered:
        return not_exercised(
            f"there is no answer for prompts such as {ruled[0].prompt!r}, worked out or logged"
        )
    faults: list[Fault] = []
    largest = 0.0
    for row in answered:
        of_row, gap = _compare(row, facts)
        faults += of_row
        if not gap <= largest:
            largest = gap
    return LawResult(
        faults=faults,
        num_samples=len(answered),
        summary="each row has the reward of its own completion",
        value=largest,
        bound=f"<= {REWARD_TOLERANCE:g}",
    )


def _rule_of(row: LedgerRow, facts: LedgerFacts) -> str | None:
    return row.verifier or facts.verifier


def _answer(row: LedgerRow) -> str | None:
    """Return the answer that the prompt's own words give, or the logged one where they say nothing to us."""
    worked_out = answer_of(row.prompt or "")
    return row.answer if worked_out is None else worked_out


def _compare(row: LedgerRow, facts: LedgerFacts) -> tuple[list[Fault], float]:
    """Return what is wrong with a row's answer and reward, and how far the reward is off."""
    answer = _answer(row) or ""
    logged = math.nan if row.reward is None else row.reward
    earned = REWARDS[_rule_of(row, facts) or ""](row.completion or "", answer) + (row.length_penalty or 0.0)
    faults = []
    if row.answer is not None and answer != row.answer:
        faults.append(at(row, f"the answer of {row.prompt!r} is {answer!r}, logged is {row.answer!r}"))
    gap = abs(logged - earned)
    if not gap <= REWARD_TOLERANCE:
        faults.append(
            at(row, f"{row.completion!r} for {row.prompt!r} earns {earned:.6g}, logged is {logged:.6g}")
        )
    return faults, gap
