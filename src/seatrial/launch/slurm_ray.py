"""A Ray cluster inside one Slurm job: a head on the first node, a worker on each other node, the command once.

The steps synchronise through files in the run's directory, which all nodes share. Nothing waits for a port: `ray start`
returns when its node has joined.

Source: the manual page of srun, and the reference of `ray start`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

RAY_ADDRESS = "RAY_ADDRESS"
MOST_SECONDS_TO_START = 900
_OWN_CLUSTER = re.compile(r"^[^#\n]*\b(?:srun|ray\s+start)\b", re.MULTILINE)

_ON_HEAD, _NOT_ON_HEAD = '--nodelist="$head"', '--exclude="$head"'

_NODE = """\
#!/bin/sh
# One node of the cluster: joins, reports it, and stays until the command has ended.
rank="{rank}"
ray start {words} || exit 1
: > "$SEATRIAL_RUN_DIR/ray/node-$rank"
while [ ! -e "$SEATRIAL_RUN_DIR/ray/stop" ]; do sleep 1; done
"""

_JOB = """\
#!/bin/sh
# Starts a Ray cluster over the nodes of this job, runs the command once on the first, and stops the cluster.
head="${{SLURMD_NODENAME:-$(hostname)}}"
port=$((20000 + SLURM_JOB_ID % 10000))
export RAY_ADDRESS="$head:$port"
ready="$SEATRIAL_RUN_DIR/ray"
rm -rf "$ready"
mkdir -p "$ready"
{head} &
{workers} &
waited=0
while [ "$(ls "$ready" | grep -c '^node-')" -lt {nodes} ]; do
    if [ "$waited" -ge {seconds} ]; then
        echo "seatrial: the Ray cluster did not come up: $(ls "$ready" | grep -c '^node-') of {nodes} nodes joined"
        : > "$ready/stop"
        exit 1
    fi
    waited=$((waited + 1))
    sleep 1
done
{driver}
status=$?
: > "$ready/stop"
wait
exit "$status"
"""

Step = Callable[[Sequence[str], Sequence[str]], Sequence[str]]
"""Returns the srun command line of one step: (options of srun, command)."""


def needs_ray(script: str, num_nodes: int) -> bool:
    """Return whether a script expects a cluster from its launcher: it has several nodes and starts nothing on them."""
    return num_nodes > 1 and _OWN_CLUSTER.search(script) is None


def write_cluster_job(run_dir: Path, num_nodes: int, step: Step, command: Sequence[str]) -> Path:
    """Write the batch script that starts the cluster and runs the command on it; return its path.

    Args:
        run_dir: of this run, shared by the nodes.
        num_nodes: of the job, at least 1.
        step: makes the command line of a step.
        command: runs once, on the first node, with RAY_ADDRESS set.
    """
    head, worker = run_dir / "ray_head.sh", run_dir / "ray_worker.sh"
    head.write_text(
        _NODE.format(rank=0, words='--head --port="${RAY_ADDRESS##*:}" --disable-usage-stats'),
        encoding="utf-8",
    )
    worker.write_text(
        _NODE.format(rank="$((SLURM_PROCID + 1))", words='--address="$RAY_ADDRESS" --disable-usage-stats'),
        encoding="utf-8",
    )
    others = num_nodes - 1
    on_head = ("--overlap", "--nodes=1", "--ntasks=1", _ON_HEAD)
    elsewhere = ("--overlap", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1", _NOT_ON_HEAD)
    text = _JOB.format(
        head=_line(step(on_head, ("/bin/sh", str(head)))),
        workers=_line(step(elsewhere, ("/bin/sh", str(worker)))) if others else ":",
        driver=_line(step(on_head, command)),
        nodes=num_nodes,
        seconds=MOST_SECONDS_TO_START,
    )
    path = run_dir / "ray_job.sh"
    path.write_text(text, encoding="utf-8")
    return path


def _line(words: Sequence[str]) -> str:
    """Return words as a shell line; the name of the first node is known only in the job."""
    return " ".join(word if word in (_ON_HEAD, _NOT_ON_HEAD) else shlex.quote(word) for word in words)
