"""Worked examples of stores that processes share: errors of their actors, what is tried again, waits, and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane.columns import encode
from refrl.data_plane.errors import DataPlaneError
from refrl.data_plane.store import BlockGoneError
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example
from seatrial.targets.reference.worked.made_packages import imported_with
from seatrial.targets.reference.worked.made_ray import Cluster

MODULES = ["refrl.data_plane.ray", "refrl.data_plane.transfer_queue"]
LIMIT = 4.0
"""Seconds for which an actor's answer is waited for."""
UNAVAILABLE, LOST = "StoreUnavailableError", "DataLostError"
TWO_LINES = "\n one \ntwo"
SAID = {
    "GetTimeoutError": f"{UNAVAILABLE}: actor 'a' did not answer m within 4 s",
    "ObjectStoreFullError": f"{UNAVAILABLE}: actor 'a' has no memory left: one ",
    "ObjectLostError": f"{LOST}: what actor 'a' sent is lost: one ",
    "OwnerDiedError": f"{LOST}: what actor 'a' sent is lost: one ",
    "ObjectFetchTimedOutError": f"{LOST}: what actor 'a' sent is lost: one ",
    "RayActorError": f"{UNAVAILABLE}: actor 'a' is dead: one ",
    "ActorUnavailableError": f"{UNAVAILABLE}: actor 'a' is dead: one ",
}
"""How a call ends, by Ray's error."""


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_callers()
    yield from _of_actors()
    yield from _of_waits()
    yield from _of_queues()


def _made(function: Callable[..., Any], *, with_queue: bool = True) -> Callable[..., Any]:
    """Return a function that gets the cluster and the two modules as they are with it; without the queue's, None."""

    def call(*words: Any) -> Any:
        cluster = Cluster()
        with imported_with(cluster.modules(), MODULES if with_queue else MODULES[:1]) as (ray, *queue):
            return function(cluster, ray, queue[0] if queue else None, *words)

    return call


def _said(call: Callable[..., Any], *words: Any) -> Any:
    try:
        return call(*words)
    except (DataPlaneError, ValueError) as error:
        return f"{type(error).__name__}: {error}".partition("; where it is only")[0]


def _of_callers() -> Iterator[WorkedExample]:
    call = _made(_called, with_queue=False)
    for name, right in SAID.items():
        dead = name in ("RayActorError", "ActorUnavailableError")
        yield example(f"a call that ends with {name}", (right, [4.0], []), call, name, 9, False, 0.0)
        if dead:
            first = ("done", [4.0, 3.99], [0.01])
            yield example(f"{name} of an actor that is started again", first, call, name, 1, True, 0.0)
            waits = ([4.0, 2.49, 0.98], [0.01, 0.01])
            yield example(f"{name} for longer than its limit", (right, *waits), call, name, 9, True, 1.5)
        else:
            yield example(
                f"{name} of an actor that may start again", (right, [4.0], []), call, name, 9, True, 0.0
            )
    yield example(
        "an error of the actor's own", ("ValueError: own", [4.0], []), call, "RayTaskError", 9, True, 0.0
    )
    none = f"{UNAVAILABLE}: no actor 'a' in this Ray cluster: build the store with bootstrap=True, and keep its driver"
    yield example("an actor that is not there", none, _made(lambda cluster, ray, queue: _said(_caller, ray)))


def _caller(ray: Any, restarts: bool = False) -> Any:
    return ray.Caller("a", LIMIT, restarts=restarts)


def _called(
    cluster: Cluster, ray: Any, queue: Any, name: str, times: int, restarts: bool, takes: float
) -> Any:
    """Return how a call ends that fails so often, how long each answer is waited for, and what is slept between."""
    now, limits, sleeps = [100.0], [], []
    cluster.start(SimpleNamespace, "a", ray.NAMESPACE, max_restarts=0)

    def get(answer: Any, timeout: float) -> str:
        limits.append(round(timeout, 6))
        now[0] += takes
        if len(limits) > times:
            return "done"
        error = getattr(ray.ray.exceptions, name)(TWO_LINES)
        error.cause = ValueError("own")
        raise error

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now[0] += seconds

    ray.ray.get = get
    caller = _caller(ray, restarts)
    caller.actor = SimpleNamespace(m=SimpleNamespace(remote=lambda *words: words))
    with patch.object(ray, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)):
        return _said(caller.call, "m", 1), limits, sleeps


def _of_actors() -> Iterator[WorkedExample]:
    right: Any
    for journal, restarts in ((None, 0), ("journal", -1)):
        right = {
            "own": {"num_cpus": 0, "max_restarts": restarts},
            "own-blocks": {"num_cpus": 0, "max_restarts": 0},
        }
        yield example(
            f"actors of a store with the journal {journal}", right, _made(_started, with_queue=False), journal
        )
    yield example("a store next to another of its name", True, _made(_twice, with_queue=False))
    for error in ("RayActorError", "TimeoutError"):
        right = "StoreUnavailableError: actor 'own' did not start: one "
        yield example(
            f"an actor that ends with {error} at its start",
            (right, []),
            _made(_unstarted, with_queue=False),
            error,
        )
    for name in ("ray", "transfer_queue"):
        right = (
            f"{UNAVAILABLE}: Ray is not initialised in this process: call ray.init before building the client"
        )
        yield example(f"{name} without Ray", right, _made(_without_ray), name)
    yield example(
        "columns of the actor with the bytes",
        [True, False, "blocks ['z'] are not there"],
        _made(_blocks, with_queue=False),
    )
    yield example("calls of a store in Ray", (["ping"], ["drop"]), _made(_store_calls, with_queue=False))


def _config(journal: str | None = None) -> DataPlaneConfig:
    return DataPlaneConfig(implementation="ray", name="own", timeout_s=LIMIT, journal=journal)


def _started(cluster: Cluster, ray: Any, queue: Any, journal: str | None) -> Any:
    with patch.object(ray, "restored", lambda path: None):
        ray.ray_client(_config(journal), bootstrap=True)
    return {name: actor.options for (space, name), actor in cluster.actors.items() if space == "refrl"}


def _twice(cluster: Cluster, ray: Any, queue: Any) -> bool:
    ray.ray_client(_config(), bootstrap=True)
    said = _said(lambda: ray.ray_client(_config(), bootstrap=True))
    return "a data plane 'own' is in this cluster already: join it with bootstrap=False" in said


def _unstarted(cluster: Cluster, ray: Any, queue: Any, error: str) -> Any:
    """Return how a store's begin ends whose first actor does not start, and which actors are the process's own then."""

    def get(answer: Any, timeout: float) -> Any:
        raise getattr(ray.ray.exceptions, error, TimeoutError)(TWO_LINES)

    ray.ray.get = get
    return _said(lambda: ray.ray_client(_config(), bootstrap=True)), list(ray._STARTED)


def _without_ray(cluster: Cluster, ray: Any, queue: Any, name: str) -> Any:
    ray.ray.is_initialized = lambda: False
    build = ray.ray_client if name == "ray" else queue.transfer_queue_client
    return _said(lambda: build(_config(), bootstrap=True))


def _blocks(cluster: Cluster, ray: Any, queue: Any) -> list[Any]:
    """Return whether all rows of a column are itself, whether some are, and what is said of one that is not there."""
    blocks = ray.Blocks()
    blocks.keep(["a"], ray.to_wire(encode(torch.arange(3), "x")))
    held = blocks._columns["a"]
    try:
        blocks.read({"a": [0], "z": [0]})
        said = ""
    except BlockGoneError as error:
        said = str(error)
    return [blocks._rows("a", [0, 1, 2]) is held, blocks._rows("a", [0, 1]) is held, said]


def _store_calls(cluster: Cluster, ray: Any, queue: Any) -> Any:
    called: list[str] = []
    store = ray.RayStore(SimpleNamespace(call=lambda method, *words: called.append(method)))
    store.check()
    checked = list(called)
    store.drop([])
    store.drop(["a"])
    return checked, called[1:]


def _of_waits() -> Iterator[WorkedExample]:
    right: Any
    for seconds, right in ((0.001, 0.001), (5.0, 0.01)):
        yield example(f"a wait of {seconds} s in Ray", [right], _made(_slept, with_queue=False), seconds)
    late = "StoreUnavailableError: TransferQueue did not answer within 1.2 s: is its storage unit alive?"
    for alive, right in (
        (0, ("done", [0.5], 0)),
        (1, ("done", [0.5, 0.5], 1)),
        (2, ("done", [0.5, 0.5, 0.2], 2)),
        (9, (late, [0.5, 0.5, 0.2], 2)),
    ):
        yield example(
            f"a call that has not ended at {alive} looks", (*right, True), _made(_within), 1.2, alive
        )
    yield example(
        "a call with little time", (late.replace("1.2", "0.1"), [0.1], 0, True), _made(_within), 0.1, 9
    )
    for error, right in (
        (ValueError("x"), "ValueError: x"),
        (KeyError("x"), f"{UNAVAILABLE}: TransferQueue failed: 'x'"),
    ):
        yield example(f"a call that raises {error!r}", right, _made(_failed), error)
    for name, right in (
        ("ActorDiedError", f"{UNAVAILABLE}: TransferQueue failed: its actor 'one' is dead"),
        ("GetTimeoutError", None),
        ("ActorUnavailableError", None),
    ):
        yield example(f"actors that answer with {name}", (right, {0.25}), _made(_looked), name)
    yield example("looks that say other than that the first dead actor is dead", [], _made(_several_looked))


def _slept(cluster: Cluster, ray: Any, queue: Any, seconds: float) -> list[float]:
    slept: list[float] = []
    with patch.object(ray, "time", SimpleNamespace(sleep=slept.append)):
        ray.RayControl(SimpleNamespace()).wait(seconds)
    return slept


def _within(cluster: Cluster, ray: Any, queue: Any, seconds: float, alive: int) -> Any:
    """Return how a call ends, how long each look waits, how often actors are looked at, and if its thread is left."""
    now, joins, looked, daemons = [100.0], [], [], []

    def thread(*, target: Callable[[], None], daemon: bool = False) -> Any:
        daemons.append(daemon)

        def join(timeout: float) -> None:
            joins.append(round(timeout, 6))
            now[0] += timeout
            if len(joins) == alive + 1:
                target()

        return SimpleNamespace(start=lambda: None, join=join, is_alive=lambda: len(joins) <= alive)

    with (
        patch.object(queue, "threading", SimpleNamespace(Thread=thread)),
        patch.object(queue, "time", SimpleNamespace(monotonic=lambda: now[0])),
        patch.object(queue, "check_alive", lambda needed: looked.append(needed)),
    ):
        said = _said(lambda: queue.within(seconds, lambda: "done", {}))
    return said.partition(" Where")[0], joins, len(looked), daemons == [True]


def _failed(cluster: Cluster, ray: Any, queue: Any, error: Exception) -> Any:
    def call() -> None:
        raise error

    return _said(lambda: queue.within(5.0, call, {}))


def _looked(cluster: Cluster, ray: Any, queue: Any, name: str) -> Any:
    limits: set[float] = set()

    def get(answer: Any, timeout: float) -> None:
        limits.add(timeout)
        raise getattr(ray.ray.exceptions, name)("gone")

    queue.ray.get = get
    actor = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: None))
    return _said(lambda: queue.check_alive({"one": actor, "two": actor})), limits


def _several_looked(cluster: Cluster, ray: Any, queue: Any) -> list[Any]:
    """Return what is said, if it is wrong, of one to three actors of which each lives, is busy, away or dead."""

    def looked(states: Sequence[str]) -> Any:
        def get(answer: int, timeout: float) -> None:
            assert timeout == 0.5 / len(states)
            if states[answer] != "lives":
                raise getattr(ray.ray.exceptions, states[answer])("gone")

        queue.ray.get = get
        actors = {
            f"a{place}": SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda place=place: place))
            for place in range(len(states))
        }
        return _said(lambda: queue.check_alive(actors))

    wrong = []
    every = ("lives", "GetTimeoutError", "ActorUnavailableError", "ActorDiedError")
    for states in (one for number in (1, 2, 3) for one in product(every, repeat=number)):
        dead = states.index("ActorDiedError") if "ActorDiedError" in states else None
        due = None if dead is None else f"{UNAVAILABLE}: TransferQueue failed: its actor 'a{dead}' is dead"
        wrong += [] if looked(states) == due else [states]
    return wrong


def _of_queues() -> Iterator[WorkedExample]:
    yield example("calls of a drop from TransferQueue", ["get probe", "list", "clear a"], _made(_dropped))
    for answer, right in (
        ({"bytes": [torch.tensor([7])]}, [7]),
        ({}, "BlockGoneError: block a is not in TransferQueue"),
        ({"bytes": []}, "BlockGoneError: block a is not in TransferQueue"),
        (ValueError("no"), "BlockGoneError: block a is not in TransferQueue: no"),
    ):
        yield example(f"a read that is answered with {answer!r}", right, _made(_got), answer)
    ended = ([2.0, 2.0], ["own"], True)
    yield example("the end of a store whose TransferQueue does not answer", ended, _made(_ended))
    yield example("limits of a client that joins TransferQueue", [LIMIT, LIMIT], _made(_joined))


def _queue_store(queue: Any) -> Any:
    store = queue.TransferQueueStore.__new__(queue.TransferQueueStore)
    store._partition, store._seconds, store._actors = "p", 5.0, {}
    return store


def _dropped(cluster: Cluster, ray: Any, queue: Any) -> list[str]:
    called: list[str] = []

    def get(names: list[str], space: str, fields: list[str]) -> Any:
        called.append(f"get {names[0]}")
        return {"bytes": [torch.zeros(1)]}

    def names_of(space: str) -> Any:
        called.append("list")
        return {space: {"a": None, "b": None}}

    queue.transfer_queue.kv_batch_get = get
    queue.transfer_queue.kv_list = names_of
    queue.transfer_queue.kv_clear = lambda names, space: called.append(f"clear {' '.join(names)}")
    store = _queue_store(queue)
    store.drop(["a", "gone"])
    store.drop([])
    return called


def _got(cluster: Cluster, ray: Any, queue: Any, answer: Any) -> Any:
    def get(names: list[str], space: str, fields: list[str]) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    queue.transfer_queue.kv_batch_get = get
    return _said(lambda: _queue_store(queue)._get("a"))


def _ended(cluster: Cluster, ray: Any, queue: Any) -> Any:
    """Return the limits of the last looks at actors, those that stay, and whether TransferQueue is closed."""
    queue.transfer_queue.init()
    cluster.start(SimpleNamespace, "own", "other")
    limits: list[float] = []
    closed: list[bool] = []

    def get(answer: Any, timeout: float) -> None:
        limits.append(timeout)
        raise ray.ray.exceptions.GetTimeoutError("busy")

    queue.ray.get = get
    queue.transfer_queue.close = lambda: closed.append(True)
    queue.end_transfer_queue(_config())
    return limits, sorted(cluster.living()), closed == [True]


def _joined(cluster: Cluster, ray: Any, queue: Any) -> list[float]:
    queue.transfer_queue_client(_config(), bootstrap=True)
    limits: list[float] = []
    find = queue.Caller

    def caller(name: str, seconds: float, **options: Any) -> Any:
        limits.append(seconds)
        return find(name, seconds, **options)

    with patch.object(queue, "Caller", caller):
        queue.transfer_queue_client(_config(), bootstrap=False)
    return limits
