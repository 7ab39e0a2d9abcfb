"""R12: every formula equals a float64 oracle written as plain loops, in value and in gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from seatrial.relations import oracles
from seatrial.relations.cases import Rollout, rollout_for, square_rollout
from seatrial.relations.cases.logits import LogitsCase, make_logits_case
from seatrial.relations.facts import bound_of, facts_of, needs_masked_rows
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.tensors import gradient_of, inputs_of, largest_difference, loss_oracle
from seatrial.relations.worst import Worst

# Rounding of one float64 sum over a few hundred terms; any wrong term is larger by ten orders of magnitude.
LOSS_BOUND = 1e-9
LOGPROB_BOUND = 2e-5  # float32 inside, log-probabilities down to -60
ADVANTAGE_BOUND = 1e-9
FLOAT32_ADVANTAGE_BOUND = 1e-5  # for a stack that computes advantages in float32
FLOAT32_KL_BOUND = 1e-3  # log-probabilities down to -60 are rounded before their difference is taken
EXTREMES = ((-800.0, -800.4), (-800.4, -800.0), (-0.01, -2.5), (-2.5, -0.01))
"""Log-probabilities of policy and reference whose probabilities are 0 in any precision, or far apart."""


LOSS = Relation(
    id="R12.loss",
    name="loss-equals-oracle",
    component="policy_loss",
    statement="The policy loss equals the float64 oracle of the declared loss, value and gradient.",
    catalogue="SB151 SB152 SB156 SB163 SB164 SB166 SB168 SB189 SB190 SB194 SB208",
    cost="CPU, milliseconds",
    cases=partial(rollout_for, masked_row=False),
)

LOGPROBS = Relation(
    id="R12.logprobs",
    name="logprobs-equal-oracle",
    component="token_logprobs",
    statement="Token log-probabilities equal the float64 oracle at unequal prompt lengths and temperature not 1.",
    catalogue="SB119 SB121 SB123 SB124 SB126 SB127",
    cost="CPU, milliseconds",
    cases=make_logits_case,
)

KL = Relation(
    id="R12.kl",
    name="kl-equals-oracle",
    component="kl_estimate",
    statement="k1, k2 and k3 equal their definitions in value and gradient, in the direction policy to reference.",
    catalogue="SB152 SB165 SB179",
    cost="CPU, milliseconds",
    cases=rollout_for,
)

ADVANTAGES = Relation(
    id="R12.advantages",
    name="advantages-equal-oracle",
    component="advantages",
    statement="Advantages equal the float64 oracle when rows of a group are not adjacent and groups are unequal.",
    catalogue="SB082 SB083 SB084 SB087 SB088 SB091 SB093",
    cost="CPU, milliseconds",
    cases=rollout_for,
)


@LOSS.law(
    "loss value", "a wrong reduction or count, a term left out or with the wrong sign, a mask not applied"
)
@LOSS.law(
    "loss value, with a fully masked row",
    "a row without tokens divided by its count, or counted as a sequence",
    cases=partial(rollout_for, masked_row=True),
    excluded=needs_masked_rows,
)
@LOSS.law(
    "loss value, as many rows as tokens",
    "numbers of rows that are taken for numbers of tokens",
    cases=square_rollout,
)
def loss_equals_oracle(stack: Any, case: Rollout) -> Measure:
    """Compare the loss with the float64 oracle."""
    inputs, oracle = _oracle_of(stack, case)
    loss = float(stack.policy_loss(inputs).detach())
    return Measure(
        error=abs(loss - oracle.loss) / max(abs(oracle.loss), 1e-3),
        bound=bound_of(stack, LOSS_BOUND),
        what=f"loss {loss:.9g} against the oracle's {oracle.loss:.9g} for {stack.loss_spec}, relative difference",
    )


def _oracle_of(stack: Any, case: Rollout) -> tuple[Any, oracles.LossOracle]:
    """Return inputs and oracle; the global counts are larger than those of the rows, which are one of several parts."""
    tokens = sum(sum(row.completion_mask) for row in case.rows)
    inputs = inputs_of(case, counts=(float(tokens + 13), float(len(case.rows) + 2)))
    return inputs, loss_oracle(inputs, stack.loss_spec)


@LOSS.law(
    "loss gradient", "a detach that is missing or too much, a clip on the wrong side, minimum for maximum"
)
@LOSS.law(
    "loss gradient, with a fully masked row",
    "0 / 0 in a row without tokens: NaN in its gradient, or in that of all",
    cases=partial(rollout_for, masked_row=True),
    excluded=needs_masked_rows,
)
@LOSS.law(
    "loss gradient, as many rows as tokens",
    "advantages or ratios of rows laid along the tokens",
    cases=square_rollout,
)
def gradient_equals_oracle(stack: Any, case: Rollout) -> Measure:
    """Compare the derivative of the loss by each log-probability with the float64 oracle."""
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


@LOGPROBS.law(
    "log-probability of each token",
    "positions off by one, one prompt length used for all rows, temperature ignored or inverted",
)
def logprobs_equal_oracle(stack: Any, case: LogitsCase) -> Measure:
    """Compare the log-probability of each token with the float64 oracle."""
    logits_BSV, ids_BT, prompt_lens_B = case.tensors()
    given_BT = stack.token_logprobs(logits_BSV, ids_BT, prompt_lens_B, case.temperature)
    worst = Worst(place="no token")
    for row, (prompt_len, length) in enumerate(zip(case.prompt_lens, case.completion_lens, strict=True)):
        for token in range(length):
            expected = oracles.token_logprob(
                logits_BSV[row, prompt_len + token - 1].double().tolist(),
                int(ids_BT[row, token]),
                case.temperature,
            )
            difference = abs(float(given_BT[row, token]) - expected) / max(1.0, abs(expected))
            worst.add(difference, f"row {row}, token {token}")
    return Measure(
        error=worst.error,
        bound=LOGPROB_BOUND,
        what=f"log-probability at {worst.place}, relative difference",
    )


@LOGPROBS.law(
    "gradient of log-probabilities",
    "a term that is detached, logits that are changed in place before the backward pass, a temperature applied once",
)
def gradient_of_logprobs_equals_oracle(stack: Any, case: LogitsCase) -> Measure:
    """Compare the gradient of a weighted sum with (one-hot - softmax) / temperature at the tokens' logits.

    Raises:
        NotServed: the stack computes log-probabilities without gradients.
    """
    logits_BSV, ids_BT, prompt_lens_B = case.tensors()
    leaf_BSV = logits_BSV.clone().requires_grad_()
    # Some stacks divide by the temperature in place, which a leaf does not allow.
    given_BT = stack.token_logprobs(leaf_BSV * 1, ids_BT, prompt_lens_B, case.temperature)
    if not given_BT.requires_grad:
        raise NotServed("it computes log-probabilities without gradients")
    right_BSV = torch.zeros_like(logits_BSV, dtype=torch.float64)
    total = given_BT.new_zeros(())
    for row, (prompt_len, length) in enumerate(zip(case.prompt_lens, case.completion_lens, strict=True)):
        for token in range(length):
            weight = 1 + (row + 2 * token) % 5
            total = total + weight * given_BT[row, token]
            place = prompt_len + token - 1
            right_V = -(logits_BSV[row, place].double() / case.temperature).softmax(-1)
            right_V[ids_BT[row, token]] += 1
            right_BSV[row, place] += weight * right_V / case.temperature
    (gradient_BSV,) = torch.autograd.grad(total, leaf_BSV)
    return Measure(
        error=largest_difference(gradient_BSV.double(), right_BSV),
        bound=LOGPROB_BOUND,
        what="gradient of log-probabilities, relative to its largest value",
    )


def _has_no_names(stack: Any) -> str | None:
    return None if getattr(stack, "kl_names", None) else "it has no kl_names"


@KL.law(
    "value and gradient of each estimator",
    "the log-ratio inverted (policy for reference), an estimator detached",
)
@KL.law(
    "value and gradient by the stack's own names",
    "two names that are swapped, a name that is not read, the gradient of another estimator than the name says",
    excluded=_has_no_names,
    own_names=True,
)
def kl_equals_definition(stack: Any, case: Rollout, own_names: bool = False) -> Measure:
    """Compare estimators with their definitions, in value and derivative."""
    kinds = stack.kl_names if own_names else {kind: (kind, kind) for kind in ("k1", "k2", "k3")}
    inputs = inputs_of(case)
    extremes_2C = torch.tensor(() if case.tidy else EXTREMES, dtype=torch.float64).reshape(-1, 2).T
    B = len(case.rows)
    policy_BT = torch.cat([inputs.logprobs_BT.detach(), extremes_2C[0].expand(B, -1)], dim=1)
    ref_BT = torch.cat([inputs.ref_logprobs_BT, extremes_2C[1].expand(B, -1)], dim=1)
    worst = Worst(place="no token")
    for name, (value_kind, slope_kind) in kinds.items():
        leaf_BT = policy_BT.clone().requires_grad_()
        value_BT = stack.kl_estimate(leaf_BT, ref_BT, name)
        (slope_BT,) = torch.autograd.grad(value_BT.sum(), leaf_BT)
        for row in range(leaf_BT.shape[0]):
            for token in range(leaf_BT.shape[1]):
                pair = float(policy_BT[row, token]), float(ref_BT[row, token])
                # A token without a difference, such as padding, has no slope of `abs`.
                if slope_kind == "abs" and pair[0] == pair[1]:
                    continue
                place = f"{name}, row {row}, token {token}"
                worst.add(
                    abs(float(value_BT[row, token].detach()) - oracles.kl_value(*pair, value_kind)), place
                )
                worst.add(abs(float(slope_BT[row, token]) - oracles.kl_gradient(*pair, slope_kind)), place)
    return Measure(
        error=worst.error,
        bound=LOSS_BOUND if facts_of(stack).dtype is None else FLOAT32_KL_BOUND,
        what=f"KL estimate in value or gradient at {worst.place}",
    )


@ADVANTAGES.law(
    "advantage of each row",
    "groups formed by position, statistics over the batch, a biased deviation for an unbiased one",
)
def advantages_equal_oracle(stack: Any, case: Rollout) -> Measure:
    """Compare the advantage of each row with the float64 oracle."""
    rewards = [row.reward for row in case.rows]
    prompts = [row.prompt_id for row in case.rows]
    given = stack.advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(prompts))
    expected = oracles.advantages(rewards, prompts, stack.advantage_spec)
    return Measure(
        error=largest_difference(given.double(), torch.tensor(expected, dtype=torch.float64)),
        bound=ADVANTAGE_BOUND if given.dtype == torch.float64 else FLOAT32_ADVANTAGE_BOUND,
        what=f"advantages against the oracle for {stack.advantage_spec}, relative difference",
    )
