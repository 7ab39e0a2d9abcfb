"""Float64 closed forms of DPO's family: losses of pairs from the log-probabilities of their tokens, from the papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from seatrial.relations.cases.examples import ObjectiveSpec


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A completion of a pair, as policy and reference score it."""

    policy_T: Tensor
    """Log-probabilities of its tokens."""
    reference_T: Tensor
    sharpness_T: Tensor
    """Log of the sum of squared probabilities at each token, of the policy; read by WPO alone."""

    def kept(self, values_T: Tensor, shared: int, tail_weight: float) -> Tensor:
        """Return the sum of values of tokens, those beyond the first `shared` ones weighted."""
        return values_T[:shared].sum() + tail_weight * values_T[shared:].sum()

    @property
    def weight(self) -> float:
        """WPO's weight of the completion."""
        return float((self.policy_T - self.sharpness_T).mean().exp().detach())


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair in the terms of the papers."""

    policy: tuple[Tensor, Tensor]
    """Log-probabilities of the chosen and the rejected completion."""
    ratios: tuple[Tensor, Tensor]
    """Their log-ratios to the reference."""
    lengths: tuple[int, int]
    likelihood_T: Tensor
    """Of the chosen completion's tokens."""
    weight: float

    def margin(self, spec: ObjectiveSpec) -> Tensor:
        """Return the difference of the scores of both completions; each is divided by its length if per token."""
        chosen, rejected = (_derivative(ratio, spec) for ratio in self.ratios)
        if spec.per_token:
            return chosen / self.lengths[0] - rejected / self.lengths[1]
        return chosen - rejected


def pair_of(chosen: Completion, rejected: Completion, spec: ObjectiveSpec) -> Pair:
    """Return a pair of completions, their tails and weights as the spec says."""
    shared = min(len(chosen.policy_T), len(rejected.policy_T))
    policy = [one.kept(one.policy_T, shared, spec.tail_weight) for one in (chosen, rejected)]
    reference = [one.kept(one.reference_T, shared, spec.tail_weight) for one in (chosen, rejected)]
    return Pair(
        policy=(policy[0], policy[1]),
        ratios=(policy[0] - reference[0], policy[1] - reference[1]),
        lengths=(len(chosen.policy_T), len(rejected.policy_T)),
        likelihood_T=chosen.policy_T,
        weight=chosen.weight * rejected.weight if spec.weights_pairs else 1.0,
    )


def _derivative(log_u: Tensor, spec: ObjectiveSpec) -> Tensor:
    """Return f'(u) of the divergence, without constants that cancel in a difference."""
    if spec.divergence == "forward_kl":
        return -torch.exp(-log_u)
    if spec.divergence == "js":
        u = log_u.exp()
        return torch.log(2 * u / (1 + u))
    if spec.divergence == "alpha":
        return (torch.exp((spec.alpha - 1) * log_u) - 1) / (spec.alpha - 1)
    return log_u


def mixed_loss(pairs: Sequence[Pair], spec: ObjectiveSpec) -> Tensor:
    """Return the weighted sum of the forms' means over pairs."""
    forms = spec.mixture or ((spec.form, 1.0),)
    total = torch.zeros((), dtype=torch.float64)
    for form, weight in forms:
        total = total + weight * torch.stack([*FORMS[form](pairs, spec)]).mean()
    return total


def _each(
    of_pair: Callable[[Pair, ObjectiveSpec], Tensor],
) -> Callable[[Sequence[Pair], ObjectiveSpec], list[Tensor]]:
    """Return the form that gives each pair its own loss, weighted as the pair is."""
    return lambda pairs, spec: [pair.weight * of_pair(pair, spec) for pair in pairs]


def _of_margin(
    loss: Callable[[Tensor, ObjectiveSpec], Tensor],
) -> Callable[[Sequence[Pair], ObjectiveSpec], list[Tensor]]:
    return _each(lambda pair, spec: loss(pair.margin(spec), spec))


def _of_rewards(
    loss: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Sequence[Pair], ObjectiveSpec], list[Tensor]]:
    """Return a form of both implicit rewards, beta times the log-ratios."""
    return _each(lambda pair, spec: loss(spec.beta * pair.ratios[0], spec.beta * pair.ratios[1]))


def _conservative(margin: Tensor, spec: ObjectiveSpec) -> Tensor:
    """Mitchell 2023, cDPO: labels are wrong with a probability."""
    flip = spec.label_smoothing
    return -(1 - flip) * logsigmoid(spec.beta * margin) - flip * logsigmoid(-spec.beta * margin)


def _robust(margin: Tensor, spec: ObjectiveSpec) -> Tensor:
    """Chowdhury et al. 2024, equation 8."""
    flip = spec.label_smoothing
    kept, flipped = -logsigmoid(spec.beta * margin), -logsigmoid(-spec.beta * margin)
    return ((1 - flip) * kept - flip * flipped) / (1 - 2 * flip)


def _exo(margin: Tensor, spec: ObjectiveSpec) -> Tensor:
    """Ji et al. 2024, equation 16: KL of (sigmoid(x), sigmoid(-x)) to (1 - eps, eps)."""
    right = torch.sigmoid(spec.beta * margin)
    wrong, eps = 1 - right, spec.label_smoothing
    return right * (right.log() - math.log(1 - eps)) + wrong * (wrong.log() - math.log(eps))


def _discopop(margin: Tensor, spec: ObjectiveSpec) -> Tensor:
    """Lu et al. 2024, equation 5: logistic loss and exponential one, mixed by a sigmoid of the margin over tau."""
    x = spec.beta * margin
    mixed = torch.sigmoid(x / spec.modulation)
    return (1 - mixed) * -logsigmoid(x) + mixed * torch.exp(-x)


def _nca(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Chen et al. 2024, for K = 2."""
    return -logsigmoid(chosen) - (logsigmoid(-chosen) + logsigmoid(-rejected)) / 2


def _sppo(pair: Pair, spec: ObjectiveSpec) -> Tensor:
    """Wu et al. 2024, equation 4.7, with probabilities 1 and 0."""
    chosen, rejected = pair.ratios
    return (chosen - 1 / (2 * spec.beta)) ** 2 + (rejected + 1 / (2 * spec.beta)) ** 2


def _sorted_margins(ones: Sequence[Tensor], others: Sequence[Tensor], spec: ObjectiveSpec) -> list[Tensor]:
    """Return the losses of quantiles that are matched (AOT, Melnyk et al. 2024)."""
    differences = torch.stack([*ones]).sort().values - torch.stack([*others]).sort().values
    x, smoothing = spec.beta * differences, spec.label_smoothing
    return [*(-(1 - smoothing) * logsigmoid(x) - smoothing * logsigmoid(-x))]


def _aot(pairs: Sequence[Pair], spec: ObjectiveSpec) -> list[Tensor]:
    """Policy's margins against the reference's."""
    policy = [pair.policy[0] - pair.policy[1] for pair in pairs]
    reference = [(pair.policy[0] - pair.ratios[0]) - (pair.policy[1] - pair.ratios[1]) for pair in pairs]
    return _sorted_margins(policy, reference, spec)


def _aot_unpaired(pairs: Sequence[Pair], spec: ObjectiveSpec) -> list[Tensor]:
    """Log-ratios of chosen completions against those of rejected ones."""
    return _sorted_margins([pair.ratios[0] for pair in pairs], [pair.ratios[1] for pair in pairs], spec)


def _likelihood(pairs: Sequence[Pair], spec: ObjectiveSpec) -> list[Tensor]:
    """Negative log-likelihood of the chosen completions, a mean over all their tokens."""
    return [-torch.cat([pair.likelihood_T for pair in pairs]).mean()]


FORMS: Mapping[str, Callable[[Sequence[Pair], ObjectiveSpec], Sequence[Tensor]]] = {
    "sigmoid": _of_margin(lambda margin, spec: -logsigmoid(spec.beta * margin)),
    "conservative": _of_margin(_conservative),
    "hinge": _of_margin(lambda margin, spec: torch.relu(1 - spec.beta * margin)),
    "ipo": _of_margin(lambda margin, spec: (margin - 1 / (2 * spec.beta)) ** 2),
    "robust": _of_margin(_robust),
    "exo_pair": _of_margin(_exo),
    "discopop": _of_margin(_discopop),
    "nca_pair": _of_rewards(_nca),
    "bco_pair": _of_rewards(lambda chosen, rejected: -logsigmoid(chosen) - logsigmoid(-rejected)),
    "apo_zero": _of_rewards(lambda chosen, rejected: 1 - torch.sigmoid(chosen) + torch.sigmoid(rejected)),
    "apo_down": _of_rewards(
        lambda chosen, rejected: torch.sigmoid(chosen) + 1 - torch.sigmoid(chosen - rejected)
    ),
    "sppo_hard": _each(_sppo),
    "aot": _aot,
    "aot_unpaired": _aot_unpaired,
    "sft": _likelihood,
}
"""Losses of pairs by name; `bco_pair` without the running mean of rewards that BCO subtracts (Jung et al. 2024)."""
