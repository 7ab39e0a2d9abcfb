"""Slots, the gate, and what happens to requests that are cancelled, fail, or are given up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from refrl.generation.pool import ABORTED, GenerationPool, Router


@dataclass(frozen=True)
class Answer:
    """A reply."""

    finish_reason: str = "stop"


async def turns() -> None:
    """Let everything happen that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario in an event loop of its own."""

    async def main() -> None:
        await scenario()

    asyncio.run(main())


@pytest.mark.parametrize(("num_replicas", "capacity"), [(0, 1), (1, 0), (-1, 2)])
def test_a_router_without_slots_is_refused(num_replicas: int, capacity: int) -> None:
    """It could never answer."""
    with pytest.raises(ValueError, match="at least 1"):
        Router(num_replicas, capacity)


def test_the_least_loaded_replica_is_taken_and_ties_go_to_the_first() -> None:
    """Until every slot is in use."""

    async def scenario() -> None:
        router = Router(3, 2)
        assert [await router.acquire() for _ in range(6)] == [0, 1, 2, 0, 1, 2]
        router.release(1)
        assert router.loads == (2, 1, 2)
        assert await router.acquire() == 1

    run(scenario)


def test_those_who_wait_are_served_in_order() -> None:
    """One slot given back serves one."""

    async def scenario() -> None:
        router = Router(1, 1)
        await router.acquire()
        order: list[str] = []

        async def wait(name: str) -> None:
            await router.acquire()
            order.append(name)

        tasks = [asyncio.ensure_future(wait(name)) for name in "abc"]
        await turns()
        assert order == []
        for number in range(1, 4):
            router.release(0)
            await turns()
            assert order == list("abc")[:number]
        await asyncio.gather(*tasks)

    run(scenario)


@pytest.mark.parametrize("told", [False, True])
def test_a_slot_is_not_lost_with_a_cancelled_waiter(told: bool) -> None:
    """Whether it was cancelled while it waited, or when it had just been told of a slot."""

    async def scenario() -> None:
        router = Router(1, 1)
        await router.acquire()
        first, second = (asyncio.ensure_future(router.acquire()) for _ in range(2))
        await turns()
        if told:
            router.release(0)
            first.cancel()
        else:
            first.cancel()
            await turns()
            router.release(0)
        await turns()
        assert first.cancelled()
        assert second.result() == 0
        assert router.loads == (1,)

    run(scenario)


def test_an_engine_that_fails_gives_its_slot_back() -> None:
    """The error reaches the caller, and the next request is served; a stop finds nothing running."""

    async def scenario() -> None:
        calls = iter([ConnectionError("engine lost"), Answer()])

        async def engine(request: int) -> Answer:
            outcome = next(calls)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        pool = GenerationPool([engine], capacity=1)
        with pytest.raises(ConnectionError, match="engine lost"):
            await pool.generate(0)
        assert await pool.generate(1) == Answer()
        await asyncio.wait_for(pool.stop(), timeout=30)

    run(scenario)


@pytest.mark.parametrize(("num_aborts", "answered"), [(2, True), (3, False)])
def test_aborts_without_a_pause_are_retried_twice(num_aborts: int, answered: bool) -> None:
    """More than that is a fault of the engine, and is said."""

    async def scenario() -> None:
        reasons = iter([ABORTED] * num_aborts + ["length"])

        async def engine(request: int) -> Answer:
            return Answer(next(reasons))

        pool = GenerationPool([engine], capacity=1)
        if answered:
            assert await pool.generate(0) == Answer("length")
        else:
            with pytest.raises(RuntimeError, match="gave up 3 times"):
                await pool.generate(0)

    run(scenario)


def test_three_pauses_that_abort_cost_no_reply() -> None:
    """Each pause gives up what runs; every request is answered in the end, whole."""

    async def scenario() -> None:
        running: list[asyncio.Future[Answer]] = []

        async def engine(request: int) -> Answer:
            running.append(asyncio.get_running_loop().create_future())
            return await running[-1]

        def finish(reason: str) -> None:
            for future in running:
                if not future.done():
                    future.set_result(Answer(reason))

        pool = GenerationPool([engine, engine], capacity=2)
        asked = [asyncio.ensure_future(pool.generate(number)) for number in range(5)]
        for _ in range(3):
            await turns()
            await asyncio.wait_for(pool.stop(abort=lambda: finish(ABORTED)), timeout=30)
            begun = len(running)
            await turns()
            assert len(running) == begun
            pool.resume()
        while not all(task.done() for task in asked):
            await turns()
            finish("stop")
        assert [task.result() for task in asked] == [Answer()] * 5

    run(scenario)
