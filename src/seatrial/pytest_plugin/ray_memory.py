"""Memory of Ray's worker processes on each node of a cluster that this process already uses.

This module never imports or starts Ray itself. It pins one task without resource demands to each node; the task sums
the resident memory of the node manager's descendants.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

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
