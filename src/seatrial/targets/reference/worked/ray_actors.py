"""A stand-in for Ray of which each call is noted, and worked examples of actors in it that hold engines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

import refrl.runtime  # noqa: F401  the parent of what is imported with a made Ray
from refrl.generation import process
from refrl.generation.messages import Message
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.made_packages import imported_with, package

MODULES = ["refrl.runtime.ray_ranks", "refrl.generation.ray_link"]
LOST = "the actor crashed.\nand more"


class Ray:
    """A Ray of which each call is noted; actors are objects of this process, on nodes that are given."""

    def __init__(self, nodes: Sequence[str] = ("n1",), failing: Sequence[tuple[str, str]] = ()) -> None:
        """Take each actor's node, and which method fails with which error."""
        self.noted: list[Any] = []
        self.nodes, self.failing = nodes, dict(failing)
        self.is_initialized = True
        self.resources = {"CPU": 9.0}
        self.answers: dict[str, Any] = {}
        self._num_actors = 0
        self.error = type("RayError", (Exception,), {})

    def actor(self) -> Any:
        """Return the next actor."""
        number = self._num_actors
        self._num_actors += 1

        class Actor:
            def __getattr__(own, method: str) -> Any:  # noqa: N805  of another class
                def remote(*words: Any, group: str | None = None) -> Any:
                    place = [number, method, *([group] if group else [])]
                    if words:
                        place.append(list(words))
                    self.noted.append(place)
                    return number, method

                return SimpleNamespace(
                    remote=remote,
                    options=lambda concurrency_group: SimpleNamespace(
                        remote=lambda *words: remote(*words, group=concurrency_group)
                    ),
                )

            def __repr__(own) -> str:  # noqa: N805
                return f"actor {number}"

        return Actor()

    def get(self, asked: Any, timeout: float | None = None) -> Any:
        """Return an answer.

        Raises:
            TimeoutError: the method is one that fails so.
        """
        several = isinstance(asked, list)
        self.noted.append(["got", sorted({one[1] for one in (asked if several else [asked])}), timeout])
        return [self._answer(*one) for one in asked] if several else self._answer(*asked)

    def _answer(self, number: int, method: str) -> Any:
        how = self.failing.get(method)
        if how == "late":
            raise TimeoutError("late\nand more")
        if how is not None:
            error = self.error(LOST)
            if how != "lost":
                error.cause = how
            raise error
        if method == "where":
            node = self.nodes[number]
            return self.answers.get("where") or SimpleNamespace(id=node, address=f"at {node}")
        answer = self.answers.get(method)
        return answer.pop(0) if isinstance(answer, list) else answer

    @contextmanager
    def modules(self) -> Iterator[list[Any]]:
        """Yield the modules of ranks and of engines that are imported with it."""
        errors = package("ray.exceptions", RayError=self.error)
        strategies = package(
            "ray.util.scheduling_strategies", PlacementGroupSchedulingStrategy=lambda *words, **options: None
        )
        util = package(
            "ray.util", get_node_ip_address=lambda: "127.0.0.1",
            remove_placement_group=lambda group: self.noted.append(["removed", group]),
            scheduling_strategies=strategies,
        )  # fmt: skip
        context = SimpleNamespace(get_node_id=lambda: "n1", gcs_address="gcs")
        ray = package(
            "ray", exceptions=errors, util=util, get=self.get,
            is_initialized=lambda: self.is_initialized,
            get_runtime_context=lambda: context,
            cluster_resources=lambda: self.resources,
            kill=lambda actor: self.noted.append(["killed", str(actor)]),
            remote=lambda **options: lambda kind: SimpleNamespace(
                options=lambda **own: SimpleNamespace(remote=self.actor)
            ),
        )  # fmt: skip
        made = {one.__name__: one for one in (ray, errors, util, strategies)}
        with imported_with(made, MODULES) as modules:
            yield modules


def of_engine_actors() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield example(
        "an engine's actor", ([1.0, 2.0], [True, True, False], 8, ["abort", "resume"], True), _answered
    )
    yield refused("Ray is not initialised", "an engine without Ray", _link, is_initialized=False)
    for gpus, said in ((0, "needs a CPU for each replica"), (1, "needs a CPU and a GPU for each replica")):
        for how, cause in (("late", "late"), ("lost", "the actor crashed.")):
            words = f"a generator's actor did not start in 300 s: {cause}; the cluster {said}"
            yield refused(words, f"an engine that finds no place, {how}, {gpus}", _link, "where", how, gpus)
    for how, words in (
        ("late", "did not answer in time and was stopped"),
        ("lost", "is lost: the actor crashed."),
    ):
        yield refused(
            f"the generator's actor (process 5) {words}, asked to begin",
            f"an engine that does not answer, {how}",
            _link,
            "answer",
            how,
        )
        right = [[0, "where", "control"], ["got", ["where"], 300.0], [0, "abort", "control"],
                 [0, "resume", "control"], ["got", ["resume"], 7.0], ["killed", "actor 0"]]  # fmt: skip
        yield example(f"an engine that is lost when it resumes, {how}", right, _controlled, how)
    yield example("bytes that are sent of views", [8, 8, 24], _sent)
    for device, right_gpus in (("cpu", 0), ("cuda:1", 1)):
        yield example(f"GPUs of an engine of a policy on {device}", (right_gpus, 9, device), _engine, device)


def _answered() -> Any:
    """Return an actor's answer, and the calls of its engine."""
    noted: list[str] = []
    whole = torch.arange(4.0)

    class Server:
        abort, resume = (lambda self, of=of: noted.append(of) for of in ("abort", "resume"))

        def answer(self, message: Message) -> Message:
            return Message("took", {"of": message.kind, "more": 1}, [whole[1:3], whole[:2]])

    with Ray().modules() as (_, links):
        kind, server = patch("refrl.runtime.generator_process.GeneratorServer", Server), None
        with kind:
            server = links.GeneratorActor()
        found = server.answer(Message("finish"))
        server.abort()
        server.resume()
        where = server.where() == (os.getpid(), "127.0.0.1")
    first, second = found.tensors
    same = [found.kind == "took", dict(found.fields) == {"of": "finish", "more": 1}, second is whole]
    return first.tolist(), same, first.untyped_storage().nbytes(), noted, where


def _link(method: str = "", how: str = "", gpus: int = 0, *, is_initialized: bool = True) -> None:
    """Open a link to an engine, and ask it; its actor must be ended where it fails.

    Raises:
        GeneratorLostError: it is lost.
    """
    ray = Ray(failing=[(method, how)] if method else [])
    ray.is_initialized = is_initialized
    ray.answers["where"] = (5, "at n1")
    with ray.modules() as (_, links):
        try:
            links.RayLink(num_gpus=gpus).ask(Message("begin"))
        except process.GeneratorLostError:
            assert not is_initialized or ray.noted[-1] == ["killed", "actor 0"]
            raise


def _controlled(how: str) -> list[Any]:
    """Return what an actor is asked that must stop and resume, and is closed with and without Ray."""
    ray = Ray(failing=[("resume", how)])
    ray.answers["where"] = (5, "at n1")
    with ray.modules() as (_, links):
        link = links.RayLink()
        link.timeout_seconds = 7.0
        link.abort()
        link.resume()
        link.close()
        ray.is_initialized = False
        link.close()
    return ray.noted


def _sent() -> list[int]:
    """Return the bytes of storage that are sent of a view, of a whole tensor, and of another tensor's gradient part."""
    ray = Ray()
    ray.answers = {"where": (5, "at n1"), "answer": "took"}
    whole = torch.arange(6.0, requires_grad=True)
    with ray.modules() as (_, links):
        links.RayLink().ask(Message("received", {}, [whole[:2], torch.ones(2), whole]))
    (sent,) = next(step[2] for step in ray.noted if step[:2] == [0, "answer"])
    assert not any(tensor.requires_grad for tensor in sent.tensors)
    return [tensor.untyped_storage().nbytes() for tensor in sent.tensors]


def _engine(device: str) -> Any:
    """Return the GPUs of an engine's actor, and with which padding and device it is opened."""
    made: list[Any] = []

    def generator(config: Any, *, pad_token_id: int, device: torch.device, connect: Any) -> Any:
        connect()
        made.extend([pad_token_id, str(device)])

    config: Any = SimpleNamespace()
    with (
        Ray().modules() as (_, links),
        patch.object(links, "ProcessGenerator", generator),
        patch.object(links, "RayLink", lambda *, num_gpus: made.append(num_gpus)),
    ):
        links.actor_generator(config, pad_token_id=9, device=torch.device(device))
    return tuple(made)
