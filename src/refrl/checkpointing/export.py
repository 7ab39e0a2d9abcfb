"""The final export."""

from __future__ import annotations

import os
from pathlib import Path

from refrl.config import CheckpointingConfig, ConfigError
from refrl.policy.base import Policy


def final_directory(config: CheckpointingConfig) -> Path | None:
    """Return where the trained model will be exported, or None where that is switched off.

    Raises:
        ConfigError: a model stands there already, or the directory cannot be written: found out before training.
    """
    if not config.enabled:
        return None
    final = Path(config.checkpoint_dir) / "final"
    if final.exists():
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


def export_final(policy: Policy, final: Path | None) -> None:
    """Export the policy as a Hugging Face directory, whole or not at all."""
    if final is not None:
        policy.save(final)
