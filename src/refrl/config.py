"""The configuration schema of refrl: YAML plus dotted overrides, validated whole before anything is loaded.

Names follow NeMo RL's configuration (project convention). Every field is used somewhere; an unknown key is
an error that names the nearest known one.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from refrl.config_loading import ConfigError, load_config, validate_config

__all__ = ["ConfigError", "GRPORunConfig", "SFTRunConfig", "load_config", "validate_config"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AdvantageConfig(_Section):
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


class LossConfig(_Section):
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
        if self.kl_in == "reward" and self.reference_policy_kl_gradient != "estimator":
            raise ValueError(
                "loss_fn.reference_policy_kl_gradient has no effect with loss_fn.kl_in=reward: leave it out"
            )
        return self


class OptimizerConfig(_Section):
    """AdamW."""

    lr: float = Field(default=1e-3, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)


class SchedulerConfig(_Section):
    """Learning rate: linear warm-up, then constant, linear or cosine decay to `min_lr_ratio`."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)


class GenerationConfig(_Section):
    """Sampling."""

    backend: Literal["torch"] = "torch"
    max_new_tokens: int = Field(default=16, gt=0)
    temperature: float = Field(default=1.0, gt=0)
    """Also used when log-probabilities are computed for training."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, gt=0)
    stop_token_ids: tuple[int, ...] | None = None
    """Ids that end a completion; None takes the end-of-sequence ids of the model and of the tokenizer."""


class TokenizerConfig(_Section):
    """Where the tokenizer comes from."""

    name: str | None = None
    """Directory of the tokenizer; None takes `policy.model_name`."""


class PolicyConfig(_Section):
    """The model that is trained."""

    model_name: str
    """Directory of a Hugging Face causal language model."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    precision: Literal["float32", "bfloat16"] = "float32"
    train_global_batch_size: int = Field(gt=0)
    """Rows of an optimizer step."""
    train_micro_batch_size: int = Field(gt=0)
    """Rows of a forward and backward pass."""
    logprob_batch_size: int = Field(default=64, gt=0)
    """Rows of a forward pass that only scores."""
    max_total_sequence_length: int = Field(gt=1)
    """Longest prompt plus completion, in tokens."""
    sequence_length_buckets: tuple[int, ...] = ()
    """Padded lengths of prompt plus completion; empty pads to the longest row of the batch."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    optimizer: OptimizerConfig = OptimizerConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    generation: GenerationConfig = GenerationConfig()


class GRPOConfig(_Section):
    """The GRPO loop."""

    num_prompts_per_step: int = Field(gt=0)
    num_generations_per_prompt: int = Field(gt=1)
    max_num_steps: int = Field(gt=0)
    val_period: int = Field(default=0, ge=0)
    """Validate every so many steps; 0 never does."""
    val_at_start: bool = False
    val_at_end: bool = False
    max_val_samples: int = Field(default=64, gt=0)
    val_greedy: bool = False
    """Validate with the likeliest tokens instead of samples at `policy.generation.temperature`."""
    seed: int = Field(default=0, ge=0)
    advantage: AdvantageConfig = AdvantageConfig()


class SFTConfig(_Section):
    """The SFT loop."""

    max_num_steps: int = Field(gt=0)
    val_period: int = Field(default=0, ge=0)
    val_at_start: bool = False
    val_at_end: bool = False
    max_val_samples: int = Field(default=64, gt=0)
    val_greedy: bool = False
    """Validate with the likeliest tokens instead of samples at `policy.generation.temperature`."""
    seed: int = Field(default=0, ge=0)
    stop_at_accuracy: float | None = Field(default=None, gt=0, le=1)
    """End, and export, after the first validation that reaches this accuracy."""

    @model_validator(mode="after")
    def _stopping_needs_validations(self) -> SFTConfig:
        if self.stop_at_accuracy is not None and self.val_period == 0:
            raise ValueError("sft.stop_at_accuracy needs sft.val_period: without validations it never stops")
        return self


class DataConfig(_Section):
    """Prompts."""

    task: str
    """Name of a task in `refrl.tasks`."""
    task_args: dict[str, int | float | str | bool] = {}
    """Arguments of the task, such as `max_length: 4`; checked against its signature."""
    verifier: str | None = None
    """Name of a verifier in `refrl.rewards`; None takes the task's own."""
    num_train: int = Field(default=1024, gt=0)
    num_validation: int = Field(default=128, gt=0)
    seed: int = Field(default=0, ge=0)
    """Seed of the splits; independent of the seed of the loop."""
    shuffle: bool = True


class LoggerConfig(_Section):
    """Where metrics go."""

    log_dir: str
    tensorboard_enabled: bool = True
    log_train_data: bool = True
    """Write the rows of each step to `train_data_step<N>.jsonl`, and those of a validation to
    `validation_data_step<N>.jsonl`."""


class CheckpointingConfig(_Section):
    """The final export."""

    enabled: bool = True
    checkpoint_dir: str
    """The trained model is exported to `<checkpoint_dir>/final` as a Hugging Face directory."""


class ClusterConfig(_Section):
    """What the run computes on."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where there is one."""
    num_threads: int | None = Field(default=None, gt=0)
    """Threads of a CPU operation; None leaves torch's own choice."""


class GRPORunConfig(_Section):
    """Everything a `refrl grpo` run reads."""

    policy: PolicyConfig
    grpo: GRPOConfig
    loss_fn: LossConfig = LossConfig()
    data: DataConfig
    logger: LoggerConfig
    checkpointing: CheckpointingConfig
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _batch_sizes_divide(self) -> GRPORunConfig:
        rows = self.grpo.num_prompts_per_step * self.grpo.num_generations_per_prompt
        if rows % self.policy.train_global_batch_size:
            raise ValueError(
                f"policy.train_global_batch_size={self.policy.train_global_batch_size} does not divide the "
                f"{rows} rows of a step (grpo.num_prompts_per_step x grpo.num_generations_per_prompt)"
            )
        return self


class SFTRunConfig(_Section):
    """Everything a `refrl sft` run reads."""

    policy: PolicyConfig
    sft: SFTConfig
    data: DataConfig
    logger: LoggerConfig
    checkpointing: CheckpointingConfig
    cluster: ClusterConfig = ClusterConfig()
