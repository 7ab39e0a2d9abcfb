"""`grpo.advantage` and `loss_fn`: the mathematics of an update."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from refrl.config.base import Section
from refrl.config.loading import ConfigError
from refrl.config.registry import Registry, parse_options

LOSSES = Registry(
    "loss",
    "refrl.losses",
    {
        "ppo_clip": "refrl.algorithms.losses.ppo_clip:PPOClip",
        "gspo": "refrl.algorithms.losses.gspo:GSPO",
        "cispo": "refrl.algorithms.losses.cispo:CISPO",
    },
)
"""What `loss_fn.kind` may name: subclasses of `refrl.algorithms.losses.base.TokenLoss`."""

_OWN_SCALES: dict[str, Literal["group", "batch", "none"]]
_OWN_SCALES = {"grpo": "group", "dr_grpo": "none", "rloo": "none", "reinforce_plus_plus_baseline": "batch"}
"""The scale that each built-in estimator has where none is given."""

ADVANTAGES = Registry(
    "estimator", "refrl.advantages", dict.fromkeys(_OWN_SCALES, "refrl.algorithms.advantages:GroupBaseline")
)
"""What `grpo.advantage.estimator` may name: subclasses of `refrl.algorithms.advantages.AdvantageEstimator`."""


class AdvantageConfig(Section):
    """How rewards become advantages (`refrl.algorithms.advantages`)."""

    estimator: str = "grpo"
    """Baseline: `grpo` and `dr_grpo` the group's mean (arXiv 2402.03300, 2503.20783), `rloo` the leave-one-out mean
    (arXiv 2402.14740), `reinforce_plus_plus_baseline` the group's mean, then whitening over the batch (arXiv
    2501.03262); or one of an installed package (entry points `refrl.advantages`), or `package.module:Class`."""
    scale: Literal["group", "batch", "none"] | None = None
    """Divide by the standard deviation of the group's rewards, of the batch's (arXiv 2508.08221), or do not divide.
    None takes the estimator's default: `group` for grpo, `none` for dr_grpo and rloo, `batch` for
    reinforce_plus_plus_baseline; dr_grpo and reinforce_plus_plus_baseline accept no other."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the standard deviation."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a custom estimator, validated against its schema."""

    @property
    def resolved_scale(self) -> Literal["group", "batch", "none"]:
        """`scale`, or the estimator's default if it is None; a custom estimator scales by itself."""
        return self.scale or _OWN_SCALES.get(self.estimator, "none")

    @property
    def is_built_in(self) -> bool:
        """Whether the estimator is one of refrl's, whose formula is known from its name."""
        return ADVANTAGES.is_built_in(self.estimator)

    @model_validator(mode="after")
    def _estimator_is_known(self) -> AdvantageConfig:
        if self.estimator in _OWN_SCALES:
            if self.options:
                raise ValueError(
                    f"grpo.advantage.options has no effect with grpo.advantage.estimator={self.estimator}: leave it out"
                )
            return self
        found = _find(ADVANTAGES, self.estimator, "grpo.advantage.estimator", "advantages")
        if self.scale is not None:
            raise ValueError(
                f"grpo.advantage.scale has no effect with grpo.advantage.estimator={self.estimator}, which scales by "
                "itself: leave it out"
            )
        parse_options(found.Options, self.options, "grpo.advantage.options")
        return self

    @model_validator(mode="after")
    def _scale_belongs_to_the_estimator(self) -> AdvantageConfig:
        fixed = ("dr_grpo", "reinforce_plus_plus_baseline")
        own = _OWN_SCALES[self.estimator] if self.estimator in fixed else None
        if own is not None and self.scale not in (None, own):
            raise ValueError(
                f"grpo.advantage.scale={self.scale} does not go with grpo.advantage.estimator={self.estimator}, "
                f"whose scale is {own}; leave scale out, or take estimator=grpo"
            )
        return self


class LossConfig(Section):
    """The policy loss (`refrl.algorithms.losses`)."""

    kind: str = "ppo_clip"
    """`ppo_clip` clips a ratio per token (PPO, arXiv 1707.06347), `gspo` per sequence (arXiv 2507.18071), `cispo` puts
    a clipped, detached weight on the log-probability (arXiv 2506.13585); or a loss of an installed package (entry
    points `refrl.losses`), or `package.module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a custom loss, validated against its schema; the built-in losses use the keys below."""
    ratio_clip_min: float = Field(default=0.2, ge=0)
    """Lower clip: the ratio is at least 1 - ratio_clip_min."""
    ratio_clip_max: float = Field(default=0.2, ge=0)
    """Upper clip: the ratio is at most 1 + ratio_clip_max (clip-higher of DAPO, arXiv 2503.14476)."""
    ratio_clip_c: float | None = Field(default=None, gt=1)
    """Dual clip: bound c on the ratio where the advantage is negative (arXiv 1912.09729)."""
    reduction: Literal["token", "sequence", "fixed_length"] = "token"
    """Divide by the global number of valid tokens (DAPO), average per sequence and then over sequences (GRPO), or
    sum over `fixed_length` tokens and average over sequences (Dr. GRPO)."""
    fixed_length: int | None = Field(default=None, gt=0)
    """The constant of the `fixed_length` reduction, in tokens."""
    force_on_policy_ratio: bool = False
    """Use the log-probabilities of the training pass, detached, as those before the update: the ratio is 1, and one
    forward pass is saved. Correct only if a step is one update (NeMo RL's option of that name)."""
    reference_policy_kl_penalty: float = Field(default=0.01, ge=0)
    """Coefficient of the KL to the frozen reference policy."""
    reference_policy_kl_type: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that KL (Schulman 2020, "Approximating KL divergence")."""
    reference_policy_kl_gradient: Literal["estimator", "k2"] = "estimator"
    """What is differentiated if the KL is in the loss: the estimator itself (what most stacks do, though only
    k2 gives the gradient of the KL), or k2 with the estimator's value (arXiv 2506.09477, 2510.01555)."""
    reference_policy_kl_importance_sampling: bool = False
    """Multiply the KL in the loss by current / old, with gradient (TRL's default; DeepSeek-V3.2, arXiv 2512.02556): the
    expected gradient of k1 and of k3 is then that of the KL, even if an older policy sampled."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Whether the KL is a term of the loss or is subtracted from the reward (without gradient)."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus (a positive weight raises entropy)."""
    importance_sampling: Literal["none", "truncated", "masked"] = "none"
    """Correction for sampler/trainer mismatch: the weight exp(old - sampling), truncated at the bound (TIS, Yao et al.
    2025, "Your efficient RL framework secretly brings you off-policy RL training"), or set to 0 outside the band
    (IcePop, arXiv 2510.18855)."""
    importance_sampling_max: float = Field(default=2.0, gt=1)
    """Upper bound of that weight."""
    importance_sampling_min: float = Field(default=0.5, gt=0, le=1)
    """Lower bound of the band (`masked` only)."""

    @property
    def is_built_in(self) -> bool:
        """Whether the loss is one of refrl's, which keep the ratio between the clips."""
        return LOSSES.is_built_in(self.kind)

    @model_validator(mode="after")
    def _fixed_length_is_given(self) -> LossConfig:
        if (self.reduction == "fixed_length") != (self.fixed_length is not None):
            raise ValueError(
                "loss_fn.fixed_length goes with loss_fn.reduction=fixed_length, and only with it"
            )
        return self

    @model_validator(mode="after")
    def _kind_is_known(self) -> LossConfig:
        found = _find(LOSSES, self.kind, "loss_fn.kind", "surrogate")
        parse_options(found.Options, self.options, "loss_fn.options")
        found.check(self)
        return self

    @model_validator(mode="after")
    def _options_have_effect(self) -> LossConfig:
        if self.kl_in == "reward" and self.force_on_policy_ratio:
            raise ValueError(
                "loss_fn.kl_in=reward needs the log-probabilities before the update, which "
                "loss_fn.force_on_policy_ratio leaves out: take kl_in=loss, or leave force_on_policy_ratio out"
            )
        if self.kl_in == "reward" and self.reference_policy_kl_gradient != "estimator":
            raise ValueError(
                "loss_fn.reference_policy_kl_gradient has no effect with loss_fn.kl_in=reward: leave it out"
            )
        if self.reference_policy_kl_importance_sampling and self.kl_in == "reward":
            raise ValueError(
                "loss_fn.reference_policy_kl_importance_sampling has no effect with loss_fn.kl_in=reward: leave it out"
            )
        if self.reference_policy_kl_importance_sampling and self.reference_policy_kl_gradient != "estimator":
            raise ValueError(
                "loss_fn.reference_policy_kl_importance_sampling corrects the estimator's own gradient: leave out "
                "loss_fn.reference_policy_kl_gradient"
            )
        return self


def _find(registry: Registry, name: str, key: str, method: str) -> Any:
    """Return the class of a name, for a validator.

    Raises:
        ValueError: there is none, or it has no attribute that every class of the kind has.
    """
    try:
        found = registry.find(name, key)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, type) or not hasattr(found, "Options") or not hasattr(found, method):
        raise ValueError(
            f"{key}={name} is no {registry.what}: it must be a class with the attribute Options and the method "
            f"{method}() (see docs/extend)"
        )
    return found
