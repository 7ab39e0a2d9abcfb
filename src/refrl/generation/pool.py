"""Several generation engines as one: a request goes to the least loaded, and a weight sync can stop them all.

For one event loop. A request that waits for a slot when the pool is stopped begins only after the pause. A completion
that was aborted in the pause is generated again, or continued if the pool can: then the reply gives the weight
version of each token. A lost replica is quarantined, and its requests go to the others; each request is answered once.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from refrl.errors import GenerationError
from refrl.generation.base import Completion, FinishReason, Sampler, SamplingParams
from refrl.generation.sampling import skip_rows
from refrl.streams import random_stream


@dataclass(frozen=True)
class GenerationRequest:
    """Some rows of a batch."""

    prompts: tuple[tuple[int, ...], ...]
    params: SamplingParams
    seed: int
    """Of the batch: its rows draw the streams that they would draw in one call for the whole batch."""
    first_row: int
    """Place of the first of these rows in the batch."""
    partial: tuple[Completion, ...] = ()
    """What was sampled before it was given up, row by row; nothing at first."""
    num_parts: int = 0
    """How often it was given up."""


@dataclass(frozen=True)
class GenerationReply:
    """Completions of a request, in its order."""

    completions: tuple[Completion, ...]

    @property
    def finish_reason(self) -> FinishReason:
        """`abort` where any row was given up."""
        reasons = {completion.finish_reason for completion in self.completions}
        return "abort" if "abort" in reasons else "stop"


def carry_on(request: GenerationRequest, reply: GenerationReply) -> GenerationRequest:
    """Return the request for what is missing."""
    return replace(request, partial=reply.completions, num_parts=request.num_parts + 1)


def answer(engine: Sampler, request: GenerationRequest) -> GenerationReply:
    """Sample the rows of a request, or what is missing of them.

    Raises:
        ValueError, refrl.config.ConfigError, FloatingPointError: as `refrl.generation.base.Sampler.generate`.
    """
    if not request.partial:
        stream = torch.Generator().manual_seed(request.seed)
        skip_rows(request.first_row, stream)
        return GenerationReply(tuple(engine.generate(request.prompts, request.params, stream)))
    stream = random_stream(request.seed, f"row {request.first_row}, part", request.num_parts)
    given_up = [row for row, part in enumerate(request.partial) if part.finish_reason == "abort"]
    completions = list(request.partial)
    # Rows of one length go together: those that are given up have as many tokens as the call had sampled.
    for length in sorted({len(completions[row].ids) for row in given_up}):
        rows = [row for row in given_up if len(completions[row].ids) == length]
        rests = engine.generate(
            [(*completions[row].prompt_ids, *completions[row].ids) for row in rows],
            replace(request.params, max_new_tokens=request.params.max_new_tokens - length),
            stream,
        )
        for row, rest in zip(rows, rests, strict=True):
            completions[row] = join(completions[row], rest)
    return GenerationReply(tuple(completions))


def join(part: Completion, rest: Completion) -> Completion:
    """Return a completion and its continuation as one."""
    place = len(part.ids)
    segments = list(part.version_segments or ((0, part.weight_version),))
    for first, version in rest.version_segments or ((0, rest.weight_version),):
        if version != segments[-1][1]:
            segments.append((place + first, version))
    kept_ids = None
    if part.kept_ids is not None and rest.kept_ids is not None:
        kept_ids = part.kept_ids + rest.kept_ids
    mask = None
    if part.mask is not None or rest.mask is not None:
        mask = (part.mask or (1,) * place) + (rest.mask or (1,) * len(rest.ids))
    return Completion(
        prompt_ids=part.prompt_ids,
        ids=part.ids + rest.ids,
        logprobs=part.logprobs + rest.logprobs,
        finish_reason=rest.finish_reason,
        kept_ids=kept_ids,
        weight_version=part.weight_version,
        version_segments=tuple(segments) if len(segments) > 1 else (),
        mask=mask,
    )


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


class ReplicaLostError(Exception):
    """A replica crashed, or no longer answers; the message says how it ended."""


class Slot(NamedTuple):
    """A place in a replica."""

    replica: int
    slot: int
    """From 0 to the capacity, less 1; no two requests have one at a time."""


class Router:
    """Slots of several replicas: 0 <= load <= capacity of each that is not quarantined."""

    def __init__(self, num_replicas: int, capacity: int) -> None:
        """Start with every slot free.

        Raises:
            ValueError: no replica, or no slot.
        """
        if num_replicas < 1 or capacity < 1:
            raise ValueError(f"num_replicas={num_replicas} and capacity={capacity} must be at least 1")
        self._capacity = capacity
        self._loads: list[float] = [0] * num_replicas
        self._free = [list(range(capacity)) for _ in range(num_replicas)]
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def loads(self) -> tuple[int, ...]:
        """Slots in use, replica by replica."""
        return tuple(self._capacity - len(free) for free in self._free)

    @property
    def quarantined(self) -> tuple[int, ...]:
        """Replicas that get nothing any more."""
        return tuple(replica for replica, load in enumerate(self._loads) if math.isinf(load))

    async def acquire_slot(self) -> Slot:
        """Wait for a slot; take the first free one of the least loaded replica (the first of several).

        Raises:
            GenerationError: every replica is quarantined.
        """
        while min(self._loads) >= self._capacity:
            if len(self.quarantined) == len(self._loads):
                raise GenerationError(f"all {len(self._loads)} generation replicas are lost")
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._wake()  # the slot that it was assigned goes to another request
                raise
        replica = self._loads.index(min(self._loads))
        self._loads[replica] += 1
        return Slot(replica, heapq.heappop(self._free[replica]))

    def release_slot(self, replica: int, slot: int) -> None:
        """Release a slot, and notify one waiting request, unless the replica is quarantined.

        Raises:
            ValueError: it is not in use.
        """
        if not 0 <= slot < self._capacity or slot in self._free[replica]:
            raise ValueError(f"slot {slot} of replica {replica} is not in use")
        heapq.heappush(self._free[replica], slot)
        self._loads[replica] -= 1
        if math.isfinite(self._loads[replica]):
            self._wake()

    def quarantine(self, replica: int) -> None:
        """Give a replica nothing any more; who waits looks again, and learns where it was the last one."""
        self._loads[replica] = math.inf
        for _ in range(len(self._waiting)):
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
        carry_on: Callable[[RequestT, ReplyT], RequestT] | None = None,
    ) -> None:
        """Open the pool.

        Args:
            replicas: each answers one request; several at a time.
            capacity: most requests in one replica.
            max_aborts: replies to one request that may be aborted without a pause.
            carry_on: builds the request for the rest of an aborted completion; None starts over.
        """
        self._replicas = list(replicas)
        self._router = Router(len(self._replicas), capacity)
        self._max_aborts = max_aborts
        self._carry_on = carry_on
        self.losses: dict[int, str] = {}
        """How each quarantined replica was lost."""
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
            GenerationError: every replica is lost; the message says how.
        """
        aborts = 0
        while True:
            await self._open.wait()
            pauses = self._num_pauses
            replica, slot = await self._acquire_slot()
            if not self._open.is_set():
                self._router.release_slot(replica, slot)
                continue  # stopped while this one waited for a slot
            # Counted here: a stop that runs before the task does must wait for it too.
            self._num_in_flight += 1
            self._idle.clear()
            asked = asyncio.ensure_future(self._ask(replica, slot, request))
            try:
                # A cancelled request keeps its slot until the engine is done with it.
                reply = await asyncio.shield(asked)
            except ReplicaLostError:
                continue
            if reply.finish_reason != ABORTED:
                return reply
            if self._carry_on is not None:
                request = self._carry_on(request, reply)
            if self._num_pauses == pauses:
                aborts += 1
                if aborts > self._max_aborts:
                    raise RuntimeError(
                        f"the engines gave up {aborts} times on one request, with no pause to explain it: look at "
                        "their logs for requests that are too long or out of memory"
                    )

    def quarantine(self, replica: int, reason: str) -> None:
        """Send nothing to a replica any more."""
        self.losses.setdefault(replica, reason)
        self._router.quarantine(replica)

    async def stop(self, abort: Callable[[], None] | None = None) -> None:
        """Let nothing begin any more, and return when nothing runs: weights can change now.

        Args:
            abort: makes the engines abort what they run; None waits for it to end.
        """
        self._open.clear()
        self._num_pauses += 1
        if abort is not None:
            abort()
        await self._idle.wait()

    def resume(self) -> None:
        """Let requests begin again."""
        self._open.set()

    async def _acquire_slot(self) -> Slot:
        try:
            return await self._router.acquire_slot()
        except GenerationError as error:
            raise GenerationError(f"{error}: {'; '.join(self.losses.values())}") from None

    async def _ask(self, replica: int, slot: int, request: RequestT) -> ReplyT:
        try:
            return await self._replicas[replica](request)
        except ReplicaLostError as error:
            self.quarantine(replica, str(error))  # before its slot is given back
            raise
        finally:
            self._router.release_slot(replica, slot)
            self._num_in_flight -= 1
            if self._num_in_flight == 0:
                self._idle.set()
