"""Worked examples of actors in Ray that hold ranks: how each is started, what it passes on, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from refrl.config import ClusterConfig
from refrl.runtime.rank_process import Ended, threads
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example
from seatrial.targets.reference.worked.made_packages import Replaced
from seatrial.targets.reference.worked.ray_actors import Ray


def of_rank_actors() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_actors()
    yield from _of_ranks()


def _of_actors() -> Iterator[WorkedExample]:
    for number in (0, 2):
        for listens in (False, True):
            for own in ({}, {"OMP_NUM_THREADS": "7"}):
                right = {
                    "number": number,
                    "words": [sys.executable, "-m", "refrl"],
                    "stdout": subprocess.DEVNULL if number else subprocess.PIPE,
                    "directory": "/there",
                    "threads": own.get("OMP_NUM_THREADS", threads(3)),
                    "given": "g",
                    "kept": "k",
                    "inherited": listens,
                    "url": listens,
                }
                yield example(
                    f"the process of rank {number}, listening: {listens}, {own}",
                    right,
                    _started,
                    number,
                    listens,
                    own,
                )
    right_calls = ["output", "wait", "terminate", "finish"]
    yield example("what an actor passes on to its rank", (right_calls, b"text", "ended"), _passed_on)
    yield example("an actor without a rank", [], _without_rank)
    yield example("the node of an actor", ("n1", "127.0.0.1"), _node)


def _started(number: int, listens: bool, own: dict[str, str]) -> dict[str, Any]:
    """Return how an actor starts a rank, and whether it listens where it says, with a socket that the rank inherits."""
    with Ray().modules() as (ranks, _), ExitStack() as stack:
        found: dict[str, Any] = {}

        def start(rank: int, words: Any, environment: Any, *, inherited: Any, **options: Any) -> Any:
            found.update(number=rank, words=words, environment=environment, inherited=inherited, **options)

        stack.enter_context(patch.object(ranks, "RankProcess", start))
        stack.enter_context(patch.dict(os.environ, {"KEPT": "k", "GIVEN": "o", "OMP_NUM_THREADS": "99"}))
        os.environ.pop(ranks.LISTENING, None)
        actor = ranks.RankActor()
        url = actor.listen() if listens else None
        actor.start(number, ["-m", "refrl"], {"GIVEN": "g", **own}, "/there", 3)
        environment = found.pop("environment")
        socket = actor._listening
        listening = [] if socket is None else [socket.fileno()]
        same = list(found["inherited"]) == listening and environment.get(ranks.LISTENING) == (
            str(listening[0]) if listening else None
        )
        is_there = socket is not None and url == f"tcp://127.0.0.1:{socket.getsockname()[1]}"
        if socket is not None:
            socket.close()
        return {
            **found,
            "threads": environment["OMP_NUM_THREADS"],
            "given": environment["GIVEN"],
            "kept": environment["KEPT"],
            "inherited": same and bool(listening),
            "url": is_there,
        }


def _passed_on() -> Any:
    noted: list[str] = []
    answers = {"output": b"text", "wait": "ended"}

    class Process:
        def __getattr__(self, method: str) -> Callable[[], Any]:
            def call() -> Any:
                noted.append(method)
                return answers.get(method)

            return call

    with Ray().modules() as (ranks, _):
        actor = ranks.RankActor()
        actor._rank = Process()
        text, ended = actor.output(), actor.wait()
        actor.terminate()
        actor.finish()
    return noted, text, ended


def _without_rank() -> list[str]:
    with Ray().modules() as (ranks, _):
        actor = ranks.RankActor()
        actor.terminate()
        actor.finish()
        for method in (actor.output, actor.wait):
            try:
                method()
            except AssertionError:
                continue
            return [method.__name__]
    return []


def _node() -> Any:
    with Ray().modules() as (ranks, _):
        node = ranks.RankActor().where()
        return node.id, node.address


def _of_ranks() -> Iterator[WorkedExample]:
    printed = [[0, "output"], ["got", ["output"], None]]
    waited = [[0, "wait"], ["got", ["wait"], None]]
    yield example(
        "a rank that prints and ends", ((3, "why", "at n2"), "onetwo", printed * 3 + waited), _waited_for
    )
    for method in ("output", "wait"):
        right: Any = (None, "the actor crashed.", "at n2"), "onetwo" * (method == "wait")
        yield example(
            f"a rank whose actor is lost at {method}", right, lambda of=method: _waited_for(of, "lost")[:2]
        )
    words = "its output cannot be forwarded: closed"
    yield example("output that cannot be written", (1, words, ""), lambda: _waited_for(closed=True)[0])
    yield example("a rank that is terminated", [[0, "terminate", "control"]], _ended, "terminate")
    for how in (None, "late", "lost"):
        right = [[0, "finish", "control"], ["got", ["finish"], 10.0], ["killed", "actor 0"]]
        yield example(f"a rank that is stopped, {how}", right, _ended, "finish", how)
    for device, gpus, right in (
        ("cpu", 0.0, 0), ("cpu", 2.0, 0), ("cuda", 0.0, 1), ("cuda", 2.0, 1), ("auto", 0.0, 0), ("auto", 2.0, 1),
        ("auto", None, 0),
    ):  # fmt: skip
        yield example(f"GPUs of a rank on {device} where there are {gpus}", right, _gpus, device, gpus)
    for omp in (None, "5"):
        yield example(f"ranks over nodes, with {omp} threads", _placed(omp), _ranks, omp)
    for method, how, words in (
        ("where", "late", "cluster.placement=ray: its actors did not start: late"),
        ("where", "lost", "cluster.placement=ray: its actors did not start: the actor crashed."),
        ("listen", "lost", "rank 0 found no port to listen at: the actor crashed."),
        ("start", "no such folder", "a rank did not start on the node at n1: no such folder"),
    ):
        yield example(f"ranks that fail to {method}, {how}", True, _fails, method, how, words)


def _waited_for(method: str = "", how: str = "", *, closed: bool = False) -> Any:
    """Return how a rank is said to have ended, what was printed, and what its actor was asked."""
    ray = Ray(failing=[(method, how)] if method else [])
    ray.answers = {"output": [b"one", b"two", b""], "wait": Ended(3, "why")}
    printed: list[bytes] = []

    def write(descriptor: int, text: bytes) -> int:
        if closed:
            raise OSError("closed")
        printed.append(text[:2] if descriptor == 1 else b"elsewhere")
        return len(printed[-1])

    with ray.modules() as (ranks, _), patch.object(ranks, "os", Replaced(os, write=write)):
        ended = ranks.RayRank(4, ray.actor(), "at n2").wait()
    return (ended.status, ended.errors, ended.where), b"".join(printed).decode(), ray.noted


def _ended(method: str, how: str | None = None) -> list[Any]:
    ray = Ray(failing=[(method, how)] if how else [])
    with ray.modules() as (ranks, _):
        getattr(ranks.RayRank(0, ray.actor()), method)()
    return ray.noted


def _gpus(device: Any, gpus: float | None) -> int:
    ray = Ray()
    ray.resources = {} if gpus is None else {"GPU": gpus}
    with ray.modules() as (ranks, _):
        number: int = ranks._gpus_of_a_rank(ClusterConfig(device=device))
        return number


NODES = ("n3", "n1", "n0", "n1")
"""Node of each actor; this process is on n1."""


def _placed(omp: str | None) -> dict[str, Any]:
    """Return how four ranks are numbered and started: this node's first, then by node, as they were made."""
    kept = {} if omp is None else {"OMP_NUM_THREADS": omp}
    order = (1, 3, 2, 0)
    starts = [
        [
            actor, "start",
            [
                number, ["-m", "refrl", "x"],
                {
                    **kept, "REFRL_RENDEZVOUS": "tcp://r", "RANK": str(number), "LOCAL_RANK": "0",
                    "WORLD_SIZE": "4", "REFRL_RAY_NODE": NODES[actor], "REFRL_RAY_CLUSTER": "gcs",
                },
                str(Path.cwd()), NODES.count(NODES[actor]),
            ],
        ]
        for number, actor in enumerate(order)
    ]  # fmt: skip
    ends = [
        *([actor, "terminate", "control"] for actor in order),
        *(
            step
            for actor in order
            for step in (
                [actor, "finish", "control"],
                ["got", ["finish"], 10.0],
                ["killed", f"actor {actor}"],
            )
        ),
        ["removed", "group 4 0"],
    ]
    return {
        "ranks": [(number, f"actor {actor}", f"at {NODES[actor]}") for number, actor in enumerate(order)],
        "asked": [
            *([number, "where"] for number in range(4)),
            ["got", ["where"], 300.0],
            [1, "listen"],
            ["got", ["listen"], 300.0],
            *starts,
            *[["got", ["start"], 300.0]] * 4,
            "block",
            *ends,
        ],
        "here": ["", "", "at n0"],
    }


def _ranks(omp: str | None) -> dict[str, Any]:
    """Return the ranks of a run over three nodes, all that their actors are asked, and which are of this address."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with patch.dict(os.environ, {**environment, **({"OMP_NUM_THREADS": omp} if omp else {})}, clear=True):
        found, asked = _run_ranks(Ray(NODES), 4)
        elsewhere, _ = _run_ranks(Ray(("127.0.0.1", "127.0.0.1", "n0")), 3)
    return {"ranks": found, "asked": asked, "here": [where for _, _, where in elsewhere]}


def _run_ranks(ray: Ray, number: int) -> tuple[list[Any], list[Any]]:
    ray.answers["listen"] = "tcp://r"
    with ray.modules() as (ranks, _):
        made = patch.object(ranks, "_reserve", lambda ranks, gpus: f"group {ranks} {gpus}")
        answer = ray._answer

        def address(actor: int, method: str) -> Any:
            found = answer(actor, method)
            if method == "where" and found.id == "127.0.0.1":
                found.address = found.id
            return found

        with (
            made,
            patch.object(ray, "_answer", address),
            ranks.ray_ranks(["python", "-m", "refrl", "x"], ClusterConfig(num_processes=number)) as started,
        ):
            ray.noted.append("block")
            found = [(rank.number, str(rank.actor), rank.where) for rank in started]
    return found, ray.noted


def _fails(method: str, how: str, words: str) -> bool:
    """Return whether ranks that do not start say why, all of them are stopped, and their place is free."""
    ray = Ray(NODES, [(method, how)])
    try:
        _run_ranks(ray, 4)
    except Exception as error:  # noqa: BLE001  of a module that is imported again
        killed = [f"actor {actor}" for actor in ((0, 1, 2, 3) if method == "where" else (1, 3, 2, 0))]
        ended = [step[1] for step in ray.noted if step[0] == "killed"] == killed
        return words in str(error) and ended and ray.noted[-1] == ["removed", "group 4 0"]
    return False
