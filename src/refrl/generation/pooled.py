"""A pool of generation engines as one sampler: rows are shared out, and weights are changed while it rests."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import torch

from refrl.errors import GenerationError
from refrl.generation.base import Completion, Generator, SamplingParams
from refrl.generation.pool import (
    GenerationPool,
    GenerationReply,
    GenerationRequest,
    ReplicaLostError,
    answer,
    carry_on,
)
from refrl.generation.process import GeneratorLostError
from refrl.weight_sync.base import WeightSync

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True)
class Replica:
    """A generation engine, in this process or in one of its own, and what keeps its weights those of the policy."""

    name: str
    """Such as `generation/0`: what messages and `seatrial chaos` call it."""
    engine: Generator
    weight_sync: WeightSync

    def answer(self, request: GenerationRequest) -> GenerationReply:
        """Answer one request; blocks.

        Raises:
            ReplicaLostError: its process ended, or did not answer in time.
        """
        with self._named():
            return answer(self.engine, request)

    def sync(self) -> None:
        """Take the policy's weights.

        Raises:
            ReplicaLostError: as `answer`.
        """
        with self._named():
            self.weight_sync.sync()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except GeneratorLostError as error:
            raise ReplicaLostError(f"{self.name}: {error}") from error


class PooledSampler:
    """A `refrl.generation.base.Sampler` over replicas; `close` it at the end.

    Called from several threads. With the weights of one version, its completions are those that one engine would
    sample alone, regardless of which replica samples which rows.
    """

    def __init__(self, replicas: Sequence[Replica], *, continues: bool) -> None:
        """Take replicas of equal weights.

        Args:
            replicas: at least one.
            continues: what is given up when weights change is continued with the new ones; else a change waits until
                nothing runs.
        """
        self._replicas = list(replicas)
        self._continues = continues
        self._workers = ThreadPoolExecutor(len(self._replicas), thread_name_prefix="refrl-generation")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="refrl-router")
        self._pool: GenerationPool[GenerationRequest, GenerationReply] = GenerationPool(
            [self._asking(replica) for replica in self._replicas],
            capacity=1,
            carry_on=carry_on if continues else None,
        )
        self._asking_lock = threading.Lock()
        self._asked: set[Future[GenerationReply]] = set()
        self._is_closed = False
        self._thread.start()

    def close(self) -> None:
        """End the replicas and the router; requests that still run, and later ones, end with an error."""
        with self._asking_lock:  # what is asked after this would wait for a loop that has ended
            self._is_closed = True
            asked = list(self._asked)
        for future in asked:
            future.cancel()
        self._abort()
        for replica in self._replicas:
            replica.engine.close()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._wait(_end_other_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def losses(self) -> dict[str, str]:
        """How each lost replica was lost, by its name."""
        return {self._replicas[number].name: reason for number, reason in self._pool.losses.items()}

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample one completion per prompt (see `refrl.generation.base.Sampler`).

        Raises:
            GenerationError: every replica is lost, or the sampler is closed.
        """
        requests = self._requests(prompts, params, generator.initial_seed())
        with self._asking_lock:
            if self._is_closed:
                raise GenerationError("the sampler is closed")
            futures = [
                asyncio.run_coroutine_threadsafe(self._pool.generate(request), self._loop)
                for request in requests
            ]
            self._asked.update(futures)
        try:
            return [completion for future in futures for completion in future.result().completions]
        finally:
            for future in futures:
                future.cancel()
            with self._asking_lock:
                self._asked.difference_update(futures)

    def update_weights(self) -> None:
        """Let every replica take the policy's weights while nothing runs; one that is lost meanwhile is quarantined.

        Raises:
            GenerationError: every replica is lost.
        """
        self._wait(self._pool.stop(self._abort if self._continues else None))
        try:
            self._wait(self._sync())
        finally:
            for replica in self._replicas:
                replica.engine.resume()
            self._loop.call_soon_threadsafe(self._pool.resume)

    async def _sync(self) -> None:
        syncs = {
            number: self._loop.run_in_executor(self._workers, replica.sync)
            for number, replica in enumerate(self._replicas)
            if number not in self._pool.losses
        }
        # All of them finish before anything samples again, even if one of them raises.
        for number, error in zip(
            syncs, await asyncio.gather(*syncs.values(), return_exceptions=True), strict=True
        ):
            if isinstance(error, ReplicaLostError):
                self._pool.quarantine(number, str(error))
            elif error is not None:
                raise error
        if len(self._pool.losses) == len(self._replicas):
            raise GenerationError(
                f"all {len(self._replicas)} generation replicas are lost: {'; '.join(self._pool.losses.values())}"
            )

    def _requests(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seed: int
    ) -> list[GenerationRequest]:
        """Share rows out over the replicas that are left; rows of one prompt stay together."""
        rows = [tuple(prompt) for prompt in prompts]
        groups = [list(group) for _, group in groupby(rows)]
        num_requests = max(1, len(self._replicas) - len(self._pool.losses))
        requests: list[GenerationRequest] = []
        first_row = 0
        for number in range(num_requests):
            share = groups[number * len(groups) // num_requests : (number + 1) * len(groups) // num_requests]
            own = tuple(prompt for group in share for prompt in group)
            if own:
                requests.append(GenerationRequest(own, params, seed, first_row))
            first_row += len(own)
        return requests

    def _asking(
        self, replica: Replica
    ) -> Callable[[GenerationRequest], Coroutine[Any, Any, GenerationReply]]:
        async def ask(request: GenerationRequest) -> GenerationReply:
            return await self._loop.run_in_executor(self._workers, replica.answer, request)

        return ask

    def _abort(self) -> None:
        for replica in self._replicas:
            replica.engine.abort()

    def _wait(self, awaited: Coroutine[Any, Any, AnswerT]) -> AnswerT:
        return asyncio.run_coroutine_threadsafe(awaited, self._loop).result()


async def _end_other_tasks() -> None:
    """Cancel what still runs on this loop, and wait until it has ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
