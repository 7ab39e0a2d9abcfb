"""Ranks in a Ray cluster: each is held by an actor, on any node with capacity.

The actor starts the rank as a process of its node and forwards its output, its outcome and requests to stop. A Ray
worker that trained by itself would lose exit status, signal and last message; and a rank is the same thing wherever it
is placed. It ends with its actor, which Ray stops with the command that created it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
import ray.exceptions
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from refrl.config import ClusterConfig, ConfigError
from refrl.lifeline import LISTENING, RAY_CLUSTER, RAY_NODE
from refrl.runtime.rank_process import GRACE_SECONDS, Ended, Rank, RankProcess, end, threads, variables

PLACE_SECONDS = 300.0
"""Time limit for reserving capacity in the cluster and starting the actors there."""
ANSWER_SECONDS = GRACE_SECONDS + 5.0
"""Time limit for an actor to report that its rank has ended."""
CONTROL = "control"
"""Concurrency group of the actor's methods that must not wait for the rank's end."""


class Node(NamedTuple):
    """The node of an actor."""

    id: str
    address: str


class RankActor:
    """The actor that holds one rank."""

    def __init__(self) -> None:
        """Start nothing until `start` is called."""
        self._rank: RankProcess | None = None
        self._listening: socket.socket | None = None

    def where(self) -> Node:
        """Return the node's id and address."""
        return Node(ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address())

    def listen(self) -> str:
        """Bind a free port of the node for the rendezvous and return its URL; rank 0 inherits the socket."""
        address = ray.util.get_node_ip_address()
        self._listening = socket.create_server((address, 0))
        return f"tcp://{address}:{self._listening.getsockname()[1]}"

    def start(
        self, number: int, words: Sequence[str], given: Mapping[str, str], directory: str, num_here: int
    ) -> None:
        """Start the rank with this node's Python.

        Raises:
            OSError: the directory does not exist on this node.
        """
        found = dict(os.environ)
        # Ray sets it to the number of CPUs that the actor reserves.
        found["OMP_NUM_THREADS"] = threads(num_here)
        inherited: tuple[int, ...] = ()
        if self._listening is not None:
            inherited = (self._listening.fileno(),)
            found[LISTENING] = str(self._listening.fileno())
        self._rank = RankProcess(
            number,
            [sys.executable, *words],
            {**found, **given},
            stdout=subprocess.DEVNULL if number else subprocess.PIPE,
            directory=directory,
            inherited=inherited,
        )

    def output(self) -> bytes:
        """Return what the rank prints next; empty at its end."""
        return self._started().output()

    def wait(self) -> Ended:
        """Wait until the rank has ended and return its outcome."""
        return self._started().wait()

    def terminate(self) -> None:
        """Send the rank SIGTERM."""
        if self._rank is not None:
            self._rank.terminate()

    def finish(self) -> None:
        """Wait until the rank has ended, by itself or killed."""
        if self._rank is not None:
            self._rank.finish()

    def _started(self) -> RankProcess:
        assert self._rank is not None, "start comes first"
        return self._rank


@dataclass(frozen=True)
class RayRank:
    """A `refrl.runtime.rank_process.Rank` in an actor."""

    number: int
    actor: Any
    where: str = ""
    """Address of its node; empty: this process's."""

    def wait(self) -> Ended:
        """See `Rank`."""
        try:
            while text := ray.get(self.actor.output.remote()):
                _print(text)
            ended: Ended = ray.get(self.actor.wait.remote())
        except ray.exceptions.RayError as error:
            return Ended(None, str(error).strip().partition("\n")[0], self.where)
        except OSError as error:
            return Ended(1, f"its output cannot be forwarded: {error}")
        return replace(ended, where=self.where)

    def terminate(self) -> None:
        """See `Rank`."""
        self._control("terminate")

    def finish(self) -> None:
        """See `Rank`; also stops its actor and everything left in it."""
        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            ray.get(self._control("finish"), timeout=ANSWER_SECONDS)
        ray.kill(self.actor)

    def _control(self, method: str) -> Any:
        return getattr(self.actor, method).options(concurrency_group=CONTROL).remote()


@contextlib.contextmanager
def ray_ranks(command: Sequence[str], cluster: ClusterConfig) -> Iterator[Sequence[Rank]]:
    """Start the ranks in the Ray cluster that this process has joined, and stop them at the end of the block.

    They are numbered node by node, this process's node first, so that rank 0 writes its logs here if possible.

    Args:
        command: what a rank runs: a Python interpreter, replaced by that of its node, and its arguments.
        cluster: number of ranks, and their device.

    Raises:
        ConfigError: the cluster has too little capacity, or this directory does not exist on a node.
    """
    num_gpus = _gpus_of_a_rank(cluster)
    group = _reserve(cluster.num_processes, num_gpus)
    ranks: list[RayRank] = []
    try:
        actors = [_actor(group, index, num_gpus) for index in range(cluster.num_processes)]
        ranks = [RayRank(number, actor) for number, actor in enumerate(actors)]
        nodes = _get([actor.where.remote() for actor in actors], "its actors did not start")
        here = ray.get_runtime_context().get_node_id()
        placed = sorted(zip(nodes, actors, strict=True), key=lambda pair: (pair[0].id != here, pair[0].id))
        own = ray.util.get_node_ip_address()
        ranks = [
            RayRank(number, actor, "" if node.address == own else node.address)
            for number, (node, actor) in enumerate(placed)
        ]
        _start(ranks, [node for node, _ in placed], command)
        yield ranks
    finally:
        end(ranks)
        ray.util.remove_placement_group(group)


def _start(ranks: Sequence[RayRank], nodes: Sequence[Node], command: Sequence[str]) -> None:
    rendezvous = _get(ranks[0].actor.listen.remote(), "rank 0 found no port to listen at")
    kept = {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
    address = ray.get_runtime_context().gcs_address
    starting = []
    for rank, node in zip(ranks, nodes, strict=True):
        own = variables(rank.number, len(ranks), rendezvous, local_rank=0)
        given = {**kept, **own, RAY_NODE: node.id, RAY_CLUSTER: address}
        num_here = sum(other.id == node.id for other in nodes)
        starting.append(
            rank.actor.start.remote(rank.number, list(command[1:]), given, str(Path.cwd()), num_here)
        )
    for node, started in zip(nodes, starting, strict=True):
        _get(started, f"a rank did not start on the node {node.address}")


def _gpus_of_a_rank(cluster: ClusterConfig) -> int:
    has_gpus = ray.cluster_resources().get("GPU", 0) > 0
    return int(cluster.device == "cuda" or (cluster.device == "auto" and has_gpus))


def _reserve(num_ranks: int, num_gpus: int) -> Any:
    """Return a placement group for all ranks, spread over the nodes as evenly as possible.

    Raises:
        ConfigError: the cluster has too little capacity.
    """
    there = ray.cluster_resources()
    wanted = {"CPU": num_ranks, "GPU": num_ranks * num_gpus}
    short = [
        f"{there.get(name, 0):g} {name}s" for name, number in wanted.items() if there.get(name, 0) < number
    ]
    bundle = {"CPU": 1, **({"GPU": 1} if num_gpus else {})}
    needs = f"cluster.num_processes={num_ranks} and cluster.placement=ray: each rank takes a CPU" + (
        " and a GPU (cluster.device=cpu: none)" if num_gpus else ""
    )
    if short:
        raise ConfigError(
            f"{needs}, and the Ray cluster has {' and '.join(short)} in all: lower it, or add nodes"
        )
    group = ray.util.placement_group([bundle] * num_ranks, strategy="SPREAD")
    if not group.wait(PLACE_SECONDS):
        free = ray.available_resources()
        ray.util.remove_placement_group(group)
        raise ConfigError(
            f"{needs}, and within {PLACE_SECONDS:g} s the Ray cluster had no capacity: {free.get('CPU', 0):g} CPUs and "
            f"{free.get('GPU', 0):g} GPUs of it are free; stop what else runs there, or lower it"
        )
    return group


def _actor(group: Any, index: int, num_gpus: int) -> Any:
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    made = ray.remote(concurrency_groups={CONTROL: 1})(RankActor)
    return made.options(num_cpus=1, num_gpus=num_gpus, scheduling_strategy=strategy, max_restarts=0).remote()


def _get(asked: Any, failure: str) -> Any:
    """Return an actor's answer.

    Raises:
        ConfigError: it failed or timed out; with its message.
    """
    try:
        return ray.get(asked, timeout=PLACE_SECONDS)
    except (ray.exceptions.RayError, TimeoutError) as error:
        cause = getattr(error, "cause", None) or str(error).strip().partition("\n")[0]
        raise ConfigError(f"cluster.placement=ray: {failure}: {cause}") from error


def _print(text: bytes) -> None:
    """Write to this process's standard output, as a local rank does."""
    while text:
        text = text[os.write(1, text) :]
