"""When a run saves, what a checkpoint contains, and how a run resumes from one."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from refrl.checkpointing.base import Checkpoint, Stateful, StatefulPolicy, TrainingInfo
from refrl.checkpointing.layout import (
    INFO,
    TENSORS,
    file_digest,
    info_bytes,
    remove_checkpoint,
    remove_superfluous,
    step_directory,
)
from refrl.checkpointing.tensors import BackgroundWriter, read_tensors, write_tensors
from refrl.config import CheckpointingConfig, ConfigError
from refrl.directories import naming, new_directory
from refrl.distributed import World
from refrl.nearest import hint
from refrl.policy.tensors import whole
from refrl.streams import global_streams, restore_global_streams
from refrl.tasks import Example


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What must match between a checkpoint and the run that resumes from it."""

    run_id: str
    seed: int
    examples: Sequence[Example]
    """The training examples."""
    config: Mapping[str, Any]
    """The whole configuration."""

    @cached_property
    def data(self) -> str:
        """Digest of prompts, answers, solutions and media, in order; reads every row at the first access."""
        total = hashlib.sha256()
        for example in self.examples:
            total.update(json.dumps([example.prompt_id, example.prompt, example.answer]).encode())
            total.update((example.media or "").encode())
            if example.solution is not None:
                total.update(json.dumps({"solution": example.solution}).encode())
        return total.hexdigest()


class Checkpointer:
    """Saves and restores the state of a run. Every rank has one; the first one writes."""

    def __init__(
        self,
        config: CheckpointingConfig,
        policy: StatefulPolicy,
        parts: Mapping[str, Stateful],
        *,
        facts: RunFacts,
        world: World,
    ) -> None:
        """Prepare; nothing is saved yet.

        Args:
            config: when and where to save, and what to keep.
            policy: the owner of the tensors.
            parts: all other parts with a state, by name.
            facts: of this run.
            world: the processes of the run.
        """
        self._config = config
        self._root = Path(config.checkpoint_dir)
        self._policy = policy
        self._parts = parts
        self._facts = facts
        self._world = world
        self._writer = BackgroundWriter(background=config.async_save)
        self._started = time.monotonic()

    def is_due(self, step: int, *, ends: bool, is_out_of_time: bool) -> bool:
        """Return whether to save a checkpoint after a step.

        Args:
            step: the last completed step.
            ends: whether the run is complete after it.
            is_out_of_time: whether the run stops after it although it is not complete.
        """
        if not self._config.enabled:
            return False
        period = self._config.save_period
        return is_out_of_time or (period > 0 and (ends or step % period == 0))

    def is_out_of_time(self) -> bool:
        """Return whether `checkpoint_must_save_by` has passed, on the first rank's clock."""
        limit = self._config.seconds_until_save
        passed = limit is not None and time.monotonic() - self._started >= limit
        return self._world.gather([passed])[0]

    def save(self, step: int, metric: float | None, *, finished: bool = False) -> None:
        """Write the checkpoint after a step; with a background writer every rank continues once the state is copied.

        The first rank gathers the sharded tensors and writes everything.

        Raises:
            OSError: this checkpoint or the one before cannot be written.
        """
        streams = self._world.gather([global_streams()])
        state, policy_facts = self._policy.state_tensors(), dict(self._policy.state_facts())
        if self._world.rank:
            for tensor in state.values():
                whole(tensor)
            return
        tensors = self._writer.stage(state)
        info = TrainingInfo(
            step=step,
            finished=finished,
            run_id=self._facts.run_id,
            metric=metric,
            seed=self._facts.seed,
            data=self._facts.data,
            world_size=self._world.size,
            policy=policy_facts,
            parts={name: dict(part.state_dict()) for name, part in self._parts.items()},
            streams=streams,
            config=dict(self._facts.config),
            files={},
        )
        self._writer.start(
            lambda: self._write(info, tensors), then=lambda: remove_superfluous(self._root, self._config)
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore policy and parts from a checkpoint; call `restore_streams` last, when everything is built.

        Raises:
            ConfigError: it belongs to another policy, seed or data.
        """
        info = checkpoint.info
        for name, saved, own in (
            ("seed", info.seed, self._facts.seed),
            ("training prompts (data.*)", info.data, self._facts.data),
            ("parts", sorted(info.parts), sorted(self._parts)),
        ):
            if saved != own:
                raise ConfigError(
                    f"the checkpoint in {checkpoint.directory} was saved with other {name} ({saved}, now {own}): "
                    "resume with those, or name another checkpointing.checkpoint_dir"
                )
        read_tensors(checkpoint.directory / TENSORS, self._policy.state_tensors())
        self._policy.load_state_facts(info.policy)
        for name, part in self._parts.items():
            part.load_state_dict(info.parts[name])

    def restore_streams(self, checkpoint: Checkpoint) -> None:
        """Restore this rank's global random streams; a rank that is new keeps its own."""
        if self._world.rank < len(checkpoint.info.streams):
            restore_global_streams(checkpoint.info.streams[self._world.rank])

    def check_training_metric(self, logged: Collection[str]) -> None:
        """Check `checkpointing.metric_name` against the metrics that a step of training logs.

        Raises:
            ConfigError: it is a metric of training that is not among them.
        """
        check_metric_name(self._config, "train", logged)

    def wait(self) -> None:
        """Wait until the last checkpoint is complete and on disk; older ones may still be being removed.

        Raises:
            OSError: it cannot be written.
        """
        self._writer.wait()

    def finish(self) -> None:
        """Wait until older checkpoints are removed, too.

        Raises:
            OSError: it cannot be written, or they cannot be removed.
        """
        self._writer.finish()

    def close(self) -> None:
        """Finish, and stop the writer.

        Raises:
            OSError: it cannot be written, or older ones cannot be removed.
        """
        self._writer.close()

    def _write(self, info: TrainingInfo, tensors: Mapping[str, Tensor]) -> None:
        directory = step_directory(self._root, info.step)
        if directory.exists():  # incomplete: the run would have resumed from it otherwise
            remove_checkpoint(directory)
        with new_directory(directory) as folder, naming(directory):
            write_tensors(tensors, folder / TENSORS)
            sizes = {
                path.relative_to(folder).as_posix(): path.stat().st_size
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
            digests = {name: file_digest(folder / name) for name in sizes}
            whole_info = info.model_copy(update={"files": sizes, "digests": digests})
            (folder / INFO).write_bytes(info_bytes(whole_info))
            for path in (*folder.rglob("*"), folder):
                _to_disk(path)
        _to_disk(self._root)


def metric_tag(config: CheckpointingConfig) -> str | None:
    """Return the logged tag of `checkpointing.metric_name`: `val:accuracy` is `validation/accuracy`."""
    if config.metric_name is None:
        return None
    prefix, _, name = config.metric_name.partition(":")
    return f"{'validation' if prefix == 'val' else prefix}/{name}"


def check_metric_name(config: CheckpointingConfig, prefix: str, logged: Collection[str]) -> None:
    """Raise if `checkpointing.metric_name` has a prefix, and names none of the metrics that are logged under it.

    Args:
        config: names the metric.
        prefix: `val` or `train`.
        logged: names of the run's metrics of this kind.

    Raises:
        ConfigError: with the nearest name, and all names.
    """
    given, _, name = (config.metric_name or "").partition(":")
    if given == prefix and name not in logged:
        known = [f"{prefix}:{one}" for one in sorted(logged)]
        raise ConfigError(
            f"checkpointing.metric_name={config.metric_name!r} is not a metric of this run: "
            f"{hint(f'{prefix}:{name}', known)}"
        )


def _to_disk(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
