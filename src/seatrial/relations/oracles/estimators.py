"""Float64 oracles of advantages of tokens, one row and one token at a time (`contracts.estimators` has the sources)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from seatrial.relations.contracts.estimators import EstimatorSpec


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """The trained tokens of a row, in their order; values, variances and rewards have one number for each."""

    prompt_id: int
    rewards: tuple[float, ...]
    values: tuple[float, ...]
    variances: tuple[float, ...]
    """1 - 2 p + sum of p squared."""
    baseline: float
    components: tuple[float, ...]

    @property
    def score(self) -> float:
        """The sum of its rewards."""
        return math.fsum(self.rewards)

    def returns(self, gamma: float) -> list[float]:
        """Return the discounted sum of rewards from each token on."""
        found: list[float] = []
        for reward in reversed(self.rewards):
            found.insert(0, reward + gamma * (found[0] if found else 0.0))
        return found


Tokens = list[list[float]]


def advantages(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    """Return the advantages of the trained tokens of each row."""
    found = _ESTIMATORS[spec.kind](rows, spec)
    return _whitened(found, spec) if spec.whitened else found


def returns(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    """Return the returns of the trained tokens of each row, of an estimator of `OWN_RETURNS`."""
    if spec.kind == "gae":
        return [
            [advantage + value for advantage, value in zip(own, row.values, strict=True)]
            for own, row in zip(_gae(rows, spec), rows, strict=True)
        ]
    return [row.returns(spec.gamma) for row in rows]


def groups_of(rows: Sequence[TokenRow]) -> list[list[int]]:
    """Return the places of the rows of each group."""
    groups: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.prompt_id, []).append(place)
    return list(groups.values())


def _whitened(tokens: Tokens, spec: EstimatorSpec) -> Tokens:
    flat = [value for row in tokens for value in row]
    mean = math.fsum(flat) / len(flat)
    count = len(flat) - (1 if spec.whitened_unbiased else 0)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in flat) / count)
    return [[(value - mean) / spread if spread else 0.0 for value in row] for row in tokens]


def _spread(rows: Sequence[TokenRow], scores: Sequence[float]) -> Tokens:
    """Return each row's score at each of its tokens."""
    return [[score] * len(row.rewards) for row, score in zip(rows, scores, strict=True)]


def _gae(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    found = []
    for row in rows:
        own: list[float] = []
        for place in reversed(range(len(row.rewards))):
            last = place + 1 == len(row.rewards)
            following = 0.0 if last else row.values[place + 1]
            error = row.rewards[place] + spec.gamma * following - row.values[place]
            own.insert(0, error + (0.0 if last else spec.gamma * spec.lam * own[0]))
        found.append(own)
    return found


def _of_groups(
    rows: Sequence[TokenRow],
    scores: Sequence[float],
    spec: EstimatorSpec,
    rule: Callable[[list[float]], list[float]],
) -> list[float]:
    """Return what a rule makes of the scores of each group; the only row of a group has what `alone` says."""
    found = [0.0] * len(rows)
    for group in groups_of(rows):
        if len(group) == 1 and spec.alone is not None:
            found[group[0]] = _alone(scores[group[0]], spec)
            continue
        for place, value in zip(group, rule([scores[place] for place in group]), strict=True):
            found[place] = value
    return found


def _alone(score: float, spec: EstimatorSpec) -> float:
    if spec.alone == "zero":
        return 0.0
    return score / (1.0 + spec.epsilon) if spec.scaled and spec.kind in ("grpo", "gdpo") else score


def _centred(scores: list[float]) -> list[float]:
    mean = math.fsum(scores) / len(scores)
    return [score - mean for score in scores]


def _deviation(scores: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value**2 for value in _centred(list(scores))) / (len(scores) - 1))


def _normal(scores: list[float], spec: EstimatorSpec) -> list[float]:
    divisor = _deviation(scores) + spec.epsilon if spec.scaled else 1.0
    return [value / divisor for value in _centred(scores)]


def _grpo(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    return _spread(rows, _of_groups(rows, [row.score for row in rows], spec, lambda own: _normal(own, spec)))


def _gdpo(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    total = [0.0] * len(rows)
    for number, weight in enumerate(spec.weights):
        own = _of_groups(
            rows, [row.components[number] for row in rows], spec, lambda part: _normal(part, spec)
        )
        total = [value + weight * more for value, more in zip(total, own, strict=True)]
    return _spread(rows, total)


def _passk(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    def rule(scores: list[float]) -> list[float]:
        first, second = sorted(scores, reverse=True)[:2]
        margin = (first - second) / (_deviation(scores) + spec.epsilon if spec.scaled else 1.0)
        return [margin if place == scores.index(first) else 0.0 for place in range(len(scores))]

    return _spread(rows, _of_groups(rows, [row.score for row in rows], spec, rule))


def _reinforce(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    return [row.returns(spec.gamma) for row in rows]


def _baseline(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    return _spread(rows, _of_groups(rows, [row.score for row in rows], spec, _centred))


def _rloo(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    def rule(scores: list[float]) -> list[float]:
        total = math.fsum(scores)
        return [score - (total - score) / (len(scores) - 1) for score in scores]

    return _spread(rows, _of_groups(rows, [row.score for row in rows], spec, rule))


def _opo(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    found = [0.0] * len(rows)
    for group in groups_of(rows):
        lengths = math.fsum(len(rows[place].rewards) for place in group)
        mean = math.fsum(rows[place].score * len(rows[place].rewards) for place in group) / lengths
        for place in group:
            found[place] = rows[place].score - mean
        if len(group) == 1 and spec.alone is not None:
            found[group[0]] = _alone(rows[group[0]].score, spec)
    return _spread(rows, found)


def _remax(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    return [[value - row.baseline for value in row.returns(1.0)] for row in rows]


def _gpg(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    """Scale centred scores by the rows over those whose group has a gradient: whose rewards differ."""
    scores = [row.score for row in rows]
    useful = sum(len(group) for group in groups_of(rows) if len({scores[place] for place in group}) > 1)
    centred = _of_groups(rows, scores, spec, _centred)
    return _spread(rows, [value * len(rows) / max(useful, 1) for value in centred])


def _token_baseline(rows: Sequence[TokenRow], spec: EstimatorSpec) -> Tokens:
    found = [row.returns(1.0) for row in rows]
    paths = [[math.fsum(row.variances[: place + 1]) for place in range(len(row.rewards))] for row in rows]
    for group in groups_of(rows):
        lengths = sorted((len(rows[place].rewards) for place in group), reverse=True)
        totals = [list(found[place]) for place in group]
        for token in range(lengths[1] if len(group) > 1 else 0):
            active = [number for number, own in enumerate(totals) if token < len(own)]
            weight = math.fsum(paths[group[number]][token] for number in active)
            mean = (
                math.fsum(totals[number][token] * paths[group[number]][token] for number in active) / weight
            )
            for number in active:
                found[group[number]][token] -= mean
    return found


_ESTIMATORS: Mapping[str, Callable[[Sequence[TokenRow], EstimatorSpec], Tokens]] = {
    "gae": _gae,
    "grpo": _grpo,
    "gdpo": _gdpo,
    "passk": _passk,
    "reinforce_plus_plus": _reinforce,
    "reinforce_plus_plus_baseline": _baseline,
    "rloo": _rloo,
    "opo": _opo,
    "remax": _remax,
    "gpg": _gpg,
    "token_baseline": _token_baseline,
}
