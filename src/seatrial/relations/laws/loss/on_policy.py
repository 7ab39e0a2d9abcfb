"""R9: right after a rollout nothing has moved: ratio 1, no clipping, no KL to a reference that is the policy."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.facts import bound_of
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import LossInputs
from seatrial.relations.tensors import gradient_of, inputs_of
from seatrial.relations.worst import is_worse

BOUND = 1e-9


def _make(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy)


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


def _policy_gradient(stack: Any, case: Rollout) -> Measure | None:
    """On policy, the gradient of each token is minus advantage times the token's weight, whatever the clip is."""
    spec = stack.loss_spec
    inputs = _on_policy(case)
    gradient_BT = gradient_of(stack.policy_loss(inputs), inputs)
    worst, place = 0.0, "no token"
    for row, mask in enumerate(inputs.mask_BT.tolist()):
        length = sum(mask)
        if not length:
            continue
        weight = {
            "token": 1 / inputs.global_valid_tokens,
            "sequence": 1 / (length * inputs.global_valid_seqs),
            "fixed_length": 1 / ((spec.fixed_length or 1) * inputs.global_valid_seqs),
        }[spec.reduction]
        # k1 alone keeps a slope where policy and reference agree.
        kl_slope = spec.kl_penalty if (spec.kl_type, spec.kl_gradient) == ("k1", "estimator") else 0.0
        expected = weight * (kl_slope - float(inputs.advantages_B[row]))
        for token in range(len(mask)):
            error = abs(float(gradient_BT[row, token]) - expected * mask[token])
            if is_worse(error, worst):
                worst, place = error, f"row {row}, token {token}"
    return Measure(
        error=worst,
        bound=bound_of(stack, BOUND),
        what=f"gradient on policy against -advantage x weight, at {place}",
    )


def _metrics_at_rest(stack: Any, case: Rollout) -> Measure:
    metrics = stack.metrics([_on_policy(case)])
    at_rest = {
        "token_mult_prob_error": 1.0,
        "gen_kl_error": 0.0,
        "probs_ratio": 1.0,
        "probs_ratio_min": 1.0,
        "probs_ratio_max": 1.0,
        "kl_penalty": 0.0,
    }
    known = {name: value for name, value in at_rest.items() if name in metrics}
    if not known:
        raise NotServed("none of the metrics that rest on policy is logged")
    errors = {name: abs(metrics[name] - value) for name, value in known.items()}
    worst = max(errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name])
    return Measure(
        error=errors[worst],
        bound=1e-6,
        what=f"{worst} on policy is {metrics[worst]:.6g}, not {known[worst]:g}",
    )


def _moves_after_update(stack: Any, case: Rollout) -> Measure:
    """Off policy the ratio must not be stuck at 1: the loss has to see the old log-probabilities."""
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


CATALOGUE = ("SB039", "SB063", "SB104", "SB125", "SB128", "SB143", "SB148", "SB278", "SB317", "SB390")

RELATIONS = (
    Relation(
        id="R9.loss",
        name="on-policy-identity",
        component="policy_loss",
        statement="With current, old and reference policy equal, the gradient is the plain policy gradient.",
        catalogue=CATALOGUE,
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="policy gradient on policy",
                make=_make,
                measure=_policy_gradient,
                suspects="ratio against the wrong log-probabilities, clipping at 1, a KL that is not 0 at the start",
            ),
            Law(
                name="old log-probabilities matter",
                make=_make,
                measure=_moves_after_update,
                suspects="the ratio of the policy with itself: old log-probabilities recomputed or ignored",
            ),
        ),
    ),
    Relation(
        id="R9.metrics",
        name="metrics-at-rest",
        component="metrics",
        statement="Right after a rollout ratio metrics are 1 and KL metrics are 0.",
        catalogue=CATALOGUE,
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="metrics on policy",
                make=_make,
                measure=_metrics_at_rest,
                suspects="a metric of other tensors than those that train, masked tokens counted",
            ),
        ),
    ),
)
