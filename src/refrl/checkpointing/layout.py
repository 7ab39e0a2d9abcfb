"""The directories of checkpoints: which are complete, and which are kept.

`<checkpoint_dir>/step_<N>/` holds `training_info.json` and the tensors in `policy/`. It gets its name when all of it
is on disk; until then it is `.step_<N>.<random>`, which is never read and which the next run removes.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from refrl.checkpointing.base import NO_DIGEST, SCHEMA_VERSION, Checkpoint, TrainingInfo
from refrl.config import CheckpointingConfig, ConfigError
from refrl.distributed import World
from refrl.policy.base import Policy

INFO = "training_info.json"
TENSORS = "policy"
_STEP = re.compile(r"step_(\d+)")


def step_directory(root: Path, step: int) -> Path:
    """Return the directory of the checkpoint after a step."""
    return root / f"step_{step}"


def read_checkpoint(directory: Path) -> Checkpoint | str:
    """Return the checkpoint in a directory, or the reason why it is not complete."""
    try:
        content = (directory / INFO).read_bytes()
        info = TrainingInfo.model_validate_json(content)
    except FileNotFoundError:
        return f"it has no {INFO}"
    except ValidationError as error:
        return f"{INFO}: {error.errors()[0]['msg']}"
    if info.schema_version != SCHEMA_VERSION:
        return f"{INFO} has schema_version {info.schema_version}, this refrl reads {SCHEMA_VERSION}"
    if info.digest and info.digest != _digest_of_info(content, info.digest):
        return f"{INFO} does not match its digest"
    for name, size in info.files.items():
        file = directory / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            return f"{name} has {found} bytes of {size}" if found is not None else f"{name} is missing"
    return Checkpoint(directory, info)


def whole_checkpoints(root: Path) -> list[Checkpoint]:
    """Return the complete checkpoints, sorted by step."""
    found = [read_checkpoint(directory) for directory in _step_directories(root)]
    whole = [checkpoint for checkpoint in found if isinstance(checkpoint, Checkpoint)]
    return sorted(whole, key=lambda checkpoint: checkpoint.info.step)


def latest_checkpoint(root: Path) -> Checkpoint | None:
    """Return the undamaged checkpoint of the highest step, or None. Prints a line for each damaged one.

    Contents are compared with their digests, from the highest step down, until a checkpoint is undamaged.
    """
    for directory in _step_directories(root):
        reason = read_checkpoint(directory)
        if isinstance(reason, str):
            print(f"skipping checkpoint {directory}, which is not complete: {reason}", flush=True)
    for checkpoint in reversed(whole_checkpoints(root)):
        name = _changed_file(checkpoint)
        if name is None:
            return checkpoint
        print(
            f"skipping checkpoint {checkpoint.directory}, which is damaged: {name} does not match its digest",
            flush=True,
        )
    return None


def info_bytes(info: TrainingInfo) -> bytes:
    """Return `training_info.json` with its own digest."""
    blank = (info.model_copy(update={"digest": NO_DIGEST}).model_dump_json(indent=1) + "\n").encode()
    return blank.replace(NO_DIGEST.encode(), _digest_of_info(blank, NO_DIGEST).encode())


def _digest_of_info(content: bytes, digest: str) -> str:
    """Return the SHA-256 of `training_info.json` with `NO_DIGEST` in place of the digest that it holds."""
    return hashlib.sha256(content.replace(digest.encode(), NO_DIGEST.encode())).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed_file(checkpoint: Checkpoint) -> str | None:
    """Return the first file whose content is not what was saved, or None."""
    for name, digest in checkpoint.info.digests.items():
        if file_digest(checkpoint.directory / name) != digest:
            return name
    return None


def remove_unfinished(root: Path) -> None:
    """Remove the partial checkpoint of a run that was killed while it wrote."""
    for directory in root.glob(".step_*"):
        shutil.rmtree(directory, ignore_errors=True)


def remove_superfluous(root: Path, config: CheckpointingConfig) -> None:
    """Keep the best `keep_top_k` checkpoints and the latest; among equals the later one is better."""
    if config.keep_top_k is None:
        return
    *others, latest = whole_checkpoints(root)
    kept = {
        latest.info.step,
        *(found.info.step for found in ranked([*others, latest], config)[: config.keep_top_k]),
    }
    for checkpoint in others:
        if checkpoint.info.step not in kept:
            remove_checkpoint(checkpoint.directory)


def ranked(checkpoints: Sequence[Checkpoint], config: CheckpointingConfig) -> list[Checkpoint]:
    """Return checkpoints from best to worst: by the metric if one is named, then by step.

    A checkpoint whose metric is missing or NaN ranks below all others.
    """

    def goodness(checkpoint: Checkpoint) -> tuple[float, int]:
        metric = checkpoint.info.metric
        if config.metric_name is None:
            return 0.0, checkpoint.info.step
        if metric is None or math.isnan(metric):
            return -math.inf, checkpoint.info.step
        return metric if config.higher_is_better else -metric, checkpoint.info.step

    return sorted(checkpoints, key=goodness, reverse=True)


def _step_directories(root: Path) -> Iterator[Path]:
    if root.is_dir():
        yield from (path for path in sorted(root.iterdir()) if _STEP.fullmatch(path.name) and path.is_dir())


def remove_checkpoint(directory: Path) -> None:
    """Remove a checkpoint; rename it first, so that a half-removed one is never read."""
    doomed = directory.with_name(f".{directory.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    directory.replace(doomed)
    shutil.rmtree(doomed)


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
