"""Several generation engines as one: a request goes to the least loaded, and a weight sync can stop them all.

For one event loop. A request that waits for a slot when the pool is stopped begins only after the pause, and what an
engine gave up in the pause is generated again: no reply is ever half of one policy's and half of another's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

ABORTED = "abort"
"""Finish reason of a reply that an engine gave up."""

RequestT = TypeVar("RequestT")


class Reply(Protocol):
    """What an engine answers."""

    @property
    def finish_reason(self) -> str:
        """`abort`, or any other word for a whole reply."""
        ...


ReplyT = TypeVar("ReplyT", bound=Reply)


class Router:
    """Slots of several replicas: 0 <= load <= capacity of each."""

    def __init__(self, num_replicas: int, capacity: int) -> None:
        """Start with every slot free.

        Raises:
            ValueError: no replica, or no slot.
        """
        if num_replicas < 1 or capacity < 1:
            raise ValueError(f"num_replicas={num_replicas} and capacity={capacity} must be at least 1")
        self._capacity = capacity
        self._loads = [0] * num_replicas
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def loads(self) -> tuple[int, ...]:
        """Slots in use, replica by replica."""
        return tuple(self._loads)

    async def acquire(self) -> int:
        """Wait for a slot, take one of the least loaded replica (the first of several), and return its number."""
        while min(self._loads) >= self._capacity:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()  # the slot that it was told of is another's now
                raise
        replica = self._loads.index(min(self._loads))
        self._loads[replica] += 1
        return replica

    def release(self, replica: int) -> None:
        """Give a slot back, and tell one of those who wait."""
        self._loads[replica] -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class GenerationPool(Generic[RequestT, ReplyT]):
    """Replicas behind a router and a gate."""

    def __init__(
        self,
        replicas: Sequence[Callable[[RequestT], Awaitable[ReplyT]]],
        *,
        capacity: int,
        max_aborts: int = 2,
    ) -> None:
        """Open the pool.

        Args:
            replicas: each answers one request; several at a time.
            capacity: most requests in one replica.
            max_aborts: replies to one request that may be aborted without a pause.
        """
        self._replicas = list(replicas)
        self._router = Router(len(self._replicas), capacity)
        self._max_aborts = max_aborts
        self._num_pauses = 0
        self._num_in_flight = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(self, request: RequestT) -> ReplyT:
        """Return a whole reply; where a pause made an engine give up, the request is sent again after it.

        Raises:
            RuntimeError: engines gave up more often than `max_aborts` without a pause.
        """
        aborts = 0
        while True:
            await self._open.wait()
            pauses = self._num_pauses
            replica = await self._router.acquire()
            try:
                if not self._open.is_set():
                    continue  # stopped while this one waited for a slot
                reply = await self._ask(replica, request)
            finally:
                self._router.release(replica)
            if reply.finish_reason != ABORTED:
                return reply
            if self._num_pauses == pauses:
                aborts += 1
                if aborts > self._max_aborts:
                    raise RuntimeError(
                        f"the engines gave up {aborts} times on one request, with no pause to explain it: look at "
                        "their logs for requests that are too long or out of memory"
                    )

    async def stop(self, abort: Callable[[], None] | None = None) -> None:
        """Let nothing begin any more, and return when nothing runs: weights can change now.

        Args:
            abort: tells the engines to give up what they run; None waits for it to end.
        """
        self._open.clear()
        self._num_pauses += 1
        if abort is not None:
            abort()
        await self._idle.wait()

    def resume(self) -> None:
        """Let requests begin again."""
        self._open.set()

    async def _ask(self, replica: int, request: RequestT) -> ReplyT:
        self._num_in_flight += 1
        self._idle.clear()
        try:
            return await self._replicas[replica](request)
        finally:
            self._num_in_flight -= 1
            if self._num_in_flight == 0:
                self._idle.set()
