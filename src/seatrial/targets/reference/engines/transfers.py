"""refrl's generator and weight sync, offered to the relations: built as a run builds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refrl.config import GRPORunConfig
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.pooled import PooledSampler, Replica
from refrl.policy.base import Policy
from refrl.rollout.multi_turn import take_turns
from refrl.training import build
from refrl.training.build_generation import build_generator, build_weight_sync
from seatrial.relations.contracts.generation import Continued, Episode, Part
from seatrial.relations.records import Sampled
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.conversions import VersionedPolicy
from seatrial.targets.reference.engines.engine import sampled

CPU = torch.device("cpu")
NUM_UPDATES = 100


class _MadeEngine:
    """A generation engine that answers with given parts, one a request, the last of which is whole."""

    def __init__(self, parts: Sequence[Part], reason: Literal["abort", "stop"]) -> None:
        self._parts, self._reason = list(parts), reason
        self.asked: list[tuple[tuple[int, ...], int]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        (prompt_ids,) = prompts
        self.asked.append((tuple(prompt_ids), params.max_new_tokens))
        part = self._parts.pop(0)
        return [
            Completion(
                prompt_ids=tuple(prompt_ids),
                ids=part.ids,
                logprobs=part.logprobs,
                finish_reason=self._reason if self._parts else "stop",
                weight_version=part.weight_version,
            )
        ]

    def abort(self) -> None:
        """Nothing runs that could be given up."""

    def close(self) -> None:
        """Nothing is held."""


class MadeEnvironment:
    """An environment that answers with given words, one after another."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self.max_turns = len(words) + 1

    def respond(self, turns: Sequence[str]) -> str | None:
        return self._words[len(turns) - 1] if len(turns) <= len(self._words) else None


class ReferenceTransfers:
    """See `contracts.WeightSync`, `contracts.Sampler` and `contracts.Precision`."""

    options: Mapping[str, Any]
    config: GRPORunConfig

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return build.build_tokenizer(self.config.policy)

    @cached_property
    def fixed(self) -> Policy:
        """The policy that is scored and differentiated and never updated."""
        return self.build_policy({})

    def fixed_with(self, options: Mapping[str, Any]) -> Policy:
        """Return one like it under further options, which is built once."""
        key = repr(sorted(options.items()))
        if key not in self._fixed:
            self._fixed[key] = self.build_policy(options)
        return self._fixed[key]

    @cached_property
    def _fixed(self) -> dict[str, Policy]:
        return {}

    def build_policy(self, options: Mapping[str, Any]) -> Policy:
        policy = configuration({**self.options, **options}).policy
        return build.build_policy(
            policy, self.tokenizer, device=CPU, num_updates=NUM_UPDATES, with_reference=False
        )

    def trainable(self) -> frozenset[str]:
        return frozenset(self.fixed.named_gradients())

    def start_sync(self) -> None:
        self._source = VersionedPolicy(self.build_policy({}))
        apart = configuration({**self.options, "policy.generation.colocated.enabled": False}).policy
        self._generator = build_generator(apart, self.tokenizer, device=CPU)
        self._sync = build_weight_sync(apart.generation, self._source, self._generator)

    def advance(self, version: int, *, with_buffers: bool) -> None:
        self._source.redraw(version, None if with_buffers else self.trainable())

    def sync(self) -> None:
        self._sync.sync()

    def trainer_tensors(self) -> Mapping[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._source.named_weights()}

    def sampler_tensors(self) -> Mapping[str, Tensor]:
        return {name: value.detach().clone() for name, value in self._generator.named_weights()}

    def sampler_dtypes(self, options: Mapping[str, Any]) -> Mapping[str, str]:
        apart = {**self.options, "policy.generation.colocated.enabled": False, **options}
        generator = build_generator(configuration(apart).policy, self.tokenizer, device=CPU)
        return {name: str(value.dtype).removeprefix("torch.") for name, value in generator.named_weights()}

    def sampler_version(self) -> int:
        return self._generator.weight_version

    def sample(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seed: int = 0, **filters: Any
    ) -> list[Sampled]:
        chosen = {"max_new_tokens": max_new_tokens, "temperature": 1.0, **filters}
        named = {f"policy.generation.{name}": value for name, value in chosen.items()}
        config = configuration({**self.options, **named})
        generator = build_generator(config.policy, self.tokenizer, device=CPU)
        encoder = build.build_encoder(config.policy, config.data, self.tokenizer)
        params = build.build_sampling(config.policy.generation, generator, encoder)
        return sampled(generator.generate(prompts, params, torch.Generator().manual_seed(seed)))

    def continued(
        self, prompt_ids: Sequence[int], parts: Sequence[Part], *, max_new_tokens: int
    ) -> Continued:
        engine: Any = _MadeEngine(parts, "abort")
        sync: Any = None
        pool = PooledSampler([Replica("generation/0", engine, sync)], continues=True)
        try:
            params = SamplingParams(max_new_tokens=max_new_tokens)
            (whole,) = pool.generate([tuple(prompt_ids)], params, torch.Generator().manual_seed(0))
        finally:
            pool.close()
        return Continued(
            ids=whole.ids,
            logprobs=whole.logprobs,
            segments=whole.version_segments or ((0, whole.weight_version),),
            weight_version=whole.weight_version,
            asked=tuple(engine.asked),
        )

    def episode(
        self, prompt_ids: Sequence[int], turns: Sequence[Part], words: Sequence[str], *, max_new_tokens: int
    ) -> Episode:
        engine = _MadeEngine(turns, "stop")
        stream, params = torch.Generator().manual_seed(0), SamplingParams(max_new_tokens=max_new_tokens)
        environment = MadeEnvironment(words)
        (whole,) = take_turns(engine, environment, self.tokenizer, [tuple(prompt_ids)], params, stream)
        return Episode(
            ids=whole.ids,
            logprobs=whole.logprobs,
            mask=whole.mask or (1,) * len(whole.ids),
            asked=tuple(engine.asked),
            words_ids=tuple(tuple(self.tokenizer.encode(text, add_special_tokens=False)) for text in words),
        )
