"""Several engines as one sampler: rows are shared out, weights come to all at once, and a lost engine is named."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from refrl.errors import GenerationError
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.pooled import PooledSampler, Replica
from refrl.generation.process import GeneratorLostError
from refrl.weight_sync.base import WeightSyncError

PARAMS = SamplingParams(max_new_tokens=1)
PATIENCE = 30.0


def well() -> None:
    """Do nothing."""


class Engine:
    """Answers each prompt with its own first token and the name of the engine, until it is lost."""

    def __init__(self, name: int) -> None:
        """Begin well."""
        self.name = name
        self.asked: list[list[tuple[int, ...]]] = []
        self.lost = False
        self.first_call: Callable[[], Any] = well

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Answer."""
        self.asked.append([tuple(prompt) for prompt in prompts])
        if len(self.asked) == 1:
            self.first_call()
        if self.lost:
            raise GeneratorLostError("the process ended by signal 9")
        return [Completion(tuple(prompt), (prompt[0], self.name), (-0.5, -0.5), "stop") for prompt in prompts]

    def abort(self) -> None:
        """Nothing runs long here."""

    def resume(self) -> None:
        """Nor was anything given up."""

    def close(self) -> None:
        """Hold nothing."""


class Sync:
    """A weight sync that does what it is told."""

    def __init__(self, act: Callable[[], None] = lambda: None) -> None:
        """Take what happens in a sync."""
        self._act = act

    def sync(self) -> dict[str, float]:
        """Act."""
        self._act()
        return {}


@contextmanager
def pooled(
    *syncs: Callable[[], None], continues: bool = False
) -> Iterator[tuple[PooledSampler, list[Engine]]]:
    """Yield a sampler with an engine for each sync."""
    engines = [Engine(number) for number in range(len(syncs))]
    replicas: list[Any] = [
        Replica(f"generation/{engine.name}", engine, Sync(act))  # type: ignore[arg-type]
        for engine, act in zip(engines, syncs, strict=True)
    ]
    with closing(PooledSampler(replicas, continues=continues)) as sampler:
        yield sampler, engines


def sample(sampler: PooledSampler, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Return the first token of each completion."""
    return [row.ids[0] for row in sampler.generate(prompts, PARAMS, torch.Generator().manual_seed(1))]


def test_rows_are_shared_out_and_come_back_in_order() -> None:
    """Rows of one prompt stay together."""
    prompts = [[5], [5], [3], [3], [9], [9], [1], [1]]
    with pooled(well, well) as (sampler, engines):
        assert sample(sampler, prompts) == [5, 5, 3, 3, 9, 9, 1, 1]
    assert sorted(share for engine in engines for share in engine.asked) == [
        [(5,), (5,), (3,), (3,)],
        [(9,), (9,), (1,), (1,)],
    ]


@pytest.mark.parametrize("continues", [False, True])
def test_weights_come_to_all_replicas_at_once(continues: bool) -> None:
    """A sync that waits for the other one would never end if they came one after another."""
    both = threading.Barrier(2)

    def meet() -> None:
        both.wait(PATIENCE)

    with pooled(meet, meet, continues=continues) as (sampler, _):
        sampler.update_weights()
        assert sampler.losses == {}
        assert sample(sampler, [[4], [2]]) == [4, 2]


def lost() -> None:
    """A sync whose engine ends."""
    raise GeneratorLostError("the process ended by signal 9")


def test_a_replica_that_is_lost_in_a_sync_is_quarantined() -> None:
    """The others have the weights and all the rows; the loss of all of them is an error that names each."""
    with pooled(lost, well) as (sampler, engines):
        sampler.update_weights()
        assert sampler.losses == {"generation/0": "generation/0: the process ended by signal 9"}
        assert sample(sampler, [[4], [2]]) == [4, 2]
        assert engines[0].asked == []
    with (
        pooled(lost, lost) as (sampler, _),
        pytest.raises(GenerationError, match=r"all 2 .*generation/0: .*generation/1: "),
    ):
        sampler.update_weights()


def test_rows_of_a_replica_that_is_lost_are_sampled_by_another() -> None:
    """Each once, in their places."""
    with pooled(well, well, well) as (sampler, engines):
        engines[1].lost = True
        together = threading.Barrier(3)
        for engine in engines:
            engine.first_call = partial(together.wait, PATIENCE)  # each has a share before any is done
        assert sample(sampler, [[7], [6], [5]]) == [7, 6, 5]
        assert list(sampler.losses) == ["generation/1"]
        assert sorted(share for engine in engines for share in engine.asked) == [
            [(5,)], [(6,)], [(6,)], [(7,)],
        ]  # fmt: skip


def test_a_sync_that_fails_is_an_error_when_the_others_have_ended() -> None:
    """Nothing is sampled meanwhile; the pool is open again for whoever wants to look."""
    ended = threading.Event()

    def late() -> None:
        ended.wait(0.2)
        ended.set()

    def fails() -> None:
        raise WeightSyncError("a tensor is missing")

    with pooled(fails, late) as (sampler, _):
        with pytest.raises(WeightSyncError, match="a tensor is missing"):
            sampler.update_weights()
        assert ended.is_set()


def test_what_is_asked_of_a_closed_sampler_is_an_error() -> None:
    """A thread that comes late would else wait for an answer that nobody gives."""
    with pooled(well) as (sampler, engines):
        pass
    with pytest.raises(GenerationError, match="the sampler is closed"):
        sample(sampler, [[4]])
    assert engines[0].asked == []


def test_what_waits_for_an_engine_ends_when_the_sampler_is_closed() -> None:
    """The row that is sampled, and the one that waits for its slot; no coroutine is left behind."""
    begun, closing_now = threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        closing_now.wait(PATIENCE)

    ended: list[BaseException] = []

    def ask(sampler: PooledSampler, prompt: int) -> None:
        try:
            sample(sampler, [[prompt]])
        except Exception as error:  # noqa: BLE001 - what it is, is looked at below
            ended.append(error)

    with pooled(well) as (sampler, engines):
        engines[0].first_call = long
        threads = [threading.Thread(target=ask, args=(sampler, prompt)) for prompt in (4, 5)]
        threads[0].start()
        assert begun.wait(PATIENCE)
        threads[1].start()
        engines[0].abort = closing_now.set  # type: ignore[method-assign]
    for thread in threads:
        thread.join(PATIENCE)
    assert len(ended) == 2
    assert all(isinstance(error, CancelledError | GenerationError) for error in ended), ended
