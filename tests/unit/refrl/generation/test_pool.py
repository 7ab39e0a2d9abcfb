"""Slots, the gate, and what happens to requests that are cancelled, fail, or are given up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from refrl.errors import GenerationError
from refrl.generation.pool import ABORTED, GenerationPool, ReplicaLostError, Router


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
        assert [await router.acquire_slot() for _ in range(6)] == [
            (0, 0),
            (1, 0),
            (2, 0),
            (0, 1),
            (1, 1),
            (2, 1),
        ]
        router.release_slot(1, 0)
        assert router.loads == (2, 1, 2)
        assert await router.acquire_slot() == (1, 0)

    run(scenario)


def test_those_who_wait_are_served_in_order() -> None:
    """One slot given back serves one."""

    async def scenario() -> None:
        router = Router(1, 1)
        await router.acquire_slot()
        order: list[str] = []

        async def wait(name: str) -> None:
            await router.acquire_slot()
            order.append(name)

        tasks = [asyncio.ensure_future(wait(name)) for name in "abc"]
        await turns()
        assert order == []
        for number in range(1, 4):
            router.release_slot(0, 0)
            await turns()
            assert order == list("abc")[:number]
        await asyncio.gather(*tasks)

    run(scenario)


@pytest.mark.parametrize("told", [False, True])
def test_a_slot_is_not_lost_with_a_cancelled_waiter(told: bool) -> None:
    """Whether it was cancelled while it waited, or when it had just been told of a slot."""

    async def scenario() -> None:
        router = Router(1, 1)
        await router.acquire_slot()
        first, second = (asyncio.ensure_future(router.acquire_slot()) for _ in range(2))
        await turns()
        if told:
            router.release_slot(0, 0)
            first.cancel()
        else:
            first.cancel()
            await turns()
            router.release_slot(0, 0)
        await turns()
        assert first.cancelled()
        assert second.result() == (0, 0)
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


def test_a_stop_in_the_turn_of_a_request_waits_for_it() -> None:
    """Else its replica would sample while the weights change."""

    async def scenario() -> None:
        seen = []

        async def replica(request: str) -> Answer:
            seen.append("begins")
            await turns()
            seen.append("ends")
            return Answer()

        pool = GenerationPool([replica], capacity=1)
        asked = asyncio.ensure_future(pool.generate("a"))
        await asyncio.ensure_future(pool.stop())
        seen.append("stopped")
        pool.resume()
        await asked
        assert seen == ["begins", "ends", "stopped"]

    run(scenario)


def test_a_slot_is_given_back_once() -> None:
    """A second release, or one of a slot that does not exist, would let more in than there is room for."""

    async def scenario() -> None:
        router = Router(2, 2)
        replica, slot = await router.acquire_slot()
        router.release_slot(replica, slot)
        for wrong in (slot, 2, -1):
            with pytest.raises(ValueError, match="is not in use"):
                router.release_slot(replica, wrong)
        assert router.loads == (0, 0)

    run(scenario)


def test_a_lost_replica_gets_nothing_any_more_and_its_requests_go_to_the_others() -> None:
    """Every request is answered once."""

    async def scenario() -> None:
        answered: list[int] = []
        asked: list[int] = []

        async def lost(request: int) -> Answer:
            asked.append(request)
            raise ReplicaLostError("replica 0 was killed")

        async def healthy(request: int) -> Answer:
            answered.append(request)
            return Answer()

        pool = GenerationPool([lost, healthy], capacity=1)
        replies = await asyncio.gather(*(pool.generate(number) for number in range(5)))
        assert replies == [Answer()] * 5
        assert asked == [0]
        assert sorted(answered) == [0, 1, 2, 3, 4]
        assert pool.losses == {0: "replica 0 was killed"}

    run(scenario)


def test_the_loss_of_the_last_replica_ends_every_request() -> None:
    """Those who wait for a slot as well; the message says how each was lost."""

    async def scenario() -> None:
        async def lost(request: int) -> Answer:
            await asyncio.sleep(0)
            raise ReplicaLostError("replica 0 was killed by signal 9")

        pool = GenerationPool([lost], capacity=1)
        outcomes = await asyncio.wait_for(
            asyncio.gather(*(pool.generate(number) for number in range(3)), return_exceptions=True),
            timeout=30,
        )
        assert [type(outcome) for outcome in outcomes] == [GenerationError] * 3
        assert all("killed by signal 9" in str(outcome) for outcome in outcomes)

    run(scenario)


def test_a_pool_with_a_continuation_continues_what_an_engine_gave_up() -> None:
    """The second engine call gets the rest, not the whole."""

    async def scenario() -> None:
        running: list[tuple[int, asyncio.Future[Answer]]] = []

        async def engine(request: int) -> Answer:
            running.append((request, asyncio.get_running_loop().create_future()))
            return await running[-1][1]

        pool = GenerationPool([engine], capacity=1, carry_on=lambda request, reply: request - 3)
        asked = asyncio.ensure_future(pool.generate(10))
        await turns()
        await asyncio.wait_for(pool.stop(abort=lambda: running[0][1].set_result(Answer(ABORTED))), timeout=30)
        pool.resume()
        await turns()
        running[1][1].set_result(Answer())
        assert await asked == Answer()
        assert [request for request, _ in running] == [10, 7]

    run(scenario)


def test_an_abandoned_request_keeps_its_slot_until_the_engine_is_done() -> None:
    """An engine cannot be called back: what is sent to it meanwhile would find it over its capacity."""

    async def scenario() -> None:
        running: list[asyncio.Future[Answer]] = []

        async def engine(request: int) -> Answer:
            running.append(asyncio.get_running_loop().create_future())
            return await running[-1]

        pool = GenerationPool([engine], capacity=1)
        given_up, second = (asyncio.ensure_future(pool.generate(number)) for number in range(2))
        await turns()
        given_up.cancel()
        await turns()
        assert given_up.cancelled()
        assert len(running) == 1
        stopping = asyncio.ensure_future(pool.stop())
        await turns()
        assert not stopping.done()
        running[0].set_result(Answer())
        await asyncio.wait_for(stopping, timeout=30)
        pool.resume()
        await turns()
        running[1].set_result(Answer("length"))
        assert await second == Answer("length")

    run(scenario)


def test_a_replica_that_is_lost_with_a_request_that_was_given_up_is_quarantined() -> None:
    """Nobody waits for the answer; those who wait for a slot learn of the loss."""

    async def scenario() -> None:
        running: list[asyncio.Future[Answer]] = []

        async def engine(request: int) -> Answer:
            running.append(asyncio.get_running_loop().create_future())
            return await running[-1]

        pool = GenerationPool([engine], capacity=1)
        given_up, second = (asyncio.ensure_future(pool.generate(number)) for number in range(2))
        await turns()
        given_up.cancel()
        await turns()
        running[0].set_exception(ReplicaLostError("replica 0 was killed"))
        with pytest.raises(GenerationError, match="replica 0 was killed"):
            await second
        assert len(running) == 1

    run(scenario)
