"""Checkpoint tensors: safetensors files written and read for any number of ranks, and a background writer.

No file is a pickle: the format is that of `torch.distributed.checkpoint.hf_storage`, whose metadata are the headers of
the safetensors files.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from refrl.config import ConfigError
from refrl.policy.tensors import whole

FILE = "shard-00001-model-00001-of-00001.safetensors"
"""Name that `torch.distributed.checkpoint` gives the file if the first rank holds everything."""


def write_tensors(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Write tensors on the CPU into a new directory.

    Raises:
        OSError: it cannot be written, as on a full disk.
    """
    directory.mkdir()
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / FILE)
    except SafetensorError as error:
        raise OSError(f"cannot write {directory / FILE}: {error}") from error


def read_tensors(directory: Path, into: Mapping[str, Tensor]) -> None:
    """Read tensors into existing ones; each rank reads its shard of a DTensor.

    Raises:
        ConfigError: names, shapes or types differ from those in the files.
    """
    reader = HuggingFaceStorageReader(str(directory))
    entries = reader.read_metadata().state_dict_metadata.items()
    stored = {name: entry for name, entry in entries if isinstance(entry, TensorStorageMetadata)}
    missing, unknown = sorted(into.keys() - stored.keys()), sorted(stored.keys() - into.keys())
    if missing or unknown:
        raise ConfigError(
            f"the checkpoint in {directory.parent} is missing {len(missing)} tensors of this run {missing[:3]} and has "
            f"{len(unknown)} unknown ones {unknown[:3]}: resume with the policy that it was saved with"
        )
    for name, tensor in into.items():
        kept = stored[name]
        if tuple(kept.size) != tuple(tensor.shape) or kept.properties.dtype != tensor.dtype:
            raise ConfigError(
                f"the checkpoint in {directory.parent} has {name} as {tuple(kept.size)} {kept.properties.dtype}, and "
                f"this run as {tuple(tensor.shape)} {tensor.dtype}: resume with the policy that it was saved with"
            )
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message=".*torch.distributed is (disabled|unavailable).*")
        load(dict(into), storage_reader=reader, no_dist=True)


class BackgroundWriter:
    """Runs one task at a time, in order; without `background`, synchronously."""

    def __init__(self, *, background: bool) -> None:
        """Start idle."""
        self._executor = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._running: Future[None] | None = None
        self._following: Future[None] | None = None
        self._staged: dict[str, Tensor] = {}

    def stage(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return copies on the CPU, valid until the next call; the memory is reused. Sharded tensors are gathered."""
        self.wait()
        with torch.no_grad():
            for name, tensor in tensors.items():
                gathered = whole(tensor.detach())
                if name in self._staged:
                    self._staged[name].copy_(gathered)
                else:
                    self._staged[name] = gathered.to("cpu", copy=True).contiguous()
        return self._staged

    def start(self, task: Callable[[], None], then: Callable[[], None]) -> None:
        """Run a task after earlier ones, then `then` if it succeeded; `stage` does not wait for `then`.

        Raises:
            OSError: an earlier task failed, or one of these did without a background thread.
        """
        self.finish()
        if self._executor is None:
            task()
            then()
        else:
            self._running = running = self._executor.submit(task)
            self._following = self._executor.submit(lambda: None if running.exception() else then())

    def wait(self) -> None:
        """Wait until the last task has ended.

        Raises:
            OSError: as the task did.
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def finish(self) -> None:
        """Wait until nothing runs.

        Raises:
            OSError: as a task did.
        """
        self.wait()
        following, self._following = self._following, None
        if following is not None:
            following.result()

    def close(self) -> None:
        """Finish, and stop the thread.

        Raises:
            OSError: as a task did.
        """
        try:
            self.finish()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
