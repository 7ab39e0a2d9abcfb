"""Stand-ins for Ray and TransferQueue: actors are objects of this process, each with the number of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from seatrial.targets.reference.worked.made_packages import package

ERRORS = (
    *(
        "RayError",
        "RayTaskError",
        "GetTimeoutError",
        "ObjectStoreFullError",
        "RayActorError",
        "ActorDiedError",
    ),
    *("ActorUnavailableError", "ObjectLostError", "OwnerDiedError", "ObjectFetchTimedOutError"),
)
FIRST = 101
"""Number of the first actor's process."""


class Handle:
    """An actor; its methods run when their answer is asked for."""

    def __init__(self, make: Callable[[], Any], number: int, options: dict[str, Any]) -> None:
        self.make, self.made, self.number, self.options = make, make(), number, options

    def __getattr__(self, method: str) -> Any:
        def remote(*words: Any, **options: Any) -> Callable[[], Any]:
            if method == "__ray_ready__":
                return lambda: True
            if method == "__ray_call__":
                return lambda: self._within(words[0], self.made)
            return lambda: self._within(getattr(self.made, method), *words, **options)

        return SimpleNamespace(remote=remote)

    def _within(self, call: Callable[..., Any], *words: Any, **options: Any) -> Any:
        with patch("os.getpid", lambda: self.number):
            return call(*words, **options)


class Cluster:
    """A cluster of Ray with a TransferQueue."""

    def __init__(self) -> None:
        """Start without actors."""
        self.actors: dict[tuple[str, str], Handle] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        """What TransferQueue holds, by partition and key."""
        self.num_limits = 0
        """How often TransferQueue has set torch's number of threads."""
        self._num_started = 0
        errors: dict[str, Any] = {"RayError": type("RayError", (Exception,), {})}
        errors |= {name: type(name, (errors["RayError"],), {}) for name in ERRORS[1:]}
        self._errors = SimpleNamespace(**errors)
        self._client = SimpleNamespace(limit_pytorch_auto_parallel_threads=self._limit)

    def living(self) -> dict[str, int]:
        """Return the process of each living actor by its name."""
        return {name: actor.number for (_, name), actor in self.actors.items()}

    def crash(self, name: str, namespace: str) -> None:
        """End an actor's process; one that may be started again is, as often as it may."""
        handle = self.actors[namespace, name]
        if handle.options["max_restarts"] == 0:
            del self.actors[namespace, name]
            return
        handle.options["max_restarts"] -= 1 if handle.options["max_restarts"] > 0 else 0
        handle.made = handle.make()

    def start(self, make: Callable[[], Any], name: str, namespace: str, **options: Any) -> Handle:
        """Return an actor.

        Raises:
            ValueError: there is one of its name.
        """
        if (namespace, name) in self.actors:
            raise ValueError(f"the name {name} is taken")
        handle = Handle(make, FIRST + self._num_started, options)
        self._num_started += 1
        self.actors[namespace, name] = handle
        return handle

    def modules(self) -> dict[str, ModuleType]:
        """Return the packages by name."""
        exceptions = package("ray.exceptions", **vars(self._errors))
        util = SimpleNamespace(
            list_named_actors=lambda *, all_namespaces: [
                {"namespace": space, "name": name} for space, name in self.actors
            ]
        )
        ray = package(
            "ray", exceptions=exceptions, util=util, is_initialized=lambda: True, remote=self._remote,
            get=self._get, get_actor=self._get_actor, kill=self._kill,
        )  # fmt: skip
        queue = package(
            "transfer_queue", client=self._client, init=self._init, close=self._close,
            kv_batch_put=self._put, kv_batch_get=self._read,
            kv_list=lambda space: {space: dict(self.rows.get(space, {}))}, kv_clear=self._clear,
        )  # fmt: skip
        return {
            "ray": ray,
            "ray.exceptions": exceptions,
            "transfer_queue": queue,
            "omegaconf": package("omegaconf", OmegaConf=SimpleNamespace(create=lambda words: words)),
            "tensordict": package("tensordict", TensorDict=lambda values, batch_size: values),
        }

    def _remote(self, kind: type) -> Any:
        def options(**given: Any) -> Any:
            return SimpleNamespace(remote=lambda *words: self.start(lambda: kind(*words), **given))

        return SimpleNamespace(options=options)

    def _get(self, answer: Callable[[], Any], timeout: float) -> Any:
        assert timeout > 0
        try:
            return answer()
        except Exception as error:  # noqa: BLE001  raised again, as Ray does
            raised = self._errors.RayTaskError(str(error))
            raised.cause = error
            raise raised from None

    def _get_actor(self, name: str, namespace: str) -> Handle:
        if (namespace, name) not in self.actors:
            raise ValueError(f"there is no actor {name}")
        return self.actors[namespace, name]

    def _kill(self, handle: Handle) -> None:
        self.actors = {place: one for place, one in self.actors.items() if one is not handle}

    def _init(self, words: Any = None) -> None:
        for name in ("TransferQueueController", "TransferQueueStorageUnit_0"):
            if ("transfer_queue", name) not in self.actors:
                self.start(SimpleNamespace, name, "transfer_queue")

    def _close(self) -> None:
        self.actors = {place: one for place, one in self.actors.items() if place[0] != "transfer_queue"}

    @contextmanager
    def _limit(self, *words: Any, **options: Any) -> Iterator[None]:
        self.num_limits += 1
        yield

    def _put(self, names: list[str], space: str, row: Any) -> None:
        with self._client.limit_pytorch_auto_parallel_threads():
            self.rows.setdefault(space, {})[names[0]] = row

    def _read(self, names: list[str], space: str, fields: list[str]) -> Any:
        with self._client.limit_pytorch_auto_parallel_threads():
            return self.rows[space][names[0]]

    def _clear(self, names: list[str], space: str) -> None:
        for name in names:
            del self.rows[space][name]
