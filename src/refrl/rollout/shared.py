"""Generation shared by the processes of a run: each samples its rows, and all get all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refrl.distributed import World
from refrl.generation.base import Completion, MediaSampler, Sampler, SamplingParams
from refrl.generation.sampling import skip_rows


class SharedGenerator:
    """A `refrl.generation.base.Sampler`; its completions equal those of a single process."""

    def __init__(self, generator: Sampler, world: World) -> None:
        """Share the work of a generator that every process has."""
        self._generator = generator
        self._world = world

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample this process's rows with their own random streams, and gather."""
        own = self._own(len(prompts), generator)
        return self._world.gather(self._generator.generate(prompts[own], params, generator))

    def _own(self, num_rows: int, generator: torch.Generator) -> slice:
        """Return this process's rows; `generator` continues with the stream of the first of them."""
        own = self._world.share(num_rows)
        skip_rows(own.start, generator)
        return own


class SharedMediaGenerator(SharedGenerator):
    """A `refrl.generation.base.MediaSampler`."""

    def __init__(self, generator: MediaSampler, world: World) -> None:
        """Share the work of a generator that every process has."""
        super().__init__(generator, world)
        self._media_generator = generator

    def generate_with_media(
        self,
        prompts: Sequence[Sequence[int]],
        media: Sequence[str | None],
        params: SamplingParams,
        generator: torch.Generator,
    ) -> list[Completion]:
        """Sample this process's rows, each with its image or sound, and gather."""
        own = self._own(len(prompts), generator)
        completions = self._media_generator.generate_with_media(prompts[own], media[own], params, generator)
        return self._world.gather(completions)


def shared(generator: Sampler, world: World) -> Sampler:
    """Return what samples for all processes; alone, the generator itself."""
    if world.size == 1:
        return generator
    if isinstance(generator, MediaSampler):
        return SharedMediaGenerator(generator, world)
    return SharedGenerator(generator, world)
