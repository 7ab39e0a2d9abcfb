"""Background writer: training waits only for the copy in memory, and for an earlier write that is still running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from refrl.policy.tensors import whole


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
