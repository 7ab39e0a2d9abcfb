"""The oracles of policy losses beyond clipping: losses on whole tensors equal them, and each planted fault is seen."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from seatrial.relations.engine import run_relation
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import LossInputs, LossSpec
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

SPECS = {
    "sapo": LossSpec(
        kind="sapo", parameters={"tau_positive": 1.0, "tau_negative": 1.4}, reduction="sequence"
    ),
    "policy_gradient": LossSpec(kind="policy_gradient"),
    "dppo_tv": LossSpec(
        kind="dppo_tv", ratio_clip_min=0.02, ratio_clip_max=0.03, parameters={"ratio_cap": 1.5}
    ),
    "dppo_kl": LossSpec(
        kind="dppo_kl", ratio_clip_min=0.005, ratio_clip_max=0.008, parameters={"ratio_cap": 1.5}
    ),
    "clip_cov": LossSpec(kind="clip_cov", parameters={"covariance_min": 0.3, "covariance_max": 5.0}),
    "kl_cov": LossSpec(kind="kl_cov", parameters={"covariance_share": 0.2, "kl_factor": 0.7}),
    "geometric_mean": LossSpec(kind="geometric_mean", reduction="sequence"),
    "dro": LossSpec(kind="dro", parameters={"beta": 0.4}),
}


@dataclass
class PlainLoss:
    """Losses on whole tensors, differentiated by torch; a fault is one expression that differs."""

    loss_spec: LossSpec
    fault: str = ""
    facts: StackFacts = field(default_factory=StackFacts)

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        spec, real_BT = self.loss_spec, inputs.mask_BT.bool()
        current_BT = inputs.logprobs_BT.where(real_BT, 0.0)
        moved_BT = current_BT - inputs.old_logprobs_BT.where(real_BT, 0.0)
        advantages_BT = inputs.advantages_B[:, None].expand_as(current_BT)
        losses_BT = getattr(self, f"_{spec.kind}")(current_BT, moved_BT, advantages_BT, real_BT)
        losses_BT = losses_BT.where(real_BT, 0.0)
        if spec.reduction == "sum":
            return losses_BT.sum()
        if spec.reduction == "token":
            return losses_BT.sum() / inputs.global_valid_tokens
        return (losses_BT.sum(1) / real_BT.sum(1).clamp(min=1)).sum() / inputs.global_valid_seqs

    def _ppo_clip(self, current: Tensor, moved: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        ratio = moved.exp()
        return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)

    def _policy_gradient(self, current: Tensor, moved: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        return -advantages * (moved.exp() if self.fault == "ratio" else current)

    def _sapo(self, current: Tensor, moved: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        up, down = self.loss_spec.parameters["tau_positive"], self.loss_spec.parameters["tau_negative"]
        up, down = (down, up) if self.fault == "temperatures swapped" else (up, down)
        tau = down + (up - down) * (advantages > 0).double()
        return -advantages * torch.sigmoid(tau * (moved.exp() - 1)) * 4 / tau

    def _dppo_tv(self, current: Tensor, moved: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        new = current.exp()
        rise = new - (current - moved).exp()
        return self._truncated(current, moved, advantages, rise, rise.abs())

    def _dppo_kl(self, current: Tensor, moved: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        new, old = current.exp(), (current - moved).exp()
        both = torch.stack([old, 1 - old]).clamp(min=1e-12), torch.stack([new, 1 - new]).clamp(min=1e-12)
        return self._truncated(
            current, moved, advantages, new - old, (both[0] * (both[0] / both[1]).log()).sum(0)
        )

    def _truncated(
        self, current: Tensor, moved: Tensor, advantages: Tensor, rise: Tensor, distance: Tensor
    ) -> Tensor:
        spec = self.loss_spec
        low, high = spec.ratio_clip_min, spec.ratio_clip_max
        low, high = (high, low) if self.fault == "bounds swapped" else (low, high)
        beyond = torch.where(advantages > 0, (rise > 0) & (distance > high), (rise < 0) & (distance > low))
        weight = moved.exp().clamp(max=spec.parameters["ratio_cap"])
        weight = weight if self.fault == "not detached" else weight.detach()
        return torch.where(beyond, 0.0, -advantages * weight * current)

    def _covariance(self, current: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        shift = 0.0 if self.fault == "not centred" else 1.0
        return (advantages - shift * advantages[real].mean()) * (
            current - shift * current[real].mean()
        ).detach()

    def _clip_cov(self, current: Tensor, moved: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        losses, covariance = (
            self._ppo_clip(current, moved, advantages, real),
            self._covariance(current, advantages, real),
        )
        free = -advantages * moved.exp() == losses
        dropped = (covariance > 0.3) & (covariance < 5.0) & free
        return losses.where(~dropped, 0.0)

    def _kl_cov(self, current: Tensor, moved: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        covariance = self._covariance(current, advantages, real).where(real, -torch.inf).flatten()
        chosen = torch.zeros_like(covariance)
        chosen[covariance.topk(max(1, int(0.2 * int(real.sum())))).indices] = 1.0
        kl = moved.square() / 2 if self.fault == "squared" else moved.abs()
        return -advantages * moved.exp() + 0.7 * kl * chosen.view_as(kl)

    def _geometric_mean(self, current: Tensor, moved: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        held = torch.where(advantages > 0, moved.clamp(max=0.2), moved.clamp(min=-0.2))
        if self.fault == "clipped on both sides":
            held = moved.clamp(-0.2, 0.2)
        mean = held.where(real, 0.0).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        return -advantages * mean.exp().expand_as(moved)

    def _dro(self, current: Tensor, moved: Tensor, advantages: Tensor, real: Tensor) -> Tensor:
        return -advantages * current + (0.4 if self.fault == "no half" else 0.2) * moved.square()


def broken(stack: PlainLoss, relation: str = "R12.loss") -> list[str]:
    """Return the laws of a relation that a loss breaks."""
    verdict = run_relation(*select([relation]), stack)
    assert verdict.outcome in (Outcome.PASS, Outcome.FAIL), verdict
    return list(verdict.details.get("laws_broken", []))


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
@pytest.mark.parametrize("relation", ["R12.loss", "R9.loss", "R11.bandit"])
def test_a_plain_loss_obeys(spec: LossSpec, relation: str) -> None:
    """Each kind equals its oracle, and where it drops no token on policy it is the policy gradient."""
    if (spec.kind, relation) != ("clip_cov", "R11.bandit"):
        assert broken(PlainLoss(spec), relation) == []


def test_a_sum_over_tokens_obeys() -> None:
    """The reduction `sum` has no divisor."""
    for relation in ("R1.loss", "R9.loss", "R11.bandit", "R12.loss"):
        assert broken(PlainLoss(LossSpec(reduction="sum")), relation) == []


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("sapo", "temperatures swapped"),
        ("policy_gradient", "ratio"),
        ("dppo_tv", "bounds swapped"),
        ("dppo_kl", "bounds swapped"),
        ("dppo_tv", "not detached"),
        ("clip_cov", "not centred"),
        ("kl_cov", "not centred"),
        ("kl_cov", "squared"),
        ("geometric_mean", "clipped on both sides"),
        ("dro", "no half"),
    ],
)
def test_a_planted_fault_is_seen(kind: str, fault: str) -> None:
    """In the value or the gradient."""
    assert broken(PlainLoss(SPECS[kind], fault)) != []


def test_choosing_within_a_micro_batch_is_seen() -> None:
    """Tokens with a large covariance in a micro-batch are not those of the whole batch."""
    assert broken(PlainLoss(SPECS["clip_cov"]), "R1.loss") != []
    assert broken(PlainLoss(SPECS["dro"]), "R1.loss") == []
