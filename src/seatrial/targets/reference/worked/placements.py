"""Worked examples of what Ray is asked for: capacity, how it is spread over nodes, and actors in it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import refrl.runtime  # noqa: F401  the parent of what is imported with a made Ray
from refrl.generation.messages import Message
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.made_packages import imported_with, package

MODULES = ["refrl.runtime.ray_ranks"]


def of_placements() -> Iterator[WorkedExample]:
    """Yield the examples."""
    for num, gpus in ((1, 0), (3, 0), (2, 1)):
        bundle = {"CPU": 1, "GPU": 1} if gpus else {"CPU": 1}
        actors = [
            {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "bundle": index, "groups": {"control": 1}}
            for index in range(num)
        ]
        right = {"bundles": [bundle] * num, "strategy": "SPREAD", "seconds": 300.0, "actors": actors}
        yield example(f"what {num} ranks with {gpus} GPUs each reserve", right, _reserved, num, gpus)
    for words, num, gpus in (("4 CPUs in all", 5, 0), ("2 GPUs in all", 3, 1)):
        yield refused(
            words, f"{num} ranks with {gpus} GPUs each in too small a cluster", _reserved, num, gpus
        )
    yield refused("3 CPUs and 1 GPUs of it are free", "a full cluster", _reserved, 2, 1, False)
    for gpus in (0, 1):
        started = {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        engine = {"actor": {**started, "groups": {"control": 1}}, "node": (5, "here", True)}
        limits = [("where", 300.0), ("answer", 7.0), ("resume", 7.0)]
        yield example(
            f"an engine with {gpus} GPUs in Ray",
            {**engine, "limits": limits, "answer": "took"},
            _engine,
            gpus,
        )


def _engine(gpus: int) -> Any:
    """Return how an engine's actor is started, and for how long each of its answers is waited for."""
    found: dict[str, Any] = {"limits": []}
    answers = {"where": (5, "here"), "answer": "took", "resume": None}

    class Actor:
        def __getattr__(self, method: str) -> Any:
            asked = SimpleNamespace(remote=lambda *words: method)
            return SimpleNamespace(remote=asked.remote, options=lambda concurrency_group: asked)

    def remote(*, concurrency_groups: Any) -> Any:
        def options(**own: Any) -> Any:
            found["actor"] = {**own, "groups": concurrency_groups}
            return SimpleNamespace(remote=Actor)

        return lambda kind: SimpleNamespace(options=options)

    def get(method: str, timeout: float | None = None) -> Any:
        found["limits"].append((method, timeout))
        return answers[method]

    errors = package("ray.exceptions", RayError=type("RayError", (Exception,), {}))
    util = SimpleNamespace(get_node_ip_address=lambda: "here")
    ray = package("ray", exceptions=errors, util=util, remote=remote, get=get, is_initialized=lambda: True)
    with imported_with({"ray": ray, "ray.exceptions": errors}, ["refrl.generation.ray_link"]) as (links,):
        link = links.RayLink(num_gpus=gpus)
        found["node"] = link.pid, link.node, link.is_local
        link.timeout_seconds = 7.0
        found["answer"] = link.ask(Message("finish"))
        link.resume()
    return found


def _reserved(num: int, gpus: int, is_free: bool = True) -> Any:
    """Return what a cluster of 4 CPUs and 2 GPUs is asked for by so many ranks."""
    asked: dict[str, Any] = {"actors": []}

    def placement_group(bundles: Any, **options: Any) -> Any:
        asked.update(bundles=bundles, **options)

        def wait(seconds: float) -> bool:
            asked["seconds"] = seconds
            return is_free

        return SimpleNamespace(wait=wait)

    def remote(**given: Any) -> Any:
        def options(*, scheduling_strategy: Any, **own: Any) -> Any:
            made = {**own, "bundle": scheduling_strategy, "groups": given["concurrency_groups"]}
            return SimpleNamespace(remote=lambda: asked["actors"].append(made))

        return lambda kind: SimpleNamespace(options=options)

    def resources() -> dict[str, float]:
        return {"CPU": 4.0, "GPU": 2.0}

    errors = package("ray.exceptions", RayError=type("RayError", (Exception,), {}))
    strategies = package(
        "ray.util.scheduling_strategies",
        PlacementGroupSchedulingStrategy=lambda group, *, placement_group_bundle_index: (
            placement_group_bundle_index
        ),
    )
    util = package(
        "ray.util", placement_group=placement_group, remove_placement_group=lambda group: asked.update(removed=True),
        scheduling_strategies=strategies,
    )  # fmt: skip
    ray = package(
        "ray", exceptions=errors, util=util, remote=remote,
        cluster_resources=resources, available_resources=lambda: {"CPU": 3.0, "GPU": 1.0},
    )  # fmt: skip
    made = {one.__name__: one for one in (ray, errors, util, strategies)}
    with imported_with(made, MODULES) as (ranks,):
        try:
            group = ranks._reserve(num, gpus)
        finally:
            # What was asked for and not given must not wait in the cluster.
            assert ("removed" in asked) is (not is_free)
        for index in range(num):
            ranks._actor(group, index, gpus)
    return asked
