"""`checkpointing`: what a run saves, and what it keeps."""

from __future__ import annotations

import re

from pydantic import Field, model_validator

from refrl.config.base import Directory, Section

_DEADLINE = re.compile(r"\d+:\d{2}:\d{2}:\d{2}")


class CheckpointingConfig(Section):
    """Checkpoints, from which the same command resumes, and the final export."""

    enabled: bool = True
    """Save checkpoints every `save_period` steps, and export the trained model at the end. An existing checkpoint is
    resumed from even if this is false."""
    checkpoint_dir: Directory
    """Checkpoints are `<checkpoint_dir>/step_<N>`; the trained model is exported to `<checkpoint_dir>/final` as a
    Hugging Face directory."""
    save_period: int = Field(default=0, ge=0)
    """Save a checkpoint every so many steps, and after the last; 0 saves none."""
    keep_top_k: int | None = Field(default=None, gt=0)
    """Number of checkpoints to keep: the best by `metric_name`, or the latest if none is named. The latest is always
    kept; None keeps all."""
    metric_name: str | None = None
    """Metric that ranks checkpoints: `val:NAME` or `train:NAME`, as logged at the same step (`val:accuracy`)."""
    higher_is_better: bool = True
    """Whether a larger `metric_name` is better."""
    async_save: bool = True
    """Write in the background: training waits only for the copy in memory."""
    checkpoint_must_save_by: str | None = None
    """Time from the start, `days:hours:minutes:seconds`: after the first step that ends later, save and exit with 0."""

    @model_validator(mode="after")
    def _checkpoints_can_be_chosen(self) -> CheckpointingConfig:
        if self.metric_name is not None and not self.metric_name.startswith(("val:", "train:")):
            raise ValueError(
                f"checkpointing.metric_name={self.metric_name!r} is not a logged metric; write val:NAME or "
                "train:NAME, such as val:accuracy"
            )
        if not self.save_period and (self.keep_top_k is not None or self.metric_name is not None):
            raise ValueError(
                "checkpointing.keep_top_k and metric_name have no effect without checkpointing.save_period: set it, or "
                "leave them out"
            )
        deadline = self.checkpoint_must_save_by
        if deadline is not None and _DEADLINE.fullmatch(deadline) is None:
            raise ValueError(
                f"checkpointing.checkpoint_must_save_by={deadline!r} is not a time; write days:hours:minutes:seconds, "
                "such as 00:03:45:00"
            )
        return self

    @property
    def saves(self) -> bool:
        """Whether the run may save a checkpoint."""
        return self.enabled and (self.save_period > 0 or self.checkpoint_must_save_by is not None)

    @property
    def seconds_until_save(self) -> float | None:
        """`checkpoint_must_save_by` in seconds; None if it is not set."""
        if self.checkpoint_must_save_by is None:
            return None
        days, hours, minutes, seconds = map(int, self.checkpoint_must_save_by.split(":"))
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
