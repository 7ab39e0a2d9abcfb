"""R19: generation over several engines keeps to slots, answers every request whole, and rests while weights change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.records import PoolReply

_ROUNDS = 60
"""Turns of the event loop after which whatever can happen has happened: no clock is read."""


@dataclass(frozen=True, kw_only=True)
class PoolCase(Case):
    """Requests that come at once, and a pause while the first of them run."""

    num_replicas: int
    capacity: int
    num_requests: int
    aborts: bool
    """The engines give up what runs when the pool is stopped."""

    def smaller(self) -> Iterator[PoolCase]:
        """Yield fewer requests, replicas, slots."""
        for name in ("num_requests", "num_replicas", "capacity"):
            if getattr(self, name) > 1:
                yield replace(self, **{name: getattr(self, name) - 1})
        if self.aborts:
            yield replace(self, aborts=False)


class _Engine:
    """A made engine: it answers when it is told to."""

    def __init__(self) -> None:
        self.running: dict[int, asyncio.Future[PoolReply]] = {}
        self.most = 0
        self.num_begun = 0

    async def __call__(self, request: int) -> PoolReply:
        self.num_begun += 1
        self.running[request] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.running))
        try:
            return await self.running[request]
        finally:
            del self.running[request]

    def finish(self, reason: str, requests: Sequence[int] | None = None) -> None:
        for request, reply in list(self.running.items()):
            if not reply.done() and (requests is None or request in requests):
                ids = (request,) if reason == "abort" else (request, request)
                reply.set_result(PoolReply(ids=ids, finish_reason=reason))


@dataclass
class _Seen:
    """What happened."""

    most: list[int] = field(default_factory=list)
    first_loads: list[int] = field(default_factory=list)
    running_when_stopped: int = 0
    begun_while_stopped: int = 0
    replies: dict[int, PoolReply] = field(default_factory=dict)


async def _play(stack: Any, case: PoolCase, *, pause: bool) -> _Seen:
    seen = _Seen()
    engines = [_Engine() for _ in range(case.num_replicas)]
    pool = stack.open_pool(engines, capacity=case.capacity)
    asked = {request: asyncio.ensure_future(pool.generate(request)) for request in range(case.num_requests)}
    await _settle()
    seen.first_loads = [len(engine.running) for engine in engines]
    if pause:
        stopping = asyncio.ensure_future(pool.stop())
        await _settle()
        begun = sum(engine.num_begun for engine in engines)
        for engine in engines:
            for request in list(engine.running):
                if stopping.done():
                    seen.running_when_stopped = max(seen.running_when_stopped, _running(engines))
                engine.finish("abort" if case.aborts else "stop", (request,))
                await _settle()
        seen.begun_while_stopped = sum(engine.num_begun for engine in engines) - begun
        if not stopping.done():  # it waits for nothing
            seen.running_when_stopped = max(1, _running(engines))
            stopping.cancel()
        pool.resume()
        await _settle()
    while _running(engines):
        for engine in engines:
            engine.finish("stop")
        await _settle()
    seen.most = [engine.most for engine in engines]
    seen.replies = {request: task.result() for request, task in asked.items() if task.done()}
    for task in asked.values():
        task.cancel()
    await asyncio.gather(*asked.values(), return_exceptions=True)
    return seen


async def _settle() -> None:
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


def _running(engines: list[_Engine]) -> int:
    return sum(len(engine.running) for engine in engines)


def _make(stack: Any, seed: int, tidy: bool) -> PoolCase:
    if tidy:
        return PoolCase(num_replicas=1, capacity=4, num_requests=3, aborts=False)
    # More requests than slots, so that some wait.
    return PoolCase(num_replicas=2 + seed % 3, capacity=2, num_requests=11 + seed, aborts=True)


def _make_partly_full(stack: Any, seed: int, tidy: bool) -> PoolCase:
    if tidy:
        return _make(stack, seed, tidy)
    return PoolCase(num_replicas=3, capacity=4 + seed, num_requests=7, aborts=False)


def _law(
    stack: Any, case: PoolCase, figure: Callable[[_Seen], float], bound: float, what: str, *, pause: bool
) -> Measure:
    return Measure(error=figure(asyncio.run(_play(stack, case, pause=pause))), bound=bound, what=what)


POOL = Relation(
    id="R19.pool",
    name="requests-rest-while-weights-change",
    component="generation_pool",
    statement="Over several engines every request gets one whole reply, within each engine's slots, and nothing "
    "runs between stop and resume.",
    catalogue="SB050",
    cost="CPU, milliseconds",
    cases=_make,
)


@POOL.law("within capacity", "a slot that is taken without a look at the load")
def within_capacity(stack: Any, case: PoolCase) -> Measure:
    what = "requests at once in one engine"
    return _law(stack, case, lambda seen: max(seen.most), case.capacity, what, pause=False)


@POOL.law("least loaded first", "the wrong end of the order of loads", cases=_make_partly_full)
def evenly(stack: Any, case: PoolCase) -> Measure:
    def spread(seen: _Seen) -> float:
        return max(seen.first_loads) - min(seen.first_loads)

    return _law(stack, case, spread, 1, "difference in load between two engines", pause=False)


@POOL.law("every request is answered", "a slot that is never given back, a waiting request that nobody wakes")
def answered(stack: Any, case: PoolCase) -> Measure:
    def missing(seen: _Seen) -> float:
        return sum(
            request not in seen.replies or seen.replies[request].ids[0] != request
            for request in range(case.num_requests)
        )

    return _law(stack, case, missing, 0, "requests without a reply of their own", pause=False)


@POOL.law("a stop waits for what runs", "weights that change under running generations")
def drained(stack: Any, case: PoolCase) -> Measure:
    what = "requests that still ran when the pool said that it had stopped"
    return _law(stack, case, lambda seen: seen.running_when_stopped, 0, what, pause=True)


@POOL.law(
    "nothing begins while stopped",
    "the gate is looked at before the wait for a slot, and not after it",
)
def rests(stack: Any, case: PoolCase) -> Measure:
    what = "requests that began between stop and resume"
    return _law(stack, case, lambda seen: seen.begun_while_stopped, 0, what, pause=True)


@POOL.law(
    "aborted replies are not results",
    "what an engine gave up is taken for an answer: truncated or empty completions are trained on",
)
def _whole(stack: Any, case: PoolCase) -> Measure:
    def broken(seen: _Seen) -> float:
        whole = [
            request
            for request, reply in seen.replies.items()
            if reply.finish_reason != "abort" and reply.ids == (request, request)
        ]
        return case.num_requests - len(whole)

    return _law(stack, case, broken, 0, "requests without a whole reply after a pause", pause=True)
