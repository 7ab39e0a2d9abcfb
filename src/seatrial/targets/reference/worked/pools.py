"""Worked examples of pools of samplers: whose rows go where, losses, weights that change, and syncs of weights."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch

from refrl.errors import ConfigError, GenerationError
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.pool import GenerationPool, Router
from refrl.generation.pooled import PooledSampler, Replica
from refrl.generation.process import GeneratorLostError
from refrl.generation.sampling import row_uniforms
from refrl.timing import Timer
from refrl.weight_sync.colocated import CopiedWeights, SharedWeights, make_weight_sync
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import example, refused

HANGS_SECONDS = 20.0
"""Time after which a call is taken for one that never ends."""
PROMPTS = ((1,), (1,), (2,), (3,), (3,), (4,))


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_samplers()
    yield from _of_errors()
    yield from _of_gates()
    yield from _of_syncs()


class _Engine:
    """An engine whose tokens are its number and the row's random number; it is lost on a prompt that names it."""

    def __init__(self, number: int, lost_at: int | str | None = None) -> None:
        self.number, self.lost_at = number, lost_at
        self.noted: list[Any] = []
        self.weight_version = 0

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        if isinstance(self.lost_at, int) and any(self.lost_at in prompt for prompt in prompts):
            raise GeneratorLostError(f"ended at {self.lost_at}")
        numbers = (1e6 * row_uniforms(len(prompts), 1, generator)[:, 0]).long().tolist()
        self.noted.append([prompt[0] for prompt in prompts])
        return [
            Completion(tuple(prompt), (number,), (-0.5,), "stop", weight_version=self.weight_version)
            for prompt, number in zip(prompts, numbers, strict=True)
        ]

    def abort(self) -> None:
        self.noted.append("abort")

    def resume(self) -> None:
        self.noted.append("resume")

    def close(self) -> None:
        self.noted.append("close")

    def sync(self) -> Mapping[str, float]:
        if self.lost_at == "sync":
            raise GeneratorLostError("ended in a sync")
        self.noted.append("sync")
        self.weight_version += 1
        return {}


def _with(engines: Sequence[Any], call: Callable[[PooledSampler], Any], *, continues: bool = False) -> Any:
    """Return what a call returns of a sampler over these engines, which is closed after it."""
    replicas: list[Any] = [Replica(f"generation/{engine.number}", engine, engine) for engine in engines]
    sampler = PooledSampler(replicas, continues=continues)
    worker = ThreadPoolExecutor(1)  # a sampler that never answers is closed, and its call ends
    try:
        return worker.submit(call, sampler).result(HANGS_SECONDS)
    finally:
        sampler.close()
        worker.shutdown()


def _drawn(sampler: Any, seed: int = 3) -> list[tuple[Any, ...]]:
    rows = sampler.generate(PROMPTS, SamplingParams(max_new_tokens=1), torch.Generator().manual_seed(seed))
    return [(row.prompt_ids, row.ids, row.weight_version) for row in rows]


def _of_samplers() -> Iterator[WorkedExample]:
    alone = _drawn(_Engine(0))
    for num in (1, 2, 3, 7):
        engines = [_Engine(number) for number in range(num)]
        yield example(
            f"rows of {num} engines are those of one",
            True,
            lambda of=engines: _with(of, _drawn) == alone,
        )
    two = [_Engine(0), _Engine(1)]
    yield example("rows of two engines", [[1, 1, 2], [3, 3, 4]], lambda: _shared(two))
    yield example("weights of two engines", ([1] * 6, ["sync", "resume"], ["sync", "resume"]), _synced, False)
    yield example(
        "weights of two engines that continue",
        ([1] * 6, ["abort", "sync", "resume"], ["abort", "sync", "resume"]),
        _synced,
        True,
    )
    yield example("engines are closed", (["abort", "close"], ["abort", "close"]), _closed)
    yield refused("closed", "rows of a closed sampler", _after_the_end)
    lost = "generation/0: ended at 2"
    yield example("rows of a lost engine", (alone, {"generation/0": lost}, 2), _lost_one)
    yield refused(f"all 1 generation replicas are lost: {lost}", "all engines lost", _lost_all)
    lost = "generation/1: ended in a sync"
    yield example("an engine that is lost in a sync", ({"generation/1": lost}, [1] * 6), _lost_in_a_sync)
    yield refused(
        "all 1 generation replicas are lost", "the only engine lost in a sync", _with, [_Engine(1, "sync")],
        lambda of: of.update_weights(),
    )  # fmt: skip


def _shared(engines: Sequence[Any]) -> Any:
    _with(engines, _drawn)
    return sorted(rows for engine in engines for rows in engine.noted if isinstance(rows, list))


def _synced(continues: bool) -> Any:
    engines = [_Engine(0), _Engine(1)]

    def call(sampler: PooledSampler) -> Any:
        sampler.update_weights()
        noted = [list(engine.noted) for engine in engines]
        return [row[2] for row in _drawn(sampler)], *noted

    return _with(engines, call, continues=continues)


def _closed() -> Any:
    engines = [_Engine(0), _Engine(1)]
    _with(engines, lambda sampler: None)
    return tuple(engine.noted for engine in engines)


def _after_the_end() -> None:
    kept: list[Any] = []
    _with([_Engine(0)], kept.append)
    _drawn(kept[0])


def _lost_one() -> Any:
    engines = [_Engine(0, lost_at=2), _Engine(1)]
    return _with(
        engines,
        lambda sampler: (
            _drawn(sampler),
            sampler.losses,
            len([one for one in engines[1].noted if one != "abort"]),
        ),
    )


def _lost_all() -> None:
    _with([_Engine(0, lost_at=2)], _drawn)


def _lost_in_a_sync() -> Any:
    engines: list[Any] = [_Engine(0), _Engine(1, "sync")]

    def call(sampler: PooledSampler) -> Any:
        sampler.update_weights()
        return sampler.losses, [row[2] for row in _drawn(sampler)]

    return _with(engines, call)


class _Failing(_Engine):
    """An engine that raises an error when it samples, or when it takes weights."""

    def __init__(self, error: BaseException, when: str) -> None:
        super().__init__(0)
        self._error, self._when = error, when

    def generate(self, *words: Any) -> list[Completion]:
        if self._when == "samples":
            raise self._error
        return super().generate(*words)

    def sync(self) -> Mapping[str, float]:
        if self._when == "syncs":
            raise self._error
        return super().sync()


def _of_errors() -> Iterator[WorkedExample]:
    """Yield what comes of errors that are no end of an engine: they reach the caller, and no replica is lost."""
    for error in (
        *(KeyError("x"), ValueError("x"), RuntimeError("x"), TypeError("x"), ConfigError("x"), OSError("x")),
        *(GenerationError("x"), MemoryError("x"), TimeoutError("x"), ZeroDivisionError("x")),
    ):
        for when in ("samples", "syncs"):
            right: Any = (type(error).__name__, {})
            yield example(f"an engine that raises {right[0]} as it {when}", right, _raised, error, when)


def _raised(error: Exception, when: str) -> Any:
    """Return the type of what a sampler of two engines raises whose first raises an error, and who is lost."""

    def call(sampler: PooledSampler) -> Any:
        try:
            _drawn(sampler) if when == "samples" else sampler.update_weights()
        except Exception as found:  # noqa: BLE001  the result
            return type(found).__name__, sampler.losses
        return "nothing", sampler.losses

    return _with([_Failing(error, when), _Engine(1)], call)


def _of_gates() -> Iterator[WorkedExample]:
    yield example(
        "a stop in the turn of a request", ["begins", "ends", "stopped"], lambda: asyncio.run(_stopped())
    )
    for words, number in (("no stop", 0), ("a stop that aborts", 1)):
        yield example(f"replies that are given up with {words}", number > 0, lambda of=number: _gave_up(of))
    yield example("random slots", [], _random_slots)


async def _stopped() -> list[str]:
    seen: list[str] = []

    async def replica(request: str) -> Any:
        seen.append("begins")
        await asyncio.sleep(0)
        seen.append("ends")
        return SimpleNamespace(finish_reason="stop")

    pool: GenerationPool[str, Any] = GenerationPool([replica], capacity=1)
    asked = asyncio.ensure_future(pool.generate("a"))
    await asyncio.ensure_future(pool.stop())
    seen.append("stopped")
    pool.resume()
    await asked
    return seen


def _gave_up(num_stops: int) -> bool:
    """Return whether a request that is given up three times is answered, with a stop for each or without one."""

    async def main() -> bool:
        left = [3]

        async def replica(request: str) -> Any:
            left[0] -= 1
            for _ in range(4):
                await asyncio.sleep(0)
            return SimpleNamespace(finish_reason="abort" if left[0] >= 0 else "stop")

        pool: GenerationPool[str, Any] = GenerationPool([replica], capacity=1)
        asked = asyncio.ensure_future(pool.generate("a"))
        while not asked.done():
            await asyncio.sleep(0)
            if num_stops:
                await pool.stop()
                pool.resume()
        return asked.exception() is None

    return asyncio.run(main())


def _random_slots() -> list[str]:
    """Return differences of a router from a plain model over random calls."""
    return [said for seed in range(6) for said in asyncio.run(_calls(random.Random(seed)))]


async def _calls(stream: random.Random) -> list[str]:
    num, capacity = stream.randint(1, 3), stream.randint(1, 3)
    router, wrong = Router(num, capacity), []
    free = [set(range(capacity)) for _ in range(num)]
    lost: set[int] = set()
    held: list[Any] = []
    waiting: list[asyncio.Task[Any]] = []
    for _ in range(80):
        match stream.choice(["take", "take", "give", "cancel", "lose"]):
            case "take":
                waiting.append(asyncio.ensure_future(router.acquire_slot()))
            case "give" if held:
                replica, slot = held.pop(stream.randrange(len(held)))
                free[replica].add(slot)
                router.release_slot(replica, slot)
            case "cancel" if waiting:
                waiting.pop(stream.randrange(len(waiting))).cancel()
            case "lose" if len(lost) < num - 1 and stream.random() < 0.1:
                replica = stream.randrange(num)
                lost.add(replica)
                router.quarantine(replica)
        for _ in range(12):
            await asyncio.sleep(0)
        served = [one for one in waiting if one.done()]
        if served != waiting[: len(served)]:
            wrong.append(
                f"{[waiting.index(one) for one in served]} of {len(waiting)} that wait are served first"
            )
        for task in served:
            waiting.remove(task)
            replica, slot = task.result()
            most = max((len(free[one]) for one in range(num) if one not in lost), default=0)
            if replica in lost or slot != min(free[replica], default=None) or len(free[replica]) != most:
                wrong.append(f"slot {slot} of {replica}, free are {free} without {sorted(lost)}")
            free[replica].discard(slot)
            held.append((replica, slot))
        if waiting and any(free[one] for one in range(num) if one not in lost):
            wrong.append(f"{len(waiting)} wait, free are {free} without {sorted(lost)}")
        if router.loads != tuple(capacity - len(one) for one in free):
            wrong.append(f"loads {router.loads}, free are {free}")
        if set(router.quarantined) != lost:
            wrong.append(f"lost are {router.quarantined}, and {sorted(lost)}")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return wrong


class _InPartsError(Exception):
    """Raised by a target whose tensors are listed: weights are to arrive in parts."""


class _Weights:
    """A source and a target of weights that note what is taken of them."""

    def __init__(self, version: int, *, shares: bool = True) -> None:
        self.version, self.weight_version, self.shares_weights = version, 0, shares
        self.noted: list[Any] = []

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield "w", torch.zeros(1)

    def share_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        self.noted.append(("shares", [name for name, _ in weights]))

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        self.noted.append(("loads", [name for name, _ in weights], version))
        self.weight_version = version

    def specs(self) -> None:
        raise _InPartsError


def _of_syncs() -> Iterator[WorkedExample]:
    def synced(of: Any) -> Any:
        source, target = _Weights(4), _Weights(0)
        made = of(source, target)
        versions = [target.weight_version]
        for version in (4, 5, 5, 6):
            source.version = version
            assert made.sync() == {}
            versions.append(target.weight_version)
        return target.noted, versions

    yield example("weights that are shared", ([("shares", ["w"])], [4, 4, 5, 5, 6]), synced, SharedWeights)
    loads = [("loads", ["w"], version) for version in (4, 5, 6)]
    yield example("weights that are copied", (loads, [4, 4, 5, 5, 6]), synced, CopiedWeights)
    for options, shares, right in (
        ({}, True, "SharedWeights"),
        ({}, False, "CopiedWeights"),
        ({"generation.colocated.enabled": False}, True, "CopiedWeights"),
        ({"generation.colocated.enabled": False, "generation.placement": "process"}, True, "transferred"),
        (
            {"generation.colocated.enabled": False, "generation.delta_compression.enabled": True},
            True,
            "transferred",
        ),
    ):
        yield example(f"the sync of {options}, shared: {shares}", right, _kind, options, shares)


def _kind(options: Mapping[str, Any], shares: bool) -> str:
    source, target = _Weights(1, shares=shares), _Weights(0)
    config = policy_configuration(dict(options)).generation
    try:
        return type(make_weight_sync(config, source, target, Timer())).__name__  # type: ignore[arg-type]
    except _InPartsError:
        return "transferred"
