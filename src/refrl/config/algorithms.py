"""`grpo.advantage` and `loss_fn`: the mathematics of an update."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from refrl.config.base import Section


class AdvantageConfig(Section):
    """How rewards become advantages (`refrl.algorithms.advantages`)."""

    estimator: Literal["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"] = "grpo"
    """Baseline: group mean (GRPO, arXiv 2402.03300; Dr. GRPO, arXiv 2503.20783), leave-one-out mean
    (RLOO, arXiv 2402.14740), group mean then whitening over the batch (REINFORCE++, arXiv 2501.03262)."""
    scale: Literal["group", "batch", "none"] | None = None
    """Divide by the standard deviation of the group's rewards, of the batch's (arXiv 2508.08221), or not at
    all. None takes the estimator's own: `group` for grpo, `none` for dr_grpo and rloo, `batch` for
    reinforce_plus_plus_baseline; dr_grpo and reinforce_plus_plus_baseline allow no other."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation."""

    @property
    def resolved_scale(self) -> Literal["group", "batch", "none"]:
        """`scale`, or the estimator's own where it is None."""
        own: dict[str, Literal["group", "batch", "none"]]
        own = {"grpo": "group", "dr_grpo": "none", "rloo": "none", "reinforce_plus_plus_baseline": "batch"}
        return self.scale or own[self.estimator]

    @model_validator(mode="after")
    def _scale_belongs_to_the_estimator(self) -> AdvantageConfig:
        own = {"dr_grpo": "none", "reinforce_plus_plus_baseline": "batch"}.get(self.estimator)
        if own is not None and self.scale not in (None, own):
            raise ValueError(
                f"grpo.advantage.scale={self.scale} does not go with grpo.advantage.estimator={self.estimator}, "
                f"whose scale is {own}; leave scale out, or take estimator=grpo"
            )
        return self


class LossConfig(Section):
    """The policy loss (`refrl.algorithms.losses`)."""

    kind: Literal["ppo_clip", "gspo", "cispo"] = "ppo_clip"
    """Ratio per token (PPO, arXiv 1707.06347), per sequence (GSPO, arXiv 2507.18071), or a clipped detached
    weight on the log-probability (CISPO, arXiv 2506.13585)."""
    ratio_clip_min: float = Field(default=0.2, ge=0)
    """Lower clip: the ratio is held above 1 - ratio_clip_min."""
    ratio_clip_max: float = Field(default=0.2, ge=0)
    """Upper clip: the ratio is held below 1 + ratio_clip_max (clip-higher of DAPO, arXiv 2503.14476)."""
    ratio_clip_c: float | None = Field(default=None, gt=1)
    """Dual clip: bound c on the ratio where the advantage is negative (arXiv 1912.09729)."""
    reduction: Literal["token", "sequence", "fixed_length"] = "token"
    """Divide by the global number of valid tokens (DAPO); per-sequence mean, then mean over sequences
    (GRPO); or sum over `fixed_length` tokens, then mean over sequences (Dr. GRPO)."""
    fixed_length: int | None = Field(default=None, gt=0)
    """The constant of the `fixed_length` reduction, in tokens."""
    force_on_policy_ratio: bool = False
    """Take the log-probabilities of the training pass, detached, for those before the update: the ratio is 1, and one
    forward pass is saved. Right where a step is one update (NeMo RL's option of that name)."""
    reference_policy_kl_penalty: float = Field(default=0.01, ge=0)
    """Coefficient of the KL to the frozen reference policy."""
    reference_policy_kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that KL (Schulman 2020, "Approximating KL divergence")."""
    reference_policy_kl_gradient: Literal["estimator", "k2"] = "estimator"
    """What is differentiated where the KL is in the loss: the estimator itself (what most stacks do, though only
    k2 gives the gradient of the KL), or k2 under the estimator's value (arXiv 2506.09477, 2510.01555)."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the KL is a term of the loss or is taken off the reward (no gradient through it)."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus (positive raises entropy)."""
    importance_sampling: Literal["none", "truncated", "masked"] = "none"
    """Correction for sampler/trainer mismatch: weight exp(old - sampling) cut at the bound (TIS, Yao et al. 2025,
    "Your efficient RL framework secretly brings you off-policy RL training"), or 0 outside the band and itself
    inside (IcePop, arXiv 2510.18855)."""
    importance_sampling_max: float = Field(default=2.0, gt=1)
    """Upper bound of that weight."""
    importance_sampling_min: float = Field(default=0.5, gt=0, le=1)
    """Lower bound of the band (`masked` only)."""

    @model_validator(mode="after")
    def _fixed_length_is_given(self) -> LossConfig:
        if (self.reduction == "fixed_length") != (self.fixed_length is not None):
            raise ValueError(
                "loss_fn.fixed_length goes with loss_fn.reduction=fixed_length, and only with it"
            )
        return self

    @model_validator(mode="after")
    def _options_have_effect(self) -> LossConfig:
        if self.kind == "gspo" and self.reduction != "sequence":
            raise ValueError(
                f"loss_fn.kind=gspo is a loss per sequence; loss_fn.reduction={self.reduction} would weigh "
                "sequences by their length: set loss_fn.reduction=sequence"
            )
        if self.kind == "cispo" and self.ratio_clip_c is not None:
            raise ValueError("loss_fn.ratio_clip_c has no effect with loss_fn.kind=cispo: leave it out")
        if self.kl_in == "reward" and self.force_on_policy_ratio:
            raise ValueError(
                "loss_fn.kl_in=reward needs the log-probabilities before the update, which "
                "loss_fn.force_on_policy_ratio leaves out: take kl_in=loss, or leave force_on_policy_ratio out"
            )
        if self.kl_in == "reward" and self.reference_policy_kl_gradient != "estimator":
            raise ValueError(
                "loss_fn.reference_policy_kl_gradient has no effect with loss_fn.kl_in=reward: leave it out"
            )
        return self
