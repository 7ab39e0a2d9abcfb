"""How often to update, to sync weights to the sampler and the reference, and how stale a sample may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Cadences in whole units; built by `make_schedule`."""

    accumulation_steps: int
    """Forward-backward passes of an optimizer step."""
    sync_every: int
    """Optimizer steps between two syncs of the sampler's weights."""
    reference_sync_every: int | None
    """Optimizer steps between two syncs of the reference; None keeps it frozen."""
    max_staleness: int
    """Optimizer steps that a trained sample's weights may lie behind the trainer's."""

    @property
    def required_staleness(self) -> int:
        """Staleness of the freshest sample there can be in the last step before a sync."""
        return self.sync_every - 1

    def is_fresh(self, sample_version: int, trainer_version: int) -> bool:
        """Return whether a sample may be trained on.

        Args:
            sample_version: weight version when its generation STARTED; weights may have changed while it ran.
            trainer_version: optimizer steps done.

        Raises:
            ValueError: the sample claims weights that the trainer does not have yet.
        """
        if sample_version > trainer_version:
            raise ValueError(f"sample of weight version {sample_version}, trainer at {trainer_version}")
        return trainer_version - sample_version <= self.max_staleness

    def syncs_sampler(self, trainer_version: int) -> bool:
        """Return whether the sampler's weights are synced after this many optimizer steps."""
        return trainer_version % self.sync_every == 0

    def syncs_reference(self, trainer_version: int) -> bool:
        """Return whether the reference is synced after this many optimizer steps."""
        return self.reference_sync_every is not None and trainer_version % self.reference_sync_every == 0


def make_schedule(
    *,
    prompts_per_step: int,
    prompts_per_forward_backward: int,
    prompts_per_sync: int | None = None,
    prompts_per_reference_sync: int | None = None,
    max_staleness: int = 0,
) -> Schedule:
    """Turn cadences in prompts into a schedule; a cadence that does not come out even is an error, never rounded.

    Args:
        prompts_per_step: prompts of an optimizer step.
        prompts_per_forward_backward: prompts of a forward-backward pass.
        prompts_per_sync: prompts between syncs of the sampler; None syncs after every step.
        prompts_per_reference_sync: prompts between syncs of the reference; None keeps it frozen. (Syncing it with
            every step would make the KL to it 0.)
        max_staleness: optimizer steps that a sample may lie behind.

    Raises:
        ValueError: a number out of range, a cadence that is no multiple, or a staleness that no sample could meet in
            the last step before a sync, so that training would wait for ever. The message names the remedy.
    """
    _multiple(
        "prompts_per_step", prompts_per_step, "prompts_per_forward_backward", prompts_per_forward_backward
    )
    sync = prompts_per_step if prompts_per_sync is None else prompts_per_sync
    _multiple("prompts_per_sync", sync, "prompts_per_step", prompts_per_step)
    if prompts_per_reference_sync is not None:
        _multiple(
            "prompts_per_reference_sync", prompts_per_reference_sync, "prompts_per_step", prompts_per_step
        )
    schedule = Schedule(
        accumulation_steps=prompts_per_step // prompts_per_forward_backward,
        sync_every=sync // prompts_per_step,
        reference_sync_every=prompts_per_reference_sync and prompts_per_reference_sync // prompts_per_step,
        max_staleness=max_staleness,
    )
    if max_staleness < schedule.required_staleness:
        raise ValueError(
            f"max_staleness={max_staleness}, but with a sync every {schedule.sync_every} steps the samples of the last "
            f"step before it are {schedule.required_staleness} behind and all would be dropped: set max_staleness to "
            f"{schedule.required_staleness} or more, or prompts_per_sync to {(max_staleness + 1) * prompts_per_step} "
            "or less"
        )
    return schedule


def _multiple(name: str, value: int, of_name: str, of: int) -> None:
    if value < 1 or of < 1:
        raise ValueError(f"{name}={value} and {of_name}={of} must be positive")
    if value % of:
        raise ValueError(
            f"{name}={value} is not a multiple of {of_name}={of}: take {value - value % of or of}"
        )
