"""R19: a pool of engines respects capacity, completes every request, and runs nothing while weights change."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.records import PoolReply

MOST_TRIES = 50
"""Of a request that every engine aborts; a pool gives up after a few."""
_ROUNDS = 60
"""Iterations of the event loop after which no task can make progress; used instead of a clock."""


@dataclass(frozen=True, kw_only=True)
class PoolCase(Case):
    """Concurrent requests, and a pause while the first of them run."""

    num_replicas: int
    capacity: int
    num_requests: int
    aborts: bool
    """Whether the engines abort running requests when the pool is stopped."""

    def smaller(self) -> Iterator[PoolCase]:
        """Yield fewer requests, replicas, slots."""
        for name in ("num_requests", "num_replicas", "capacity"):
            if getattr(self, name) > 1:
                yield replace(self, **{name: getattr(self, name) - 1})
        if self.aborts:
            yield replace(self, aborts=False)


class _Engine:
    """A fake engine; requests complete when `finish` is called."""

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
    """What was observed in one run of the pool."""

    most: list[int] = field(default_factory=list)
    first_loads: list[int] = field(default_factory=list)
    running_when_stopped: int = 0
    begun_while_stopped: int = 0
    replies: dict[int, PoolReply] = field(default_factory=dict)


async def _run_pool(stack: Any, case: PoolCase, *, pause: bool) -> _Seen:
    seen = _Seen()
    engines = [_Engine() for _ in range(case.num_replicas)]
    pool = stack.open_pool(engines, capacity=case.capacity)
    tasks = {request: asyncio.ensure_future(pool.generate(request)) for request in range(case.num_requests)}
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
        if not stopping.done():  # stop waits although nothing runs
            seen.running_when_stopped = max(1, _running(engines))
            stopping.cancel()
        pool.resume()
        await _settle()
    while _running(engines):
        for engine in engines:
            engine.finish("stop")
        await _settle()
    seen.most = [engine.most for engine in engines]
    seen.replies = {request: task.result() for request, task in tasks.items() if task.done()}
    for task in tasks.values():
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    return seen


async def _settle() -> None:
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


def _running(engines: list[_Engine]) -> int:
    return sum(len(engine.running) for engine in engines)


def _make(stack: Any, seed: int, tidy: bool) -> PoolCase:
    if tidy:
        return PoolCase(num_replicas=1, capacity=4, num_requests=3, aborts=False)
    # More requests than slots, so that some have to wait.
    return PoolCase(num_replicas=2 + seed % 3, capacity=2, num_requests=11 + seed, aborts=True)


def _make_partly_full(stack: Any, seed: int, tidy: bool) -> PoolCase:
    if tidy:
        return _make(stack, seed, tidy)
    return PoolCase(num_replicas=3, capacity=4 + seed, num_requests=7, aborts=False)


def _measure(
    stack: Any, case: PoolCase, figure: Callable[[_Seen], float], bound: float, what: str, *, pause: bool
) -> Measure:
    return Measure(error=figure(asyncio.run(_run_pool(stack, case, pause=pause))), bound=bound, what=what)


POOL = Relation(
    id="R19.pool",
    name="no-requests-while-weights-change",
    component="generation_pool",
    statement="A pool gives every request one complete reply, respects each engine's capacity, and runs nothing "
    "between stop and resume.",
    catalogue="SB050",
    cost="CPU, milliseconds",
    cases=_make,
)


@POOL.law("within capacity", "a request sent without checking the engine's load")
def within_capacity(stack: Any, case: PoolCase) -> Measure:
    what = "concurrent requests in one engine"
    return _measure(stack, case, lambda seen: max(seen.most), case.capacity, what, pause=False)


@POOL.law("least loaded first", "loads sorted in the wrong order", cases=_make_partly_full)
def least_loaded_first(stack: Any, case: PoolCase) -> Measure:
    def spread(seen: _Seen) -> float:
        return max(seen.first_loads) - min(seen.first_loads)

    return _measure(stack, case, spread, 1, "difference in load between two engines", pause=False)


@POOL.law("every request is answered", "a slot never released, a waiting request never woken")
def every_request_is_answered(stack: Any, case: PoolCase) -> Measure:
    def missing(seen: _Seen) -> float:
        return sum(
            request not in seen.replies or seen.replies[request].ids[0] != request
            for request in range(case.num_requests)
        )

    return _measure(stack, case, missing, 0, "requests without their own reply", pause=False)


@POOL.law("a stop waits for running requests", "weights changed during running generations")
def stop_waits_for_running_requests(stack: Any, case: PoolCase) -> Measure:
    what = "requests still running when the pool reported that it had stopped"
    return _measure(stack, case, lambda seen: seen.running_when_stopped, 0, what, pause=True)


@POOL.law(
    "nothing starts while stopped",
    "the gate checked before the wait for a slot but not after it",
)
def nothing_starts_while_stopped(stack: Any, case: PoolCase) -> Measure:
    what = "requests started between stop and resume"
    return _measure(stack, case, lambda seen: seen.begun_while_stopped, 0, what, pause=True)


@POOL.law(
    "aborted replies are not results",
    "aborted replies taken for results: truncated or empty completions are trained on",
)
def aborted_replies_are_not_results(stack: Any, case: PoolCase) -> Measure:
    def incomplete(seen: _Seen) -> float:
        whole = [
            request
            for request, reply in seen.replies.items()
            if reply.finish_reason != "abort" and reply.ids == (request, request)
        ]
        return case.num_requests - len(whole)

    return _measure(stack, case, incomplete, 0, "requests without a complete reply after a pause", pause=True)


@POOL.law(
    "a request is not tried forever",
    "aborts that are not counted: a request that no engine can serve hangs the run",
)
def tries_are_bounded(stack: Any, case: PoolCase) -> Measure:
    """Abort each try of one request without a stop: the pool raises, and serves the next request."""
    tries, reply = asyncio.run(_try_in_vain(stack, case))
    if reply is None:
        return Measure(error=math.inf, bound=0, what="the request after one that was given up has no reply")
    return Measure(
        error=tries,
        bound=MOST_TRIES,
        what="tries of a request that every engine aborts, with no stop in between",
    )


async def _try_in_vain(stack: Any, case: PoolCase) -> tuple[float, PoolReply | None]:
    """Return the tries of a request until the pool raised (infinite if it did not), and the next one's reply."""
    tries = 0

    async def engine(request: int) -> PoolReply:
        nonlocal tries
        tries += request == 0
        in_vain = request == 0 and tries <= MOST_TRIES
        return PoolReply(ids=(request,), finish_reason="abort" if in_vain else "stop")

    pool = stack.open_pool([engine] * case.num_replicas, capacity=1)
    found: Sequence[Any] = await asyncio.gather(pool.generate(0), return_exceptions=True)
    following = asyncio.ensure_future(pool.generate(1))
    await _settle()
    if not following.done():
        following.cancel()
        return tries, None
    return tries if isinstance(found[0], Exception) else math.inf, following.result()
