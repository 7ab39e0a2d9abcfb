"""R12: every formula equals a float64 oracle written as plain loops, in value and in gradient."""

from __future__ import annotations

from typing import Any

import torch

from seatrial.relations import oracles
from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.cases.logits import LogitsCase, make_logits_case
from seatrial.relations.facts import bound_of, needs_masked_rows
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.tensors import gradient_of, inputs_of, largest_difference, loss_oracle
from seatrial.relations.worst import is_worse, largest

# Rounding of one float64 sum over a few hundred terms; any wrong term is larger by ten orders of magnitude.
LOSS_BOUND = 1e-9
LOGPROB_BOUND = 2e-5  # float32 inside, log-probabilities down to -60
ADVANTAGE_BOUND = 1e-9
FLOAT32_ADVANTAGE_BOUND = 1e-5  # for a stack that computes advantages in float32
EXTREMES = ((-800.0, -800.4), (-800.4, -800.0), (-0.01, -2.5), (-2.5, -0.01))
"""Log-probabilities of policy and reference whose probabilities are 0 in any precision, or far apart."""


def _make_rollout(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy)


def _make_without_masked_row(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, masked_row=False)


def _make_with_masked_row(stack: Any, seed: int, tidy: bool) -> Rollout:
    return rollout_for(stack, seed, tidy, masked_row=True)


def _oracle_of(stack: Any, case: Rollout) -> tuple[Any, oracles.LossOracle]:
    inputs = inputs_of(case, counts=_counts_beyond(case))
    oracle = loss_oracle(inputs, stack.loss_spec)
    return inputs, oracle


def _counts_beyond(case: Rollout) -> tuple[float, float]:
    """Return global counts larger than the rows' own: the rows are one micro-batch of several."""
    tokens = sum(sum(row.completion_mask) for row in case.rows)
    return float(tokens + 13), float(len(case.rows) + 2)


def _loss_value(stack: Any, case: Rollout) -> Measure:
    inputs, oracle = _oracle_of(stack, case)
    loss = float(stack.policy_loss(inputs).detach())
    return Measure(
        error=abs(loss - oracle.loss) / max(abs(oracle.loss), 1e-3),
        bound=bound_of(stack, LOSS_BOUND),
        what=f"loss {loss:.9g} against the oracle's {oracle.loss:.9g} for {stack.loss_spec}, relative difference",
    )


def _loss_gradient(stack: Any, case: Rollout) -> Measure:
    inputs, oracle = _oracle_of(stack, case)
    gradient_BT = gradient_of(stack.policy_loss(inputs), inputs)
    expected_BT = torch.tensor(oracle.gradient_BT, dtype=gradient_BT.dtype)
    difference_BT = (gradient_BT - expected_BT).abs()
    worst = int(difference_BT.nan_to_num(nan=float("inf")).argmax())
    row, token = divmod(worst, difference_BT.shape[1])
    return Measure(
        error=largest_difference(gradient_BT, expected_BT),
        bound=bound_of(stack, LOSS_BOUND),
        what=f"d loss / d logprob at row {row}, token {token} for {stack.loss_spec}, relative difference",
    )


def _logprobs(stack: Any, case: LogitsCase) -> Measure:
    logits_BSV, ids_BT, prompt_lens_B = case.tensors()
    given_BT = stack.token_logprobs(logits_BSV, ids_BT, prompt_lens_B, case.temperature)
    worst, place = 0.0, "no token"
    for row, (prompt_len, length) in enumerate(zip(case.prompt_lens, case.completion_lens, strict=True)):
        for token in range(length):
            expected = oracles.token_logprob(
                logits_BSV[row, prompt_len + token - 1].double().tolist(),
                int(ids_BT[row, token]),
                case.temperature,
            )
            difference = abs(float(given_BT[row, token]) - expected) / max(1.0, abs(expected))
            if is_worse(difference, worst):
                worst, place = difference, f"row {row}, token {token}"
    return Measure(error=worst, bound=LOGPROB_BOUND, what=f"log-probability at {place}, relative difference")


def _kl(stack: Any, case: Rollout) -> Measure:
    inputs = inputs_of(case)
    extremes_2C = torch.tensor(() if case.tidy else EXTREMES, dtype=torch.float64).reshape(-1, 2).T
    B = len(case.rows)
    policy_BT = torch.cat([inputs.logprobs_BT.detach(), extremes_2C[0].expand(B, -1)], dim=1)
    ref_BT = torch.cat([inputs.ref_logprobs_BT, extremes_2C[1].expand(B, -1)], dim=1)
    worst, place = 0.0, "no token"
    for kind in ("k1", "k2", "k3"):
        leaf_BT = policy_BT.clone().requires_grad_()
        value_BT = stack.kl_estimate(leaf_BT, ref_BT, kind)
        (slope_BT,) = torch.autograd.grad(value_BT.sum(), leaf_BT)
        for row in range(leaf_BT.shape[0]):
            for token in range(leaf_BT.shape[1]):
                pair = float(policy_BT[row, token]), float(ref_BT[row, token])
                difference = largest(
                    (
                        abs(float(value_BT[row, token].detach()) - oracles.kl_value(*pair, kind)),
                        abs(float(slope_BT[row, token]) - oracles.kl_gradient(*pair, kind)),
                    )
                )
                if is_worse(difference, worst):
                    worst, place = difference, f"{kind}, row {row}, token {token}"
    return Measure(error=worst, bound=LOSS_BOUND, what=f"KL estimate in value or gradient at {place}")


def _advantages(stack: Any, case: Rollout) -> Measure:
    rewards = [row.reward for row in case.rows]
    prompts = [row.prompt_id for row in case.rows]
    given = stack.advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(prompts))
    expected = oracles.advantages(rewards, prompts, stack.advantage_spec)
    return Measure(
        error=largest_difference(given.double(), torch.tensor(expected, dtype=torch.float64)),
        bound=ADVANTAGE_BOUND if given.dtype == torch.float64 else FLOAT32_ADVANTAGE_BOUND,
        what=f"advantages against the oracle for {stack.advantage_spec}, relative difference",
    )


RELATIONS = (
    Relation(
        id="R12.loss",
        name="loss-equals-oracle",
        component="policy_loss",
        statement="The policy loss equals the float64 oracle of what the stack says it computes, value and gradient.",
        catalogue=(
            "SB151",
            "SB152",
            "SB156",
            "SB163",
            "SB164",
            "SB166",
            "SB168",
            "SB189",
            "SB190",
            "SB194",
            "SB208",
        ),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="loss value",
                make=_make_without_masked_row,
                measure=_loss_value,
                suspects="a wrong reduction or count, a term left out or with the wrong sign, a mask not applied",
            ),
            Law(
                name="loss gradient",
                make=_make_without_masked_row,
                measure=_loss_gradient,
                suspects="a detach that is missing or too much, a clip on the wrong side, minimum for maximum",
            ),
            Law(
                name="loss value, with a fully masked row",
                make=_make_with_masked_row,
                measure=_loss_value,
                excluded=needs_masked_rows,
                suspects="a row without tokens divided by its count, or counted as a sequence",
            ),
            Law(
                name="loss gradient, with a fully masked row",
                make=_make_with_masked_row,
                measure=_loss_gradient,
                excluded=needs_masked_rows,
                suspects="0 / 0 in a row without tokens: NaN in its gradient, or in that of all",
            ),
        ),
    ),
    Relation(
        id="R12.logprobs",
        name="logprobs-equal-oracle",
        component="token_logprobs",
        statement="Token log-probabilities equal the float64 oracle at unequal prompt lengths and temperature not 1.",
        catalogue=("SB119", "SB121", "SB123", "SB124", "SB126", "SB127"),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="log-probability of each token",
                make=make_logits_case,
                measure=_logprobs,
                suspects="positions off by one, one prompt length used for all rows, temperature ignored or inverted",
            ),
        ),
    ),
    Relation(
        id="R12.kl",
        name="kl-equals-oracle",
        component="kl_estimate",
        statement="k1, k2 and k3 equal their definitions in value and gradient, in the direction policy to reference.",
        catalogue=("SB152", "SB165", "SB179"),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="value and gradient of each estimator",
                make=_make_rollout,
                measure=_kl,
                suspects="the log-ratio inverted (policy for reference), an estimator detached",
            ),
        ),
    ),
    Relation(
        id="R12.advantages",
        name="advantages-equal-oracle",
        component="advantages",
        statement="Advantages equal the float64 oracle when rows of a group are not adjacent and groups are unequal.",
        catalogue=("SB082", "SB083", "SB084", "SB087", "SB088", "SB091", "SB093"),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="advantage of each row",
                make=_make_rollout,
                measure=_advantages,
                suspects="groups formed by position, statistics over the batch, a biased deviation for an unbiased one",
            ),
        ),
    ),
)
