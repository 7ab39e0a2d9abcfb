"""Laws of advantages: they are those of the rewards, by a rule that fits every group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from seatrial.evidence.ledger.advantages import KNOWN_RULES, advantages_of, alike, groups_of
from seatrial.evidence.ledger.facts import AdvantageRule, LedgerFacts
from seatrial.evidence.ledger.laws.columns import by_step, having, missing
from seatrial.evidence.ledger.result import Fault, LawResult, at, not_exercised
from seatrial.evidence.ledger.schema import LedgerRow

ADVANTAGE_TOLERANCE = 1e-4
"""Relative to the largest advantage of the step; advantages are logged from float32."""
_BOUND = f"<= {ADVANTAGE_TOLERANCE:g} of the largest"
_NOTHING = 1e-9
_APART = 1e-3
"""Share of the range of a group's rewards from which on two of them are to have two advantages."""
_CHANGED = "rewards are changed before advantages here (KL in the reward): they cannot be worked out again"


class _Fit(NamedTuple):
    """How one rule does on a ledger."""

    rule: AdvantageRule
    faults: list[Fault]
    largest: float
    num_informative: int
    """Rows whose advantage is not 0 by the rule."""


def advantages_right(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """Logged advantages are those of the logged rewards, by the run's rule or else by one rule that fits all groups."""
    if facts.advantage_rules is not None and not facts.advantage_rules:
        return not_exercised(_CHANGED, _BOUND)
    known = having(rows, "reward", "advantage")
    by_token = having(rows, "token_advantages")
    if not known:
        reason = "advantages differ from token to token: no rule by rewards" if by_token else None
        return not_exercised(f"not exercised: {reason}" if reason else missing("reward", "advantage"), _BOUND)
    faults = [
        at(row, "its advantage differs from token to token, unlike the other rows'") for row in by_token
    ]
    steps = by_step([row for row in rows if row.reward is not None])
    best = _best_fit(facts.advantage_rules or KNOWN_RULES, steps)
    faults += best.faults
    if not best.num_informative and not faults:
        return not_exercised(
            "not triggered: every group has equal rewards, so every advantage is 0 whatever its sign",
            _BOUND,
            num_samples=len(known),
        )
    named = "" if facts.advantage_rules else f"; {best.rule.describe()} explains all of them"
    if best.faults and not facts.advantage_rules:
        first = best.faults[0]
        none_fits = (
            f" (no known estimator explains all rows; {best.rule.describe()} explains most; where rewards change "
            "before advantages, as by a KL in the reward, say --estimator undetermined)"
        )
        faults[faults.index(first)] = first._replace(what=first.what + none_fits)
    return LawResult(
        faults=sorted(faults, key=lambda fault: (fault.step, fault.row or 0)),
        num_samples=len(known),
        summary=f"{best.num_informative} of {len(known)} rows have an advantage that is not 0{named}",
        value=best.largest,
        bound=_BOUND,
    )


def _best_fit(rules: Sequence[AdvantageRule], steps: Mapping[int, Sequence[LedgerRow]]) -> _Fit:
    """Return the first rule that explains every row, or else the one that explains most."""
    best = _fit(rules[0], steps)
    for rule in rules[1:]:
        if not best.faults:
            break
        best = min(best, _fit(rule, steps), key=lambda fit: len(fit.faults))
    return best


def _fit(rule: AdvantageRule, steps: Mapping[int, Sequence[LedgerRow]]) -> _Fit:
    """Hold every row that has an advantage to a rule."""
    faults: list[Fault] = []
    largest, informative = 0.0, 0
    for rows in steps.values():
        wanted = advantages_of(rows, rule)
        finite = wanted[np.isfinite(wanted)]
        scale = max(1.0, float(np.abs(finite).max(initial=0.0)))
        noise = _rounding(rows, rule)
        for place, (row, right) in enumerate(zip(rows, wanted.tolist(), strict=True)):
            if row.advantage is None:
                continue
            gap = abs(row.advantage - right) / scale
            if gap <= noise.get(place, 0.0):
                gap = 0.0
            informative += bool(abs(right) > _NOTHING)
            if not gap <= ADVANTAGE_TOLERANCE:
                sign = " (opposite sign)" if right * row.advantage < 0 else ""
                faults.append(at(row, f"advantage {row.advantage:.6g}, the rewards give {right:.6g}{sign}"))
            if not gap <= largest:
                largest = gap
    return _Fit(rule, faults, largest, informative)


def _rounding(rows: Sequence[LedgerRow], rule: AdvantageRule) -> dict[int, float]:
    """Return what a mean in float32 may leave of each row in a group of equal rewards, by its place.

    Over an epsilon of 1e-4, as TRL has it, that is far below any advantage. Over a smaller one it is not, and the stack
    is to set such advantages to 0.
    """
    if rule.scale == "none" or rule.epsilon < 1e-5:
        return {}
    noise = {}
    for places in groups_of(rows):
        rewards = [rows[place].reward or 0.0 for place in places]
        if alike(rewards):
            one = max(map(abs, rewards))
            noise.update(dict.fromkeys(places, 2 * float(np.finfo(np.float32).eps) * one / rule.epsilon))
    return noise


def advantages_ordered(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """In a group the better reward has the larger advantage, equal rewards have equal ones, none if all are equal.

    This holds for every estimator that works by groups, known or not.
    """
    if facts.advantage_rules is not None and not facts.advantage_rules:
        return not_exercised(_CHANGED)
    known = having(rows, "reward", "advantage")
    if not known:
        return not_exercised(missing("reward", "advantage"))
    faults: list[Fault] = []
    groups = 0
    for of_step in by_step(known).values():
        for places in groups_of(of_step):
            if len(places) > 1:
                groups += 1
                faults += _disordered([of_step[place] for place in places])
    if not groups:
        return not_exercised("not exercised: no group has two rows")
    return LawResult(
        faults=faults, num_samples=groups, summary=f"{groups} groups in the order of their rewards"
    )


def _disordered(group: Sequence[LedgerRow]) -> Iterator[Fault]:
    """Yield the first row of a group whose advantage is not in the order of the rewards."""
    pairs = [(row.reward or 0.0, row.advantage or 0.0, row) for row in group]
    for reward, advantage, row in pairs:
        if not (math.isfinite(reward) and math.isfinite(advantage)):
            yield at(row, f"reward {reward:.6g} and advantage {advantage:.6g}: both should be finite")
            return
    slack = ADVANTAGE_TOLERANCE * max(1.0, *(abs(advantage) for _, advantage, _ in pairs))
    rewards = [reward for reward, _, _ in pairs]
    if alike(rewards):
        for _, advantage, row in pairs:
            if not abs(advantage) <= ADVANTAGE_TOLERANCE and not _by_batch(pairs):
                yield at(row, f"advantage {advantage:.6g} in a group of equal rewards")
                return
        return
    rewards_range = max(rewards) - min(rewards)
    ranked = sorted(pairs, key=lambda pair: pair[0])
    for (low, less, one), (high, more, other) in pairwise(ranked):
        # Rewards that are all but equal may round to one advantage; others may not.
        apart = (high - low) > _APART * rewards_range
        if high > low and not (more > less if apart else more >= less - slack):
            yield at(
                other,
                f"advantage {more:.6g} for reward {high:.6g}, and {less:.6g} for reward {low:.6g} in {one.where()}",
            )
            return
        if high == low and not abs(more - less) <= slack:
            yield at(
                other, f"advantage {more:.6g}, and {less:.6g} for the same reward {low:.6g} in {one.where()}"
            )
            return


def _by_batch(pairs: Sequence[tuple[float, float, LedgerRow]]) -> bool:
    """Whether all rows of a group of equal rewards share one advantage: a baseline of the batch, judged by the rule."""
    advantages = [advantage for _, advantage, _ in pairs]
    return max(advantages) - min(advantages) <= ADVANTAGE_TOLERANCE
