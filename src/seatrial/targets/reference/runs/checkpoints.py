"""refrl's checkpoints of a made state, offered to the relations: `seatrial.relations.contracts.saving`."""

from __future__ import annotations

import random
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from refrl.checkpointing.checkpointer import Checkpointer, RunFacts
from refrl.checkpointing.layout import TENSORS, latest_checkpoint, step_directory, whole_checkpoints
from refrl.checkpointing.tensors import read_tensors
from refrl.config import ConfigError
from refrl.distributed import ALONE, World
from refrl.streams import global_streams, restore_global_streams
from seatrial.relations.contracts.saving import Draws
from seatrial.targets.reference.configuration import configuration

ItemT = TypeVar("ItemT")
FACTS = RunFacts(run_id="made", seed=0, examples=(), config={})


class _MadePolicy:
    """A policy that is nothing but tensors."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def state_tensors(self) -> Mapping[str, Tensor]:
        return self._tensors

    def state_facts(self) -> Mapping[str, Any]:
        return {}

    def load_state_facts(self, facts: Mapping[str, Any]) -> None:
        """There are none."""


@dataclass(frozen=True)
class _MadeWorld(World):
    """One of several ranks, whose random streams are known without asking the others."""

    streams: Sequence[Any] = ()

    def gather(self, items: Sequence[ItemT]) -> list[ItemT]:
        return list(self.streams)


class ReferenceSaving:
    """See `seatrial.relations.contracts.saving`."""

    options: Mapping[str, Any]

    def kept_of(
        self, metrics: Sequence[float | None], *, keep: int, higher_is_better: bool
    ) -> tuple[int, ...]:
        ranking = {"keep_top_k": keep, "metric_name": "val:accuracy", "higher_is_better": higher_is_better}
        with self._saver({"weight": torch.zeros(1)}, ranking) as (saver, root):
            for step, metric in enumerate(metrics, 1):
                saver.save(step, metric)
            saver.finish()
            return tuple(checkpoint.info.step for checkpoint in whole_checkpoints(root))

    def saved_behind(self, tensors: Mapping[str, Tensor], change: Callable[[], None]) -> Mapping[str, Tensor]:
        with self._saver(tensors, {"async_save": True}) as (saver, root):
            saver.save(1, None)
            change()
            saver.wait()
            saved = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
            read_tensors(step_directory(root, 1) / TENSORS, saved)
            return saved

    def kept_when_a_write_fails(
        self, metrics: Sequence[float | None], *, keep: int, bytes_a_file: int
    ) -> tuple[tuple[int, ...], bool]:
        ranking = {"keep_top_k": keep, "metric_name": "val:accuracy", "async_save": True}
        with self._saver({"weight": torch.zeros(bytes_a_file)}, ranking) as (saver, root):
            for step, metric in enumerate(metrics[:-1], 1):
                saver.save(step, metric)
            saver.wait()
            is_reported = False
            try:
                with _small_files(bytes_a_file):
                    saver.save(len(metrics), metrics[-1])
                    saver.finish()
            except (OSError, RuntimeError, ConfigError) as error:
                is_reported = bool(str(error))
            return tuple(checkpoint.info.step for checkpoint in whole_checkpoints(root)), is_reported

    def resumed_with_damage(self, tensors: Mapping[str, Tensor]) -> Mapping[str, int | None]:
        with self._saver(tensors, {}) as (saver, root):
            for step in (1, 2):
                saver.save(step, None)
            saver.finish()
            found = {"": _resumed_step(root)}
            for path in sorted(path for path in step_directory(root, 2).rglob("*") if path.is_file()):
                content = path.read_bytes()
                middle = len(content) // 2
                path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
                found[str(path.relative_to(root))] = _resumed_step(root)
                path.write_bytes(content)
            return found

    def drawn_after_resume(self, seeds: Sequence[int]) -> Sequence[Draws]:
        own = global_streams()
        streams, unbroken, resumed = [], [], []
        try:
            for seed in seeds:
                _seed(seed)
                streams.append(global_streams())
                unbroken.append(_drawn())
            worlds = [_MadeWorld(rank, len(seeds), streams=streams) for rank in range(len(seeds))]
            with self._saver({"weight": torch.zeros(1)}, {}, worlds[0]) as (saver, root):
                saver.save(1, None)
                saver.wait()
                (checkpoint,) = whole_checkpoints(root)
                for world in worlds:
                    _seed(1000 + world.rank)
                    with self._saver({}, {}, world) as (other, _):
                        other.restore_streams(checkpoint)
                    resumed.append(_drawn())
        finally:
            restore_global_streams(own)
        return [Draws(unbroken=one, resumed=other) for one, other in zip(unbroken, resumed, strict=True)]

    @contextmanager
    def _saver(
        self, tensors: Mapping[str, Tensor], options: Mapping[str, Any], world: World = ALONE
    ) -> Iterator[tuple[Checkpointer, Path]]:
        with tempfile.TemporaryDirectory() as folder:
            chosen = {"save_period": 1, "checkpoint_dir": f"{folder}/checkpoints", **options}
            config = configuration(
                {**self.options, **{f"checkpointing.{name}": value for name, value in chosen.items()}}
            ).checkpointing
            root = Path(config.checkpoint_dir)
            root.mkdir()
            saver = Checkpointer(config, _MadePolicy(tensors), {}, facts=FACTS, world=world)
            try:
                yield saver, root
            finally:
                saver.close()


@contextmanager
def _small_files(size: int) -> Iterator[None]:
    """Let the system refuse every file of this process beyond a size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def _resumed_step(root: Path) -> int | None:
    found = latest_checkpoint(root)
    return None if found is None else found.info.step


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)


def _drawn() -> tuple[float, ...]:
    return (*torch.rand(3).tolist(), random.random())
