"""Memory of Ray's worker processes on each node, asked of a cluster that this process already uses.

Ray is never imported nor started from here. One task without any resource demand is pinned to each node;
it sums the resident memory of the node manager's descendants.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_ANSWER_SECONDS = 10.0


def node_memory() -> dict[str, int]:
    """Return resident bytes of Ray's processes by node id (first 12 digits).

    Empty when Ray is not initialised in this process. A node whose own processes descend from this process is
    left out: they are counted with the process tree.
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
    """Return the function that runs on each node; nested, so that Ray ships its code and not our package."""

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
                    # The command in parentheses may hold spaces: fields count from behind it.
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
