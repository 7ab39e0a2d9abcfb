"""Peak memory of a test: its process tree, each GPU, and each node of a running Ray cluster."""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from seatrial.pytest_plugin.gpus import used_bytes, visible_gpus

HOST = "host"
"""Key of the process tree: this process and all its descendants on this machine."""
_MIN_INTERVAL = 0.05
_SAMPLING_SHARE = 0.03
"""Largest fraction of the time for sampling; a machine with many processes is sampled less often."""
_RESET_PEAK = "5"
"""Written to `clear_refs`, this resets a process's peak (Linux: Documentation/filesystems/proc.rst)."""


class MemoryWatch:
    """Tracks the peak memory in use since its start, in bytes by place.

    The kernel reports the exact peak of this process. A thread samples descendants; the peak of one that starts and
    exits between two samples comes from the kernel when it is reaped.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._gpus = visible_gpus()
        self._peaks: dict[str, int] = {}
        self._own_minimum = self._process.memory_info().rss
        self._reaped_before = _reaped_peak()
        self._exact = _reset_own_peak()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._sample_until_stopped, name="seatrial-memory", daemon=True
        )

    def __enter__(self) -> MemoryWatch:
        self.sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def peaks(self) -> dict[str, int]:
        """Return the peak memory so far in bytes by place: `host`, `gpu:0`, `ray:<node>`."""
        self.sample()
        self._add_ray()
        with self._lock:
            return dict(self._peaks)

    def sample(self) -> None:
        """Sample the process tree and the GPUs once."""
        own = self._process.memory_info().rss
        tree = own + _descendants_rss(self._process)
        with self._lock:
            self._own_minimum = min(self._own_minimum, own)
            self._raise(HOST, max(tree, self._kernel_peak()))
            for gpu in self._gpus:
                used = used_bytes(gpu)
                if used is not None:
                    self._raise(f"gpu:{gpu.index}", used)

    def _kernel_peak(self) -> int:
        """Return the kernel's peak between samples: that of this process, or this process plus a reaped child."""
        peak = _own_peak() if self._exact else 0
        reaped = _reaped_peak()
        # The kernel keeps one maximum for all children ever reaped: only a new maximum belongs to this test.
        if reaped > self._reaped_before:
            peak = max(peak, self._own_minimum + reaped)
        return peak

    def _raise(self, place: str, value: int) -> None:
        self._peaks[place] = max(value, self._peaks.get(place, 0))

    def _add_ray(self) -> None:
        for node, value in node_memory().items():
            with self._lock:
                self._raise(f"ray:{node}", value)

    def _sample_until_stopped(self) -> None:
        interval = _MIN_INTERVAL
        while not self._stop.wait(interval):
            started = time.perf_counter()
            self.sample()
            interval = max(_MIN_INTERVAL, (time.perf_counter() - started) / _SAMPLING_SHARE)


def _descendants_rss(process: psutil.Process) -> int:
    total = 0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += child.memory_info().rss
    return total


def _reaped_peak() -> int:
    """Return the largest peak of any child reaped so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def _reset_own_peak() -> bool:
    """Reset the kernel's peak of this process; return False if the system does not support it."""
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return False
    return _own_peak() > 0


def _own_peak() -> int:
    """Return this process's peak since the reset, in bytes; 0 if the system does not report it."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


_ANSWER_SECONDS = 10.0


def node_memory() -> dict[str, int]:
    """Return resident bytes of Ray's processes by node id (first 12 digits).

    Empty if Ray is not initialised in this process. A node whose processes descend from this process is excluded:
    they are counted with the process tree.
    """
    ray: Any = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", lambda: False)():
        return {}
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(_make_probe())
    answers = {}
    for node in ray.nodes():
        if node["Alive"]:
            strategy = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
            answers[node["NodeID"]] = task.options(num_cpus=0, scheduling_strategy=strategy).remote()
    ready, _ = ray.wait(list(answers.values()), num_returns=max(1, len(answers)), timeout=_ANSWER_SECONDS)
    own_tree = _own_tree()
    found: dict[str, int] = {}
    for node_id, answer in answers.items():
        if answer in ready:
            manager, host, memory = ray.get(answer)
            if (host, manager) not in own_tree:
                found[node_id[:12]] = memory
    return found


def _own_tree() -> set[tuple[str, int]]:
    import platform

    import psutil

    return {(platform.node(), child.pid) for child in psutil.Process().children(recursive=True)}


def _make_probe() -> Callable[[], tuple[int, str, int]]:
    """Return the function that runs on each node; nested, so that Ray sends its code instead of our package."""

    def probe() -> tuple[int, str, int]:
        import os
        import platform
        from pathlib import Path

        page = os.sysconf("SC_PAGE_SIZE")
        parents: dict[int, int] = {}
        resident: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    # The command in parentheses may contain spaces: fields count from after it.
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry.name)] = int(fields[1])
                resident[int(entry.name)] = int(fields[21]) * page
        manager = os.getppid()
        tree = {manager}
        grown = True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in tree} - tree
            tree |= more
            grown = bool(more)
        return manager, platform.node(), sum(resident.get(pid, 0) for pid in tree)

    return probe
