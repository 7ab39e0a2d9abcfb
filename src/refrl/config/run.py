"""The two loops, and the two complete configurations."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from refrl.config.algorithms import AdvantageConfig, LossConfig
from refrl.config.base import Directory, Section, SwitchedSection
from refrl.config.checkpointing import CheckpointingConfig
from refrl.config.data import DataConfig
from refrl.config.policy import PolicyConfig


class LoggerConfig(Section):
    """Where metrics go."""

    log_dir: Directory
    """Directory of everything that the run logs; created by the run."""
    tensorboard_enabled: bool = True
    """Write the scalars to `<log_dir>/tensorboard`."""
    observers: tuple[str, ...] = ()
    """Observers of the run, each by the name that an installed package offers (entry points of `refrl.observers`) or by
    import path: a callable that takes the configuration and returns a `refrl.training.session.Observer`."""
    log_train_data: bool = True
    """Write the rows of each step to `train_data_step<N>.jsonl`, those of a validation to
    `validation_data_step<N>.jsonl`, and what dynamic sampling drew to `drawn_data_step<N>.jsonl`."""


MAX_THREADS = 1024
"""Torch starts any requested number of threads, and crashes with a segmentation fault if the system has no more."""


class ClusterConfig(Section):
    """The processes and devices of the run."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` uses CUDA if available."""
    num_threads: int | None = Field(default=None, gt=0, le=MAX_THREADS)
    """Threads of a CPU operation, at most 1024; None leaves torch's default."""
    num_processes: int = Field(default=1, gt=0)
    """Processes that each sample, reward, score and train their share of the rows. If more than one, refrl starts them,
    or `torchrun --nproc-per-node`, with the same number."""
    placement: Literal["process", "ray"] = "process"
    """Where refrl starts them: on this host (a single one is the command's own process), or each in an actor of a
    Ray cluster, spread over its nodes, with its own GPU if training uses one."""
    ray_address: str | None = None
    """Ray cluster to join if ranks or another part are placed on Ray, as `host:port` of its head; None starts one on
    this host that stops with the run."""


class DataPlaneConfig(Section):
    """The store of rollout rows between producers and the trainer."""

    implementation: Literal["local", "ray", "transfer_queue"] = "local"
    """`local` serves one process; the others serve all processes of a Ray cluster."""
    lease_s: float = Field(default=600.0, gt=0)
    """Seconds after which claimed samples are released, unless the claim sets its own."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Seconds after which a store that does not answer is an error, also while it is being restored (not for `local`).
    Putting or reading the rows of one step must take less."""
    name: str = "refrl-data-plane"
    """Name of the store among the cluster's actors; clients with the same name share one store (not for `local`)."""
    journal: str | None = None
    """File from which a control actor that crashed is restored (`ray` and `transfer_queue`); None: a crash is final."""

    @model_validator(mode="after")
    def _options_have_effect(self) -> Self:
        for name in ("timeout_s", "name", "journal"):
            if (
                self.implementation == "local"
                and getattr(self, name) != type(self).model_fields[name].default
            ):
                raise ValueError(
                    f"data_plane.{name} is for a store in separate processes, and data_plane.implementation=local "
                    f"has none: leave {name} out, or use ray"
                )
        return self


class AsyncGRPOConfig(SwitchedSection):
    """Rollouts sampled while the policy trains; needs `policy.generation.colocated.enabled=false`."""

    key = "grpo.async_grpo"
    enabled: bool = False
    """Sample while the policy trains, with weights that may be older than the trainer's."""
    max_trajectory_age_steps: int = Field(default=1, gt=0)
    """Most training steps between the weights that began a completion and those that train on it."""
    in_flight_weight_updates: bool = False
    """New weights do not wait for running completions: these continue with the new weights, which first recompute what
    was sampled so far, and their rows record the weight version of each token."""
    num_replicas: int = Field(default=1, gt=0)
    """Generation engines that share the rows; `policy.generation.placement=process` runs each in its own process."""
    stall_timeout_seconds: float = Field(default=1800.0, gt=0)
    """The run ends with an error if a step waits this long and no rollout arrives."""
    drop_zero_variance: bool = False
    """Drop groups whose rewards, before any shaping, are all equal, and wait for other groups instead."""
    drop_longer_than: int | None = Field(default=None, gt=0)
    """Drop groups with a row of more tokens than this, prompt and completion together; None drops none."""


class RewardShapingConfig(Section):
    """A penalty on length, added to the reward (soft overlong punishment of DAPO, arXiv 2503.14476, eq. 13)."""

    enabled: bool = False
    """Add the penalty."""
    overlong_buffer_length: int | None = Field(default=None, gt=0)
    """The penalty grows over this many tokens before `max_response_length`."""
    overlong_buffer_penalty: float = Field(default=1.0, gt=0)
    """Subtracted from the reward at `max_response_length` and beyond."""
    max_response_length: int | None = Field(default=None, gt=0)
    """Length with the full penalty; None takes `policy.generation.max_new_tokens`."""

    @model_validator(mode="after")
    def _buffer_is_given(self) -> RewardShapingConfig:
        if self.enabled and self.overlong_buffer_length is None:
            raise ValueError(
                "grpo.reward_shaping.enabled needs grpo.reward_shaping.overlong_buffer_length, the tokens over which "
                "the penalty grows"
            )
        others = [name for name in type(self).model_fields if name != "enabled"]
        if not self.enabled and any(
            getattr(self, name) != type(self).model_fields[name].default for name in others
        ):
            raise ValueError(
                "grpo.reward_shaping has no effect without grpo.reward_shaping.enabled=true: set it, or leave the "
                "section out"
            )
        return self


class GRPOConfig(Section):
    """The GRPO loop."""

    num_prompts_per_step: int = Field(gt=0)
    """Prompts per step."""
    num_generations_per_prompt: int = Field(gt=1)
    """Completions of each prompt: a group, whose rewards are compared with each other."""
    max_num_steps: int = Field(gt=0)
    """Steps of the run."""
    val_period: int = Field(default=0, ge=0)
    """Validate every so many steps; 0 never validates."""
    val_at_start: bool = False
    """Validate before the first step."""
    val_at_end: bool = False
    """Validate after the last step."""
    max_val_samples: int = Field(default=64, gt=0)
    """Most held-out prompts per validation."""
    val_greedy: bool = False
    """Validate with the likeliest tokens instead of samples at `policy.generation.temperature`."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the order of prompts and of everything that is sampled."""
    advantage: AdvantageConfig = AdvantageConfig()
    reward_shaping: RewardShapingConfig = RewardShapingConfig()
    overlong_filtering: bool = False
    """Exclude completions that reached the length limit from the loss; their rewards stay in the baseline (DAPO,
    arXiv 2503.14476, section 3.4)."""
    zero_variance_filter: bool = False
    """Exclude groups whose rewards are all equal from the loss: their advantage is 0, but they count in its divisor."""
    max_verifier_error_share: float = Field(default=0.9, ge=0, le=1)
    """The run ends with an error after a step in which the verifier could not judge a larger share of the completions;
    at 1 it never does."""
    use_dynamic_sampling: bool = False
    """Sample further prompts until a step has enough groups whose rewards differ (DAPO, section 3.2)."""
    dynamic_sampling_max_gen_batches: int | None = Field(default=None, gt=0)
    """Generation batches after which a step that is still not full stops the run; None is 10."""
    batch_multiplier: float = Field(default=1.0, ge=1)
    """With `use_dynamic_sampling`: prompts of a generation batch as a multiple of a step's (1.5 draws half as many
    again, so that fewer batches are needed; surplus groups are discarded)."""
    async_grpo: AsyncGRPOConfig = AsyncGRPOConfig()

    @model_validator(mode="after")
    def _filters_have_effect(self) -> GRPOConfig:
        if self.async_grpo.drop_zero_variance and (self.use_dynamic_sampling or self.zero_variance_filter):
            other = "use_dynamic_sampling" if self.use_dynamic_sampling else "zero_variance_filter"
            raise ValueError(
                f"grpo.async_grpo.drop_zero_variance and grpo.{other} are about the same groups: leave one of them out"
            )
        if self.use_dynamic_sampling and self.zero_variance_filter:
            raise ValueError(
                "grpo.zero_variance_filter has no effect with grpo.use_dynamic_sampling, which drops these groups "
                "already: leave it out"
            )
        if self.dynamic_sampling_max_gen_batches is not None and not self.use_dynamic_sampling:
            raise ValueError(
                "grpo.dynamic_sampling_max_gen_batches has no effect without grpo.use_dynamic_sampling=true: set it, "
                "or leave it out"
            )
        if self.batch_multiplier != 1.0 and not self.use_dynamic_sampling:
            raise ValueError(
                "grpo.batch_multiplier has no effect without grpo.use_dynamic_sampling=true: set it, or leave it out"
            )
        return self


class SFTConfig(Section):
    """The SFT loop."""

    max_num_steps: int = Field(gt=0)
    """Steps of the run, one update each."""
    val_period: int = Field(default=0, ge=0)
    """Validate every so many steps; 0 never validates."""
    val_at_start: bool = False
    """Validate before the first step."""
    val_at_end: bool = False
    """Validate after the last step."""
    max_val_samples: int = Field(default=64, gt=0)
    """Most held-out prompts per validation."""
    val_greedy: bool = False
    """Validate with the likeliest tokens instead of samples at `policy.generation.temperature`."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the order of prompts and of what a validation samples."""
    stop_at_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Stop and export after the first validation that reaches this accuracy."""

    @model_validator(mode="after")
    def _stopping_needs_validations(self) -> SFTConfig:
        if self.stop_at_accuracy is not None and self.val_period == 0:
            raise ValueError("sft.stop_at_accuracy needs sft.val_period: without validations it never stops")
        return self


class _RunConfig(Section):
    """The sections that every loop reads, except its own."""

    policy: PolicyConfig
    data: DataConfig
    logger: LoggerConfig
    checkpointing: CheckpointingConfig
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _sections_fit(self) -> Self:
        rows, processes = self.policy.train_global_batch_size, self.cluster.num_processes
        sharing = self.policy.model_parallel_size
        if processes % sharing:
            raise ValueError(
                f"cluster.num_processes={processes} is not a multiple of {sharing}, the number of processes that work "
                f"on the same rows by policy.{self.policy.backend}_cfg: raise it to {sharing}"
            )
        if rows % (processes // sharing):
            raise ValueError(
                f"policy.train_global_batch_size={rows} is not a multiple of cluster.num_processes={processes}"
                f"{f' / {sharing}' if sharing > 1 else ''}: every process trains equally many rows"
            )
        if self.data.system_prompt is not None and self.policy.tokenizer.chat_template is None:
            raise ValueError(
                "data.system_prompt needs a chat template: set policy.tokenizer.chat_template, or put the text into "
                "the prompts"
            )
        return self

    @model_validator(mode="after")
    def _generators_reach_ray(self) -> Self:
        several = self.cluster.num_processes > 1 and self.cluster.placement != "ray"
        if self.policy.generation.placement == "ray" and several:
            raise ValueError(
                f"policy.generation.placement=ray and cluster.num_processes={self.cluster.num_processes}: processes of "
                "one host are not in a Ray cluster, which their generators need; set cluster.placement=ray, or use "
                "policy.generation.placement=process"
            )
        return self

    @model_validator(mode="after")
    def _ray_has_something_to_do(self) -> Self:
        if self.cluster.ray_address and not self._uses_ray():
            raise ValueError(
                "cluster.ray_address has no effect: set cluster.placement=ray or policy.generation.placement=ray, or "
                "leave it out"
            )
        return self

    def _uses_ray(self) -> bool:
        return "ray" in (self.cluster.placement, self.policy.generation.placement)


class GRPORunConfig(_RunConfig):
    """Everything a `refrl grpo` run reads."""

    grpo: GRPOConfig
    loss_fn: LossConfig = Field(default_factory=LossConfig)
    data_plane: DataPlaneConfig = DataPlaneConfig()

    def _uses_ray(self) -> bool:
        return super()._uses_ray() or self.data_plane.implementation != "local"

    @model_validator(mode="after")
    def _batch_sizes_divide(self) -> GRPORunConfig:
        rows = self.grpo.num_prompts_per_step * self.grpo.num_generations_per_prompt
        if rows % self.policy.train_global_batch_size:
            raise ValueError(
                f"policy.train_global_batch_size={self.policy.train_global_batch_size} does not divide the "
                f"{rows} rows of a step (grpo.num_prompts_per_step x grpo.num_generations_per_prompt)"
            )
        return self

    @model_validator(mode="after")
    def _on_policy_ratio_is_right(self) -> GRPORunConfig:
        if not self.loss_fn.force_on_policy_ratio:
            return self
        rows = self.grpo.num_prompts_per_step * self.grpo.num_generations_per_prompt
        if rows != self.policy.train_global_batch_size:
            raise ValueError(
                f"loss_fn.force_on_policy_ratio is correct for one update per step only, and {rows} rows with "
                f"policy.train_global_batch_size={self.policy.train_global_batch_size} make several: set it to {rows}, "
                "or leave force_on_policy_ratio out"
            )
        if self.grpo.overlong_filtering or self.grpo.zero_variance_filter:
            raise ValueError(
                "loss_fn.force_on_policy_ratio scores only rows that are trained on, and grpo.overlong_filtering and "
                "grpo.zero_variance_filter exclude rows, whose scores the log would not have: leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _async_has_generators_of_its_own(self) -> GRPORunConfig:
        if not self.grpo.async_grpo.enabled:
            return self
        if self.checkpointing.saves and self.grpo.async_grpo.in_flight_weight_updates:
            raise ValueError(
                "checkpointing.save_period and checkpoint_must_save_by cannot be combined with "
                "grpo.async_grpo.in_flight_weight_updates: something is always being sampled; leave one of them out"
            )
        if self.policy.generation.colocated.enabled:
            raise ValueError(
                "grpo.async_grpo.enabled samples while weights change, so the generator cannot share them: set "
                "policy.generation.colocated.enabled=false"
            )
        if self.cluster.num_processes > 1:
            raise ValueError(
                f"grpo.async_grpo.enabled and cluster.num_processes={self.cluster.num_processes}: asynchronous "
                "rollouts feed one training process; set it to 1 and raise grpo.async_grpo.num_replicas"
            )
        return self

    @model_validator(mode="after")
    def _data_plane_serves_the_processes(self) -> GRPORunConfig:
        if self.data_plane.implementation != "local" and self.cluster.num_processes > 1:
            raise ValueError(
                f"data_plane.implementation={self.data_plane.implementation} serves one training process, but "
                f"cluster.num_processes={self.cluster.num_processes} would each sample and put the same rows: leave "
                "one of them out"
            )
        return self

    @model_validator(mode="after")
    def _prompts_suffice(self) -> GRPORunConfig:
        num_train = self.data.num_train
        if self.grpo.use_dynamic_sampling and num_train and num_train < 2 * self.grpo.num_prompts_per_step:
            raise ValueError(
                f"data.num_train={num_train} leaves grpo.use_dynamic_sampling no other prompts to sample: "
                f"raise it to {2 * self.grpo.num_prompts_per_step} or more"
            )
        return self

    @model_validator(mode="after")
    def _penalty_can_apply(self) -> GRPORunConfig:
        shaping, limit = self.grpo.reward_shaping, self.policy.generation.max_new_tokens
        longest = shaping.max_response_length or limit
        if shaping.overlong_buffer_length is not None and (
            shaping.overlong_buffer_length > longest or longest - shaping.overlong_buffer_length >= limit
        ):
            raise ValueError(
                f"grpo.reward_shaping: a buffer of {shaping.overlong_buffer_length} tokens before {longest} has no "
                f"effect on completions of at most policy.generation.max_new_tokens={limit}: let the buffer start "
                "between 0 and that"
            )
        return self


class SFTRunConfig(_RunConfig):
    """Everything a `refrl sft` run reads."""

    sft: SFTConfig
