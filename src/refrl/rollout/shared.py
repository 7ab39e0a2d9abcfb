"""Generation that the processes of a run share: each samples its rows, and all get all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from refrl.distributed import World
from refrl.generation.base import Completion, Sampler, SamplingParams
from refrl.generation.sampling import skip_rows


class SharedGenerator:
    """A `refrl.generation.base.Sampler`; completions are those that one process alone would sample."""

    def __init__(self, generator: Sampler, world: World) -> None:
        """Share the work of a generator that every process has."""
        self._generator = generator
        self._world = world

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample this process's rows with their own random streams, and gather."""
        own = self._world.share(len(prompts))
        skip_rows(own.start, generator)
        return self._world.gather(self._generator.generate(prompts[own], params, generator))
