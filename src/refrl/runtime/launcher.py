"""Starts the ranks of a run, as processes of this host or in a Ray cluster, and stops them all if one fails.

Each rank is the same command with a rank in its environment (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`, as torchrun sets
them). Ranks of one host rendezvous in a file, so no port can be taken by another process. No rank outlives the
launcher: each holds the reading end of a pipe whose writing end only the launcher has, and exits when it closes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from refrl.config import ClusterConfig, ConfigError
from refrl.lifeline import TORCHRUN, is_started
from refrl.runtime.rank_process import Ended, Rank, RankProcess, end, threads, variables

COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "refrl")
"""What a rank runs, before its arguments; a program that wraps refrl sets its own. With `-P` a file of the current
folder that has the name of a module, such as `random.py`, is not imported in its place."""
NATIVE_WARNING = re.compile(r"\[W\d{4} [\d:.]+ \w+\.\w+:\d+\]")
"""A warning of torch's native code: `[W1126 02:09:25.896250867 ProcessGroupNCCL.cpp:1575] Warning: ...`."""


class RankError(OSError):
    """A rank failed."""


def is_launcher(cluster: ClusterConfig) -> bool:
    """Return whether this process starts the ranks and is not one of them.

    Raises:
        ConfigError: ranks are placed on Ray, but torchrun has started this process.
    """
    if cluster.placement == "ray" and TORCHRUN in os.environ:
        raise ConfigError(
            "cluster.placement=ray, and torchrun has started this process: start refrl without torchrun, or set "
            "cluster.placement=process"
        )
    return (cluster.num_processes > 1 or cluster.placement == "ray") and not is_started()


def launch(
    words: Sequence[str],
    cluster: ClusterConfig,
    *,
    start: Callable[..., Rank] = RankProcess,
    command: Sequence[str] | None = None,
) -> None:
    """Run `python -m refrl WORDS` as ranks, and return when all have succeeded.

    Rank 0's standard output is this process's. Standard error is shown at the end: rank 0's after success; after a
    failure, that of the rank that failed first (the others fail because of it).

    Args:
        words: of the command.
        cluster: how many ranks, and where.
        start: starts a rank on this host; takes the arguments of `RankProcess`.
        command: replaces `COMMAND`.

    Raises:
        ConfigError: a rank rejected the configuration (exit status 2), with its message; or ranks cannot be placed.
        RankError: a rank failed in another way.
    """
    whole = [*(command or COMMAND), *words]
    if cluster.placement == "ray":
        from refrl.runtime.ray_ranks import ray_ranks

        starting = ray_ranks(whole, cluster)
    else:
        starting = _local_ranks(whole, cluster, start)
    with starting as ranks:
        number, ended = _first_failure(ranks)
    if ended.status != 0:
        _report(number, ended, words[0])
    sys.stderr.write(ended.errors)


@contextlib.contextmanager
def _local_ranks(
    command: Sequence[str], cluster: ClusterConfig, start: Callable[..., Rank]
) -> Iterator[Sequence[Rank]]:
    """Start the ranks as processes of this host, and stop them at the end of the block."""
    size = cluster.num_processes
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if size > num_cores:
        print(
            f"cluster.num_processes={size} is more than the {num_cores} processors of this host: the ranks wait for "
            "one another",
            file=sys.stderr,
        )
    ranks: list[Rank] = []
    with tempfile.TemporaryDirectory(prefix="refrl-") as folder:
        rendezvous = (Path(folder) / "rendezvous").as_uri()
        try:
            for number in range(size):
                own = variables(number, size, rendezvous, local_rank=number)
                environment = {"OMP_NUM_THREADS": threads(size), **os.environ, **own}
                stdout = subprocess.DEVNULL if number else None
                ranks.append(start(number, command, environment, stdout=stdout))
            yield ranks
        finally:
            end(ranks)


def _first_failure(ranks: Sequence[Rank]) -> tuple[int, Ended]:
    """Wait until a rank fails and return its number and status; rank 0's if all succeed."""
    ended: queue.SimpleQueue[tuple[int, Ended]] = queue.SimpleQueue()

    def wait(rank: Rank) -> None:
        ended.put((rank.number, rank.wait()))

    for rank in ranks:
        threading.Thread(target=wait, args=(rank,), daemon=True).start()
    well: dict[int, Ended] = {}
    for _ in ranks:
        number, how = ended.get()
        if how.status != 0:
            return number, how
        well[number] = how
    return 0, well[0]


def _report(number: int, failed: Ended, command: str) -> NoReturn:
    """Raise the failed rank's last line as an error.

    Raises:
        ConfigError: its exit status is 2.
        RankError: any other status.
    """
    text = failed.errors.strip()
    # When a rank fails, torch warns after the traceback of groups that were not left.
    said = [line for line in text.splitlines() if not NATIVE_WARNING.search(line)]
    last = said[-1].removeprefix(f"refrl {command}: ") if said else "it wrote no message"
    elsewhere = f" on {failed.where}" if failed.where else ""
    if failed.status == 2:
        raise ConfigError(f"{last} (rank {number}{elsewhere})" if elsewhere else last)
    if text.count("\n"):
        print(text, file=sys.stderr)
    raise RankError(f"rank {number}{elsewhere} {failed.how}, and the others were stopped: {last}")
