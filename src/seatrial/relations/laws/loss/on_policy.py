"""R9: right after a rollout all policies are equal: the ratio is 1, nothing is clipped, the KL is 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.facts import bound_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import LossInputs
from seatrial.relations.tensors import gradient_of, inputs_of
from seatrial.relations.worst import Worst

BOUND = 1e-9


CATALOGUE = "SB039 SB063 SB104 SB125 SB128 SB143 SB148 SB278 SB317 SB390"

LOSS = Relation(
    id="R9.loss",
    name="on-policy-identity",
    component="policy_loss",
    statement="With current, old and reference policy equal, the gradient is the plain policy gradient.",
    catalogue=CATALOGUE,
    cost="CPU, milliseconds",
    cases=rollout_for,
)

METRICS = Relation(
    id="R9.metrics",
    name="metrics-at-rest",
    component="metrics",
    statement="Right after a rollout ratio metrics are 1 and KL metrics are 0.",
    catalogue=CATALOGUE,
    cost="CPU, milliseconds",
    cases=rollout_for,
)


def drops_tokens(stack: Any) -> str | None:
    """Return the declaration of a loss that drops tokens on policy too, or None."""
    return "loss_spec.kind='clip_cov'" if stack.loss_spec.kind == "clip_cov" else None


def _has_no_ratio(stack: Any) -> str | None:
    return "loss_spec.kind='policy_gradient'" if stack.loss_spec.kind == "policy_gradient" else None


@LOSS.law(
    "policy gradient on policy",
    "ratio against the wrong log-probabilities, clipping at 1, a KL that is not 0 at the start",
    excluded=drops_tokens,
)
def gradient_is_the_policy_gradient(stack: Any, case: Rollout) -> Measure | None:
    """Check that each token's gradient is minus its advantage times its weight, for any clip range."""
    spec = stack.loss_spec
    inputs = _on_policy(case)
    gradient_BT = gradient_of(stack.policy_loss(inputs), inputs)
    worst = Worst(place="no token")
    for row, mask in enumerate(inputs.mask_BT.tolist()):
        length = sum(mask)
        if not length:
            continue
        weight = {
            "token": 1 / inputs.global_valid_tokens,
            "sequence": 1 / (length * inputs.global_valid_seqs),
            "fixed_length": 1 / ((spec.fixed_length or 1) * inputs.global_valid_seqs),
            "sum": 1.0,
        }[spec.reduction]
        # k1 alone keeps a slope where policy and reference agree.
        kl_slope = spec.kl_penalty if (spec.kl_type, spec.kl_gradient) == ("k1", "estimator") else 0.0
        expected = weight * (kl_slope - float(inputs.advantages_B[row]))
        for token in range(len(mask)):
            error = abs(float(gradient_BT[row, token]) - expected * mask[token])
            worst.add(error, f"row {row}, token {token}")
    return Measure(
        error=worst.error,
        bound=bound_of(stack, BOUND),
        what=f"gradient on policy against -advantage x weight, at {worst.place}",
    )


def _on_policy(case: Rollout) -> LossInputs:
    """Return inputs in which current, old, reference and sampling policy are one."""
    inputs = inputs_of(case)
    old_BT = inputs.old_logprobs_BT
    return replace(
        inputs,
        logprobs_BT=old_BT.clone().requires_grad_(),
        ref_logprobs_BT=old_BT.clone(),
        sampling_logprobs_BT=old_BT.clone(),
    )


@LOSS.law(
    "old log-probabilities matter",
    "the ratio of the policy with itself: old log-probabilities recomputed or ignored",
    excluded=_has_no_ratio,
)
def old_logprobs_matter(stack: Any, case: Rollout) -> Measure:
    """Check that the loss changes with the old log-probabilities: off policy the ratio is not stuck at 1."""
    inputs = inputs_of(case)
    valid_BT = inputs.mask_BT.bool()
    shifted = replace(
        inputs, old_logprobs_BT=torch.where(valid_BT, inputs.old_logprobs_BT - 0.5, inputs.old_logprobs_BT)
    )
    difference = abs(float(stack.policy_loss(shifted).detach()) - float(stack.policy_loss(inputs).detach()))
    return Measure(
        error=0.0 if difference > 1e-9 else 1.0,
        bound=0.0,
        what=f"loss moved by {difference:.3g} when every old log-probability moved by 0.5 (1: it did not)",
    )


@METRICS.law("metrics on policy", "a metric of other tensors than those that train, masked tokens counted")
def metrics_have_their_on_policy_values(stack: Any, case: Rollout) -> Measure:
    """Check that ratio metrics are 1 and KL metrics 0 when all policies are equal."""
    metrics = stack.metrics([_on_policy(case)])
    on_policy = {
        "token_mult_prob_error": 1.0,
        "gen_kl_error": 0.0,
        "probs_ratio": 1.0,
        "probs_ratio_min": 1.0,
        "probs_ratio_max": 1.0,
        "kl_penalty": 0.0,
    }
    known = {name: value for name, value in on_policy.items() if name in metrics}
    if not known:
        raise NotServed("none of the metrics with a known on-policy value is logged")
    worst = Worst(place="every metric has its value")
    for name, value in known.items():
        worst.add(abs(metrics[name] - value), f"{name} is {metrics[name]:.6g}, not {value:g}")
    return Measure(error=worst.error, bound=1e-6, what=f"on policy, {worst.place}")
