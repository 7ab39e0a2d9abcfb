"""Laws of advantages: recomputed from the rewards in float64, independently of any stack's code.

GRPO (arXiv 2402.03300): (r - mean) / (std + epsilon). Dr. GRPO (arXiv 2503.20783): r - mean. RLOO (arXiv
2402.14740): r minus the mean of the group's others. REINFORCE++ (arXiv 2501.03262): centred and scaled by the batch,
with a baseline: centred by the group. NeMo RL's leave-one-out GRPO scales by the deviation of the others, and leaves
a row unscaled where that is 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.ledger.law import Fault, LawResult, at, by_step, having, missing, not_exercised
from seatrial.evidence.ledger.schema import AdvantageRule, Centre, LedgerFacts, LedgerRow, Scale

Floats = npt.NDArray[np.float64]
_ROUNDING = 4 * float(np.finfo(np.float32).eps)
_EPSILONS = (1e-6, 1e-4, 1e-8)


def advantages_of(rows: Sequence[LedgerRow], rule: AdvantageRule) -> Floats:
    """Compute the advantages of one step's rows from their rewards, in float64; NaN where they cannot be.

    Args:
        rows: all rows of the step; a row without a reward counts as NaN.
        rule: how advantages follow from rewards.
    """
    rewards = np.array([np.nan if row.reward is None else row.reward for row in rows], dtype=np.float64)
    with np.errstate(all="ignore"):
        return _advantages(rewards, list(groups_of(rows)), rule)


def groups_of(rows: Sequence[LedgerRow]) -> Iterator[list[int]]:
    """Yield the places of each group's rows, in the order of their first row."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[row.group_key].append(place)
    yield from groups.values()


def _advantages(rewards: Floats, groups: list[list[int]], rule: AdvantageRule) -> Floats:
    centred = rewards - rewards.mean() if rule.centre == "batch" else np.zeros(len(rewards))
    within_group = np.zeros(len(rewards))
    divisor = np.ones(len(rewards))
    for places in groups:
        own = rewards[places]
        if alike(own.tolist()):
            continue
        within_group[places] = own - own.mean()
        if rule.centre == "group":
            centred[places] = own - own.mean()
        elif rule.centre == "others":
            centred[places] = own - _mean_of_others(own)
        if rule.scale == "group":
            divisor[places] = _deviation(own, rule) + rule.epsilon
        elif rule.scale == "others":
            divisor[places] = [_divisor_of_others(own, place, rule) for place in range(len(own))]
    if rule.scale == "batch":
        divisor[:] = _deviation(rewards, rule) + rule.epsilon
    elif rule.scale == "batch_centred":
        divisor[:] = _deviation(within_group, rule) + rule.epsilon
    # 0 / 0 is a group of equal rewards under a rule without epsilon: it has no signal.
    return np.where((centred == 0) & (divisor == 0), 0.0, centred / np.where(divisor == 0, np.nan, divisor))


def alike(rewards: Sequence[float]) -> bool:
    """Whether rewards differ by at most the rounding of float32: such a group has no signal."""
    spread = max(rewards) - min(rewards)
    return spread < float("inf") and spread <= _ROUNDING * max(map(abs, rewards))


def _mean_of_others(rewards: Floats) -> Floats:
    """Return for each reward the mean of the others; itself in a group of one."""
    number = len(rewards)
    return (rewards.sum() - rewards) / (number - 1) if number > 1 else rewards


def _divisor_of_others(rewards: Floats, place: int, rule: AdvantageRule) -> float:
    deviation = _deviation(np.delete(rewards, place), rule)
    return deviation + rule.epsilon if deviation > 0 else 1.0


def _deviation(values: Floats, rule: AdvantageRule) -> float:
    return float(values.std(ddof=0 if rule.population else 1)) if len(values) > 1 else 0.0


def rule_named(estimator: str, scale: str, epsilon: float) -> AdvantageRule:
    """Return the rule that a configuration of refrl names.

    Args:
        estimator: grpo, dr_grpo, rloo or reinforce_plus_plus_baseline.
        scale: group, batch or none.
        epsilon: added to the deviation.

    Raises:
        ValueError: the scale is unknown.
    """
    scales: dict[str, Scale] = {"none": "none", "group": "group", "batch": "batch"}
    if scale not in scales:
        raise ValueError(f"unknown scale of advantages {scale!r}; known: {', '.join(scales)}")
    over_centred = scale == "batch" and estimator == "reinforce_plus_plus_baseline"
    return AdvantageRule(
        family=estimator,
        centre="others" if estimator == "rloo" else "group",
        scale="batch_centred" if over_centred else scales[scale],
        epsilon=0.0 if scale == "none" else epsilon,
    )


_SCALED: tuple[tuple[str, Centre, Scale], ...] = (
    ("grpo", "group", "group"),
    ("grpo", "group", "batch"),
    ("grpo", "others", "others"),
    ("rloo", "others", "group"),
    ("rloo", "others", "batch"),
    ("reinforce_plus_plus_baseline", "group", "batch_centred"),
    ("reinforce_plus_plus", "batch", "batch"),
)

KNOWN_RULES: tuple[AdvantageRule, ...] = (
    AdvantageRule(family="dr_grpo", centre="group"),
    AdvantageRule(family="rloo", centre="others"),
    *(
        AdvantageRule(family=family, centre=centre, scale=scale, epsilon=epsilon, population=population)
        for population in (False, True)
        for epsilon in _EPSILONS
        for family, centre, scale in _SCALED
    ),
)
"""Every rule that known stacks use; a ledger of an unknown run is checked against the one that fits best."""
FAMILIES: tuple[str, ...] = tuple(sorted({rule.family for rule in KNOWN_RULES}))
"""Their names."""


def rules_of(family: str) -> tuple[AdvantageRule, ...]:
    """Return the rules of one family."""
    return tuple(rule for rule in KNOWN_RULES if rule.family == family)


ADVANTAGE_TOLERANCE = 1e-4
"""Relative to the largest advantage of the step; advantages are logged from float32."""
_BOUND = f"<= {ADVANTAGE_TOLERANCE:g} of the largest"
_NOTHING = 1e-9
_APART = 1e-3
"""Two rewards of a group that differ by more than this share of its range must have different advantages."""
_UNDETERMINED = (
    "the rewards do not determine the advantages: no estimator is given, or a KL in the reward changes rewards "
    "before them"
)


class _Fit(NamedTuple):
    """How well one rule explains a ledger."""

    rule: AdvantageRule
    faults: list[Fault]
    largest: float
    num_informative: int
    """Rows whose advantage is not 0 by the rule."""


def advantages_right(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """Logged advantages are those of the logged rewards, by the run's rule or else by one rule that fits all groups."""
    if facts.advantage_rules is not None and not facts.advantage_rules:
        return not_exercised(_UNDETERMINED, _BOUND)
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
            "not triggered: every group has equal rewards, so every advantage is 0 with either sign",
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
    """Check every row that has an advantage against a rule."""
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

    Divided by an epsilon of 1e-4, as in TRL, that is far below any advantage. Divided by a smaller one it is not, and
    the stack must set such advantages to 0.
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
        return not_exercised(_UNDETERMINED)
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
        # Nearly equal rewards may round to one advantage; others may not.
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
