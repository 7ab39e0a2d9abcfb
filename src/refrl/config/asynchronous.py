"""`grpo.async_grpo`: rollouts beside the training."""

from __future__ import annotations

from pydantic import Field, model_validator

from refrl.config.base import Section


class AsyncGRPOConfig(Section):
    """Rollouts that are sampled while the policy is trained; needs `policy.generation.colocated.enabled=false`."""

    enabled: bool = False
    """Sample beside the training, with weights that may be older than the trainer's."""
    max_trajectory_age_steps: int = Field(default=1, gt=0)
    """Training steps that may lie between the weights that began a completion and those that train on it."""
    in_flight_weight_updates: bool = False
    """New weights do not wait for completions that are being sampled: these go on with the new weights (which read
    what was sampled so far again), and their rows say which token is of which version."""
    num_replicas: int = Field(default=1, gt=0)
    """Generation engines that share the rows; `policy.generation.placement=process` runs each in its own process."""
    stall_timeout_seconds: float = Field(default=1800.0, gt=0)
    """A step that waits so long for rollouts, while none arrives, ends the run."""
    drop_zero_variance: bool = False
    """A step drops groups whose rewards, before any shaping, are all equal, and waits for others in their place."""
    drop_longer_than: int | None = Field(default=None, gt=0)
    """A step drops groups that have a row of more tokens, prompt and completion together; None drops none."""

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
