"""refrl's generation engine where the configuration places it: `seatrial.relations.contracts.generation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from refrl.config import ConfigError, GRPORunConfig
from refrl.generation.base import Completion, Generator, SamplingParams
from refrl.runtime.ray_cluster import ray_cluster
from refrl.training.build_generation import build_generator
from seatrial.relations import NotServed
from seatrial.relations.records import Sampled
from seatrial.targets.reference.configuration import configuration


def sampled(completions: Sequence[Completion]) -> list[Sampled]:
    """Return completions of an engine as records."""
    return [
        Sampled(
            prompt_ids=row.prompt_ids,
            ids=row.ids,
            logprobs=row.logprobs,
            finish_reason=row.finish_reason,
            kept_ids=row.kept_ids,
        )
        for row in completions
    ]


class RunningEngine:
    """A `seatrial.relations.contracts.generation.OpenEngine`."""

    def __init__(self, engine: Generator, seed: int, closing: ExitStack) -> None:
        self._engine, self._closing = engine, closing
        self._stream = torch.Generator().manual_seed(seed)

    def generate(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> list[Sampled]:
        params = SamplingParams(max_new_tokens=max_new_tokens, stop_token_ids=())
        return sampled(self._engine.generate(prompts, params, self._stream))

    def abort(self) -> None:
        self._engine.abort()

    def resume(self) -> None:
        self._engine.resume()

    def close(self) -> None:
        self._closing.close()


class ReferenceEngines:
    """See `seatrial.relations.contracts.generation.GenerationEngine`."""

    options: Mapping[str, Any]
    config: GRPORunConfig
    tokenizer: PreTrainedTokenizerBase

    def open_engine(self, *, seed: int) -> RunningEngine:
        apart = configuration({**self.options, "policy.generation.colocated.enabled": False})
        with ExitStack() as opened:
            try:
                opened.enter_context(ray_cluster(apart))
            except ConfigError as error:
                raise NotServed(str(error)) from error
            engine = build_generator(apart.policy, self.tokenizer, device=torch.device("cpu"))
            opened.callback(engine.close)
            return RunningEngine(engine, seed, opened.pop_all())
