"""Advantages worked out again from rewards, apart from any stack's own code, in float64.

GRPO (arXiv 2402.03300): (r - mean) / (std + epsilon). Dr. GRPO (arXiv 2503.20783): r - mean. RLOO (arXiv
2402.14740): r minus the mean of the group's others. REINFORCE++ (arXiv 2501.03262): centred and scaled by the batch,
with a baseline: centred by the group. NeMo RL's leave-one-out GRPO scales by the deviation of the others, and leaves
a row alone where that is 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from seatrial.evidence.ledger.facts import AdvantageRule, Centre, Scale
from seatrial.evidence.ledger.schema import LedgerRow

Floats = npt.NDArray[np.float64]
_ROUNDING = 4 * float(np.finfo(np.float32).eps)
_EPSILONS = (1e-6, 1e-4, 1e-8)


def advantages_of(rows: Sequence[LedgerRow], rule: AdvantageRule) -> Floats:
    """Work out the advantages of one step's rows from their rewards, in float64; NaN where they cannot be.

    Args:
        rows: all rows of the step; a row without a reward counts as NaN.
        rule: the way from rewards to advantages.
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
    """Whether rewards differ by no more than rounding in float32: such a group has no signal."""
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
"""Every rule that stacks of the field use; a ledger whose run is not known is held to the one that fits it best."""
FAMILIES: tuple[str, ...] = tuple(sorted({rule.family for rule in KNOWN_RULES}))
"""Their names."""


def rules_of(family: str) -> tuple[AdvantageRule, ...]:
    """Return the rules of one family."""
    return tuple(rule for rule in KNOWN_RULES if rule.family == family)
