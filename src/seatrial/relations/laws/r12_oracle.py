"""R12: every formula equals a float64 oracle written as plain loops, in value and in gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from seatrial.relations import oracles
from seatrial.relations.cases import Rollout, make_rollout
from seatrial.relations.engine import Law, Measure, Relation
from seatrial.relations.tensors import gradient_of, inputs_of, largest_difference
from seatrial.relations.worst import is_worse, largest

# Rounding of one float64 sum over a few hundred terms; any wrong term is larger by ten orders of magnitude.
LOSS_BOUND = 1e-9
LOGPROB_BOUND = 2e-5  # float32 inside, log-probabilities down to -60
ADVANTAGE_BOUND = 1e-9
FLOAT32_ADVANTAGE_BOUND = 1e-5  # for a stack that computes advantages in float32
EXTREMES = ((-800.0, -800.4), (-800.4, -800.0), (-0.01, -2.5), (-2.5, -0.01))
"""Log-probabilities of policy and reference whose probabilities are 0 in any precision, or far apart."""


def _make_rollout(stack: Any, seed: int, tidy: bool) -> Rollout:
    return make_rollout(seed, tidy=tidy)


def _oracle_of(stack: Any, case: Rollout) -> tuple[Any, oracles.LossOracle]:
    inputs = inputs_of(case, counts=_counts_beyond(case))
    as_lists = {
        name: getattr(inputs, name).detach().tolist()
        for name in (
            "logprobs_BT",
            "old_logprobs_BT",
            "ref_logprobs_BT",
            "sampling_logprobs_BT",
            "entropy_BT",
        )
    }
    oracle = oracles.policy_loss(
        as_lists["logprobs_BT"],
        as_lists["old_logprobs_BT"],
        as_lists["ref_logprobs_BT"],
        as_lists["sampling_logprobs_BT"],
        as_lists["entropy_BT"],
        inputs.advantages_B.tolist(),
        inputs.mask_BT.tolist(),
        stack.loss_spec,
        inputs.global_valid_tokens,
        inputs.global_valid_seqs,
    )
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
        bound=LOSS_BOUND,
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
        bound=LOSS_BOUND,
        what=f"d loss / d logprob at row {row}, token {token} for {stack.loss_spec}, relative difference",
    )


@dataclass(frozen=True, kw_only=True)
class LogitsCase:
    """Logits of B rows, with prompts and completions of unequal length."""

    prompt_lens: tuple[int, ...]
    completion_lens: tuple[int, ...]
    vocab_size: int
    temperature: float
    sharpness: float
    seed: int

    def smaller(self) -> Iterator[LogitsCase]:
        """Yield fewer rows, shorter rows, temperature 1."""
        for drop in range(len(self.prompt_lens)):
            if len(self.prompt_lens) > 1:
                keep = [index for index in range(len(self.prompt_lens)) if index != drop]
                yield replace(
                    self,
                    prompt_lens=tuple(self.prompt_lens[index] for index in keep),
                    completion_lens=tuple(self.completion_lens[index] for index in keep),
                )
        if max(self.completion_lens) > 1:
            yield replace(self, completion_lens=tuple(max(1, length // 2) for length in self.completion_lens))
        if max(self.prompt_lens) > 1:
            yield replace(self, prompt_lens=tuple(max(1, length // 2) for length in self.prompt_lens))
        if self.temperature != 1.0:
            yield replace(self, temperature=1.0)

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return {
            **vars(self),
            "prompt_lens": list(self.prompt_lens),
            "completion_lens": list(self.completion_lens),
        }

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits_BSV, completion_ids_BT and prompt_lens_B."""
        generator = torch.Generator().manual_seed(self.seed)
        T = max(self.completion_lens)
        S = max(self.prompt_lens) + T
        shape = (len(self.prompt_lens), S, self.vocab_size)
        logits_BSV = torch.randn(shape, generator=generator) * self.sharpness
        ids_BT = torch.randint(self.vocab_size, (shape[0], T), generator=generator)
        return logits_BSV, ids_BT, torch.tensor(self.prompt_lens)


def make_logits_case(stack: Any, seed: int, tidy: bool) -> LogitsCase:
    """Return logits with unequal prompts, a vocabulary that no block divides, and sometimes peaked."""
    rng = np.random.default_rng([seed, 12])
    if tidy:
        return LogitsCase(
            prompt_lens=(3,) * 4,
            completion_lens=(5,) * 4,
            vocab_size=64,
            temperature=1.0,
            sharpness=1.0,
            seed=seed,
        )
    return LogitsCase(
        prompt_lens=tuple(int(length) for length in rng.integers(1, 9, size=5)),
        completion_lens=tuple(int(length) for length in rng.integers(1, 8, size=5)),
        vocab_size=int(rng.choice([37, 131, 1031])),
        temperature=float(rng.choice([0.5, 0.7, 1.3])),
        sharpness=float(rng.choice([1.0, 8.0])),
        seed=seed,
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
                make=_make_rollout,
                measure=_loss_value,
                suspects="a wrong reduction or count, a term left out or with the wrong sign, a mask not applied",
            ),
            Law(
                name="loss gradient",
                make=_make_rollout,
                measure=_loss_gradient,
                suspects="a detach that is missing or too much, a clip on the wrong side, minimum for maximum",
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
                suspects="groups told by position, statistics over the batch, a biased or unbiased deviation mixed up",
            ),
        ),
    ),
)
