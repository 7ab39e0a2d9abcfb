"""`policy.optimizer` and `policy.scheduler`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from refrl.config.base import Section

Decay = Annotated[float, Field(ge=0, lt=1)]
"""Share of a running mean that an update keeps."""


class OptimizerConfig(Section):
    """AdamW."""

    lr: float = Field(default=1e-3, ge=0)
    """Learning rate after the warm-up."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay of the running means of the gradient and of its square."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the mean square."""


class SchedulerConfig(Section):
    """Learning rate: linear warm-up, then constant, linear or cosine decay to `min_lr_ratio`."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises to `lr`."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate of the decay, as a fraction of `lr`."""
