"""Data that a stack's adapter and the relations exchange: rows, inputs, results.

Letters of shapes are those of docs/architecture.md (B rows, S padded sequence, T padded completion).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Row:
    """One completion of one prompt, as a rollout returns it. Per-token fields have the completion's length."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    """Sampled ids, the sampled end token included. May contain ids equal to the pad or end id."""
    completion_mask: tuple[int, ...]
    """1 on sampled tokens, 0 on tokens that were not (tool output); all 0 for a row that must not train."""
    prompt_id: int
    """Identity of the prompt; rows with the same one form a group. Rows of a group need not be adjacent."""
    reward: float
    advantage: float
    sampling_logprobs: tuple[float, ...]
    old_logprobs: tuple[float, ...]
    ref_logprobs: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Arguments of a policy loss; float tensors of shape [B, T] except where noted."""

    logprobs_BT: Tensor
    """Log-probabilities of the current policy; the leaf that gradients are taken of."""
    old_logprobs_BT: Tensor
    ref_logprobs_BT: Tensor
    sampling_logprobs_BT: Tensor
    advantages_B: Tensor
    mask_BT: Tensor
    """1 on tokens that train, 0 elsewhere; the other tensors may hold anything where it is 0."""
    entropy_BT: Tensor
    global_valid_tokens: float
    """Number of training tokens of the whole optimizer batch, of which this may be a part."""
    global_valid_seqs: float
    """Number of rows of the whole optimizer batch that have at least one training token."""


LossKind = Literal[
    "ppo_clip",
    "gspo",
    "cispo",
    "sapo",
    "policy_gradient",
    "dppo_tv",
    "dppo_kl",
    "clip_cov",
    "kl_cov",
    "geometric_mean",
    "dro",
]


@dataclass(frozen=True, kw_only=True)
class LossSpec:
    """The loss that the stack declares; the float64 oracle computes it from the definition (`oracles.surrogates`)."""

    kind: LossKind = "ppo_clip"
    ratio_clip_min: float = 0.2
    ratio_clip_max: float = 0.2
    ratio_clip_c: float | None = None
    reduction: Literal["token", "sequence", "fixed_length", "sum"] = "token"
    """Mean over tokens; mean over rows of a row's mean, or of its sum divided by `fixed_length`; sum over tokens."""
    fixed_length: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Of kinds that have others than a clip, by the name that `oracles.surrogates` gives them."""
    kl_penalty: float = 0.0
    kl_type: Literal["k1", "k2", "k3"] = "k3"
    kl_gradient: Literal["estimator", "k2"] = "estimator"
    """What is differentiated: the estimator, or k2 under the estimator's value."""
    kl_importance_sampling: bool = False
    """Whether the KL is multiplied by current / old, with gradient."""
    entropy_coefficient: float = 0.0
    importance_sampling: Literal["none", "truncated", "masked"] = "none"
    importance_sampling_max: float = 2.0
    importance_sampling_min: float = 0.5

    def __str__(self) -> str:
        """Return the kind and the options that differ from the defaults."""
        return _without_defaults(self, "kind")


@dataclass(frozen=True, kw_only=True)
class BuiltBatch:
    """What a batch builder returns for rows, in sequence coordinates."""

    input_ids_BS: Tensor
    attention_mask_BS: Tensor
    """1 on real tokens."""
    loss_mask_BS: Tensor
    """1 on the tokens that are trained on (the predicted tokens, not the positions that predict them)."""
    sampling_logprobs_BS: Tensor
    """The sampler's log-probability of each token, at the token's own position."""
    rewards_B: Tensor
    prompt_ids_B: Tensor
    """Identity of each row's prompt."""
    num_cut_tokens: int = 0
    """Completion tokens that the builder reports as truncated."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a training step computed before clipping and before the optimizer."""

    loss: float
    gradients: Mapping[str, Tensor]
    """Raw gradient of every trainable parameter by name."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Logged scalars under the stack's names."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """One sampled completion."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural logarithm of the probability that each id was sampled with."""
    finish_reason: Literal["stop", "length", "abort"]
    """`abort`: the engine was instructed to stop it."""
    kept_ids: tuple[tuple[int, ...], ...] | None = None
    """Ids that top-p and top-k kept at each token; None: no filter, or not reported."""


@dataclass(frozen=True, kw_only=True)
class PoolReply:
    """What a simulated engine answers to a request."""

    ids: tuple[int, ...]
    finish_reason: str
    """`abort` if the engine gave up, so that the reply is only a part."""


@dataclass(frozen=True, kw_only=True)
class AdvantageSpec:
    """The advantages that the stack declares (attribute `advantage_spec`)."""

    estimator: Literal["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"] = "grpo"
    scale: Literal["group", "batch", "none"] = "group"
    epsilon: float = 1e-6
    unbiased: bool = True
    """Whether the standard deviation divides by n - 1."""

    def __str__(self) -> str:
        """Return the estimator and the options that differ from the defaults."""
        return _without_defaults(self, "estimator")


def _without_defaults(spec: LossSpec | AdvantageSpec, first: str) -> str:
    """Return a declaration as text: the first option, and those that differ from their defaults."""
    default = type(spec)()
    changed = [
        f"{item.name}={getattr(spec, item.name)!r}"
        for item in fields(spec)
        if item.name != first and getattr(spec, item.name) != getattr(default, item.name)
    ]
    return f"{type(spec).__name__}({', '.join([repr(getattr(spec, first)), *changed])})"
