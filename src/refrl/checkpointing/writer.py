"""Writing in the background: training waits for a copy in memory, and for a write before it that is still under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from refrl.policy.tensors import whole


class BackgroundWriter:
    """Runs one task at a time, in order; with `background` off, at once."""

    def __init__(self, *, background: bool) -> None:
        """Start idle."""
        self._executor = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._running: Future[None] | None = None
        self._staged: dict[str, Tensor] = {}

    def stage(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return copies on the CPU, valid until the next call; memory is taken once. What is spread is gathered."""
        self.wait()
        with torch.no_grad():
            for name, tensor in tensors.items():
                gathered = whole(tensor.detach())
                if name in self._staged:
                    self._staged[name].copy_(gathered)
                else:
                    self._staged[name] = gathered.to("cpu", copy=True).contiguous()
        return self._staged

    def start(self, task: Callable[[], None]) -> None:
        """Run a task after the one before it.

        Raises:
            OSError: as the earlier task did, or this one where nothing runs in the background.
        """
        self.wait()
        if self._executor is None:
            task()
        else:
            self._running = self._executor.submit(task)

    def wait(self) -> None:
        """Return when nothing runs.

        Raises:
            OSError: as the task did.
        """
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def close(self) -> None:
        """Wait, and end the thread.

        Raises:
            OSError: as the task did.
        """
        try:
            self.wait()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
