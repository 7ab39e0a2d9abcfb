"""The final export."""

from __future__ import annotations

import os
from pathlib import Path

from refrl.checkpointing.layout import remove_checkpoint, whole_checkpoints
from refrl.config import CheckpointingConfig, ConfigError
from refrl.distributed import World
from refrl.policy.base import Policy


def final_directory(config: CheckpointingConfig) -> Path | None:
    """Return the directory that the trained model will be exported to, or None if export is off.

    Only a run that resumes from a checkpoint in the same directory replaces an existing export.

    Raises:
        ConfigError: an export would be overwritten, or the directory is not writable; raised before training.
    """
    if not config.enabled:
        return None
    final = Path(config.checkpoint_dir) / "final"
    if final.exists() and not whole_checkpoints(final.parent):
        raise ConfigError(f"checkpointing.checkpoint_dir: {final} exists; name a new directory or remove it")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"checkpointing.checkpoint_dir={final.parent} cannot be written: {error}"
        ) from error
    if not os.access(final.parent, os.W_OK):
        raise ConfigError(f"checkpointing.checkpoint_dir={final.parent} cannot be written: no permission")
    return final


def export_final(policy: Policy, final: Path | None, world: World) -> None:
    """Export the policy as a Hugging Face directory, atomically; every rank calls it, the first one writes."""
    if final is None:
        return
    if not world.rank and final.exists():
        remove_checkpoint(final)
    policy.save(final)
