"""R11: on a categorical policy with a closed form, the gradient has the right direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.on_policy import drops_tokens
from seatrial.relations.records import LossInputs

BOUND = 1e-6


@dataclass(frozen=True, kw_only=True)
class Bandit(Case):
    """A policy over few arms whose probabilities are counts over a total, so that rows represent them exactly."""

    counts: tuple[int, ...]
    """Rows that drew each arm; the policy's probability of an arm is its share."""
    rewards: tuple[float, ...]
    reference: tuple[float, ...]
    """Probabilities of the reference policy."""

    def smaller(self) -> Iterator[Bandit]:
        """Yield the bandit with equal probabilities."""
        if len(set(self.counts)) > 1:
            yield replace(self, counts=(1,) * len(self.counts))

    def probabilities(self) -> torch.Tensor:
        """Return the policy's probabilities."""
        counts = torch.tensor(self.counts, dtype=torch.float64)
        return counts / counts.sum()

    def arms(self) -> list[int]:
        """Return the arm of each row."""
        return [arm for arm, count in enumerate(self.counts) for _ in range(count)]


def _make(stack: Any, seed: int, tidy: bool) -> Bandit:
    rng = np.random.default_rng([seed, 11])
    if tidy:
        return Bandit(counts=(2, 2), rewards=(1.0, 0.0), reference=(0.5, 0.5))
    reference = rng.dirichlet(np.full(4, 3.0))
    return Bandit(
        counts=tuple(int(count) for count in rng.integers(1, 9, size=4)),
        rewards=tuple(float(reward) for reward in rng.normal(size=4).round(2)),
        reference=tuple(float(share) for share in reference),
    )


def _has_no_advantages(stack: Any) -> str | None:
    return None if hasattr(stack, "advantages") else "it offers no advantages"


def _kl_does_not_pull_alone(stack: Any) -> str | None:
    spec = stack.loss_spec
    if not spec.kl_penalty:
        return "loss_spec.kl_penalty=0"
    if spec.entropy_coefficient:
        return f"loss_spec.entropy_coefficient={spec.entropy_coefficient:g}"
    k1_alone = (spec.kl_type, spec.kl_gradient) == ("k1", "estimator") and not spec.kl_importance_sampling
    return "loss_spec.kl_type='k1', whose gradient is 0 in expectation" if k1_alone else None


BANDIT = Relation(
    id="R11.bandit",
    name="exact-bandit",
    component="policy_loss",
    uses=("advantages",),
    statement="On a bandit solved on paper the gradient is that of the expected reward; the KL term lowers the KL.",
    catalogue="SB152 SB165 SB179 SB208",
    cost="CPU, milliseconds",
    cases=_make,
)


@BANDIT.law(
    "gradient of the expected reward",
    "the sign of the loss, a ratio that is detached, a wrong divisor",
    excluded=drops_tokens,
)
def gradient_of_the_expected_reward(stack: Any, case: Bandit) -> Measure:
    """Check that the loss's gradient, less that at advantage 0, is minus the gradient of the expected reward."""
    arms = torch.tensor(case.arms())
    rewards_V = torch.tensor(case.rewards, dtype=torch.float64)
    rewards_B = rewards_V[arms]
    given_V = _gradient(stack, case, rewards_B - rewards_B.mean()) - _gradient(
        stack, case, torch.zeros_like(rewards_B)
    )
    logits_V = case.probabilities().log().requires_grad_()
    (exact_V,) = torch.autograd.grad((logits_V.softmax(0) * rewards_V).sum(), logits_V)
    difference = float((given_V + _scale(stack, case) * exact_V).abs().max())
    return Measure(
        error=difference, bound=BOUND, what="gradient against minus the exact gradient of the expected reward"
    )


def _gradient(stack: Any, case: Bandit, advantages_B: torch.Tensor) -> torch.Tensor:
    logits_V = case.probabilities().log().requires_grad_()
    (gradient_V,) = torch.autograd.grad(stack.policy_loss(_inputs(case, logits_V, advantages_B)), logits_V)
    return gradient_V


def _inputs(case: Bandit, logits_V: torch.Tensor, advantages_B: torch.Tensor) -> LossInputs:
    """Return on-policy inputs: one token a row, drawn by the policy as often as its probability says."""
    arms = torch.tensor(case.arms())
    current_B1 = logits_V.log_softmax(0)[arms].unsqueeze(1)
    fixed_B1 = current_B1.detach().clone()
    reference_B1 = torch.tensor(case.reference, dtype=torch.float64).log()[arms].unsqueeze(1)
    entropy = -(logits_V.softmax(0) * logits_V.log_softmax(0)).sum()
    return LossInputs(
        logprobs_BT=current_B1,
        old_logprobs_BT=fixed_B1,
        ref_logprobs_BT=reference_B1,
        sampling_logprobs_BT=fixed_B1,
        advantages_B=advantages_B,
        mask_BT=torch.ones_like(fixed_B1),
        entropy_BT=entropy.expand_as(fixed_B1),
        global_valid_tokens=float(len(arms)),
        global_valid_seqs=float(len(arms)),
    )


def _scale(stack: Any, case: Bandit) -> float:
    """Return what the reduction multiplies a one-token row by, relative to the mean over rows."""
    spec = stack.loss_spec
    if spec.reduction == "sum":
        return float(len(case.arms()))
    return 1.0 / spec.fixed_length if spec.reduction == "fixed_length" else 1.0


@BANDIT.law(
    "the update raises the expected reward",
    "advantages negated, the sign of the loss",
    excluded=_has_no_advantages,
)
def update_raises_the_reward(stack: Any, case: Bandit) -> Measure | None:
    """Check that a small step along the stack's own advantages raises the expected reward."""
    if len(set(case.rewards)) == 1:
        return None
    arms = torch.tensor(case.arms())
    rewards_V = torch.tensor(case.rewards, dtype=torch.float64)
    advantages_B = stack.advantages(rewards_V[arms], torch.zeros(len(arms), dtype=torch.long)).double()
    step_V = _gradient(stack, case, advantages_B) - _gradient(
        stack, case, torch.zeros(len(arms), dtype=torch.float64)
    )
    logits_V = case.probabilities().log()
    rise = float((((logits_V - 1e-4 * step_V).softmax(0) - logits_V.softmax(0)) * rewards_V).sum())
    return Measure(
        error=0.0 if rise > 0 else 1.0,
        bound=0,
        what=f"expected reward rose by {rise:.3g} along the update (1: it did not)",
    )


@BANDIT.law(
    "the KL term lowers the KL",
    "the KL rewarded instead of penalised, its log-ratio inverted, its gradient detached",
    excluded=_kl_does_not_pull_alone,
)
def kl_term_lowers_the_kl(stack: Any, case: Bandit) -> Measure | None:
    """Check that one step at advantage 0, where the KL term acts alone, brings the policy nearer to the reference."""
    spec = stack.loss_spec
    zeros_B = torch.zeros(len(case.arms()), dtype=torch.float64)
    logits_V = case.probabilities().log()
    moved_V = logits_V - _gradient(stack, case, zeros_B) * (0.01 / spec.kl_penalty)
    before, after = _kl(logits_V, case), _kl(moved_V, case)
    if before < 1e-6:
        return None
    return Measure(
        error=0.0 if after < before else 1.0,
        bound=0,
        what=f"KL to the reference {before:.6g} -> {after:.6g} (1: it rose)",
    )


def _kl(logits_V: torch.Tensor, case: Bandit) -> float:
    reference_V = torch.tensor(case.reference, dtype=torch.float64)
    return float((logits_V.softmax(0) * (logits_V.log_softmax(0) - reference_V.log())).sum())
