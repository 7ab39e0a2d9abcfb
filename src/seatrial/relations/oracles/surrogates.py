"""Surrogates of policy losses, one token at a time: the value and its derivative by the log-probability.

With r the ratio of current to old probability, c and p their log-probabilities and A the advantage of the row:

- `ppo_clip` (Schulman et al. 2017; dual clip: Ye et al. 2020), `gspo` (Zheng et al. 2025, equation 5), `cispo`
  (MiniMax 2025, equation 4).
- `sapo` (Gao et al. 2025): -A sigmoid(tau (r - 1)) 4 / tau, tau being `tau_positive` for A > 0, else `tau_negative`.
- `policy_gradient` (GPG, Chu et al. 2025): -A c.
- `dppo_tv`, `dppo_kl` (arXiv 2602.04879): -A c times r truncated at `ratio_cap`, without a gradient through r; 0 for a
  token whose probability moved beyond the bound in the direction of A: the difference of the probabilities, or the KL
  of the two-point distributions of this token and all others.
- `clip_cov`, `kl_cov` (Cui et al. 2025): `ppo_clip` without dual clip, or -A r; of the tokens whose covariance
  (A - mean A)(c - mean c) is large, the gradient is dropped, or |c - p| added `kl_factor` times.
- `geometric_mean` (GMPO, Zhao et al. 2025): -A times the exponential of the mean of c - p, clipped at each token where
  it moved in the direction of A.
- `dro` (Richemond et al. 2024): -(A c - `beta` / 2 (c - p)^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from seatrial.relations.records import LossSpec

Matrix = Sequence[Sequence[float]]
Found = tuple[float, float]
"""Value and derivative."""


@dataclass(frozen=True, kw_only=True)
class SurrogateRow:
    """One row of a micro-batch."""

    logprobs: Sequence[float]
    old: Sequence[float]
    valid: Sequence[int]
    """Places of its training tokens."""
    advantage: float
    chosen: frozenset[int] = frozenset()
    """Places of tokens with a large covariance."""

    def moved(self, place: int) -> float:
        """Return the log-ratio of current to old probability at a place."""
        return self.logprobs[place] - self.old[place]


def surrogate(
    row: SurrogateRow, corrections: Mapping[int, float], spec: LossSpec
) -> tuple[dict[int, float], dict[int, float]]:
    """Return value and derivative at each training token of a row; corrections multiply both."""
    if spec.kind == "gspo":
        mean = math.fsum(row.moved(t) for t in row.valid) / len(row.valid)
        found = {t: _clipped(math.exp(mean), row.advantage, spec) for t in row.valid}
    elif spec.kind == "geometric_mean":
        found = _geometric_mean(row, spec)
    else:
        found = {t: _SURROGATES[spec.kind](row, t, spec) for t in row.valid}
    values = {t: corrections[t] * value for t, (value, _) in found.items()}
    slopes = {t: corrections[t] * slope for t, (_, slope) in found.items()}
    if spec.kind == "gspo":
        # Every token's surrogate depends on the whole row through the shared ratio.
        shared = math.fsum(slopes.values()) / len(row.valid)
        slopes = dict.fromkeys(row.valid, shared)
    return values, slopes


def _clipped(ratio: float, advantage: float, spec: LossSpec) -> Found:
    held = min(max(ratio, 1 - spec.ratio_clip_min), 1 + spec.ratio_clip_max) * advantage
    value, slope = (ratio * advantage, ratio * advantage) if ratio * advantage <= held else (held, 0.0)
    if spec.ratio_clip_c is not None and advantage < 0 and value < spec.ratio_clip_c * advantage:
        value, slope = spec.ratio_clip_c * advantage, 0.0
    return -value, -slope


def _ppo_clip(row: SurrogateRow, t: int, spec: LossSpec) -> Found:
    return _clipped(math.exp(row.moved(t)), row.advantage, spec)


def _weighted(row: SurrogateRow, t: int, weight: float) -> Found:
    """Return the policy gradient's surrogate times a weight without a gradient."""
    return -weight * row.advantage * row.logprobs[t], -weight * row.advantage


def _cispo(row: SurrogateRow, t: int, spec: LossSpec) -> Found:
    held = min(max(math.exp(row.moved(t)), 1 - spec.ratio_clip_min), 1 + spec.ratio_clip_max)
    return _weighted(row, t, held)


def _policy_gradient(row: SurrogateRow, t: int, spec: LossSpec) -> Found:
    return _weighted(row, t, 1.0)


def _sapo(row: SurrogateRow, t: int, spec: LossSpec) -> Found:
    tau = spec.parameters["tau_positive" if row.advantage > 0 else "tau_negative"]
    ratio = math.exp(row.moved(t))
    gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
    return -row.advantage * gate * 4 / tau, -row.advantage * 4 * gate * (1 - gate) * ratio


def _dppo(row: SurrogateRow, t: int, spec: LossSpec) -> Found:
    new, old = math.exp(row.logprobs[t]), math.exp(row.old[t])
    distance = abs(new - old)
    if spec.kind == "dppo_kl":
        distance = old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))
    raised = row.advantage > 0
    beyond = distance > (spec.ratio_clip_max if raised else spec.ratio_clip_min)
    if beyond and (new > old if raised else new < old):
        return 0.0, 0.0
    return _weighted(row, t, min(new / old, spec.parameters["ratio_cap"]))


def _clip_cov(row: SurrogateRow, t: int, spec: LossSpec) -> Found:
    return (0.0, 0.0) if t in row.chosen else _ppo_clip(row, t, spec)


def _kl_cov(row: SurrogateRow, t: int, spec: LossSpec) -> Found:
    moved = row.moved(t)
    value = slope = -row.advantage * math.exp(moved)
    if t in row.chosen:
        factor = spec.parameters["kl_factor"]
        value, slope = value + factor * abs(moved), slope + factor * ((moved > 0) - (moved < 0))
    return value, slope


def _dro(row: SurrogateRow, t: int, spec: LossSpec) -> Found:
    beta, moved = spec.parameters["beta"], row.moved(t)
    value = row.advantage * row.logprobs[t] - beta * moved * moved / 2
    return -value, -(row.advantage - beta * moved)


def _geometric_mean(row: SurrogateRow, spec: LossSpec) -> dict[int, Found]:
    low, high = -spec.ratio_clip_min, spec.ratio_clip_max
    moved, free = {}, {}
    for t in row.valid:
        moved[t] = min(row.moved(t), high) if row.advantage > 0 else max(row.moved(t), low)
        free[t] = moved[t] == row.moved(t)
    value = -row.advantage * math.exp(math.fsum(moved.values()) / len(row.valid))
    return {t: (value, value if free[t] else 0.0) for t in row.valid}


_SURROGATES: Mapping[str, Callable[[SurrogateRow, int, LossSpec], Found]] = {
    "ppo_clip": _ppo_clip,
    "cispo": _cispo,
    "sapo": _sapo,
    "policy_gradient": _policy_gradient,
    "dppo_tv": _dppo,
    "dppo_kl": _dppo,
    "clip_cov": _clip_cov,
    "kl_cov": _kl_cov,
    "dro": _dro,
}


def tokens_of_covariance(
    logprobs: Matrix, old: Matrix, advantages_B: Sequence[float], mask: Matrix, spec: LossSpec
) -> list[frozenset[int]]:
    """Return for each row the places of the tokens that `clip_cov` or `kl_cov` treats apart.

    `clip_cov`: those between `covariance_min` and `covariance_max` that the clip leaves free. `kl_cov`: the share
    `covariance_share` of all tokens with the largest covariance, one at least. The means are those of the tokens given.
    """
    tokens = [(b, t) for b, row in enumerate(mask) for t, on in enumerate(row) if on]
    chosen: set[tuple[int, int]] = set()
    if spec.kind in ("clip_cov", "kl_cov") and tokens:
        mean_advantage = math.fsum(advantages_B[b] for b, _ in tokens) / len(tokens)
        mean_logprob = math.fsum(logprobs[b][t] for b, t in tokens) / len(tokens)
        covariance = {
            (b, t): (advantages_B[b] - mean_advantage) * (logprobs[b][t] - mean_logprob) for b, t in tokens
        }
        if spec.kind == "kl_cov":
            count = max(1, int(len(tokens) * spec.parameters["covariance_share"]))
            chosen = set(sorted(tokens, key=lambda place: -covariance[place])[:count])
        else:
            low, high = spec.parameters["covariance_min"], spec.parameters["covariance_max"]
            for b, t in tokens:
                _, slope = _clipped(math.exp(logprobs[b][t] - old[b][t]), advantages_B[b], spec)
                if low < covariance[b, t] < high and (slope or not advantages_B[b]):
                    chosen.add((b, t))
    return [frozenset(t for row, t in chosen if row == b) for b in range(len(mask))]
