"""What a policy loss is: a quantity per token to be minimised, with options and a specification of its own.

`refrl.algorithms.losses.policy` does the rest for every loss: the correction for the sampler, the KL to the reference,
the entropy bonus, the reduction by global counts and the metrics. Nothing here needs torch to be imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import BaseModel

from refrl.config.registry import NoOptions, parse_options

if TYPE_CHECKING:
    from torch import Tensor

    from refrl.config import LossConfig


class TokenInputs(NamedTuple):
    """What a loss may look at, B rows of T tokens; log-probabilities are 0 at masked positions."""

    logprobs_BT: Tensor
    """Of the current policy, with gradient."""
    old_logprobs_BT: Tensor
    """Of the policy before this step's updates."""
    sampling_logprobs_BT: Tensor
    """Of the sampler."""
    advantages_B1: Tensor
    mask_BT: Tensor
    """1 where a token was sampled and trains."""


class Surrogate(NamedTuple):
    """A loss per token with the ratio it was made of."""

    loss_BT: Tensor
    """To be minimised; what it holds at masked positions is not looked at."""
    ratio_BT: Tensor
    clamped_ratio_BT: Tensor


class TokenLoss(ABC):
    """A policy loss; subclass it, and name the class in `loss_fn.kind` or in an entry point of `refrl.losses`."""

    Options: ClassVar[type[BaseModel]] = NoOptions
    """Schema of `loss_fn.options`: a pydantic model that forbids unknown keys."""

    def __init__(self, config: LossConfig) -> None:
        """Take the section `loss_fn`; `self.options` is an instance of `Options`.

        Raises:
            ValueError: the options do not fit their schema.
        """
        self.config = config
        self.options: Any = parse_options(type(self).Options, config.options, "loss_fn.options")

    @classmethod  # noqa: B027  most losses have nothing to refuse
    def check(cls, config: LossConfig) -> None:
        """Refuse options that exclude one another or have no effect, when the configuration is read.

        Raises:
            ValueError: names the dotted keys and the remedy.
        """

    @abstractmethod
    def surrogate(self, inputs: TokenInputs) -> Surrogate:
        """Return the loss of each token, before importance weights, KL, entropy and reduction."""

    @classmethod
    def specification(cls, config: LossConfig) -> dict[str, object] | None:
        """Return what the loss claims to compute, in the words of an independent oracle; None where none knows it."""
        return None


def specification(config: LossConfig) -> dict[str, object] | None:
    """Return what the configured loss claims to compute, as plain values by name; None where no oracle knows it.

    The names are those of the section `loss_fn`, less `reference_policy_` before the KL's. A KL in the reward is no
    term of the loss, and has the penalty 0 here.
    """
    from refrl.config.algorithms import LOSSES

    own = LOSSES.find(config.kind, "loss_fn.kind").specification(config)
    if own is None:
        return None
    return {
        "reduction": config.reduction,
        "fixed_length": config.fixed_length,
        "kl_penalty": config.reference_policy_kl_penalty if config.kl_in == "loss" else 0.0,
        "kl_type": config.reference_policy_kl_type,
        "kl_gradient": config.reference_policy_kl_gradient,
        "kl_importance_sampling": config.reference_policy_kl_importance_sampling,
        "entropy_coefficient": config.entropy_coefficient,
        "importance_sampling": config.importance_sampling,
        "importance_sampling_max": config.importance_sampling_max,
        "importance_sampling_min": config.importance_sampling_min,
        **own,
    }
