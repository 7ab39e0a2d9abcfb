"""`grpo.async_grpo`: rollouts that run while the policy trains."""

from __future__ import annotations

from pydantic import Field, model_validator

from refrl.config.base import Section


class AsyncGRPOConfig(Section):
    """Rollouts sampled while the policy trains; needs `policy.generation.colocated.enabled=false`."""

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

    @model_validator(mode="after")
    def _options_have_effect(self) -> AsyncGRPOConfig:
        changed = [
            name
            for name, field in type(self).model_fields.items()
            if name != "enabled" and getattr(self, name) != field.default
        ]
        if changed and not self.enabled:
            raise ValueError(
                f"grpo.async_grpo.{changed[0]} has no effect without grpo.async_grpo.enabled=true: set it, or leave "
                f"{changed[0]} out"
            )
        return self
