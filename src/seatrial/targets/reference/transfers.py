"""refrl's generator and weight sync, offered to the relations: built as a run builds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refrl.config import GRPORunConfig
from refrl.policy.base import Policy
from refrl.training import build
from seatrial.relations.records import Sampled
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.conversions import VersionedPolicy

CPU = torch.device("cpu")
NUM_UPDATES = 100


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
        self._generator = build.build_generator(apart, self.tokenizer, device=CPU)
        self._sync = build.build_weight_sync(apart.generation, self._source, self._generator)

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
        generator = build.build_generator(configuration(apart).policy, self.tokenizer, device=CPU)
        return {name: str(value.dtype).removeprefix("torch.") for name, value in generator.named_weights()}

    def sampler_version(self) -> int:
        return self._generator.weight_version

    def sample(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seed: int = 0, **filters: Any
    ) -> list[Sampled]:
        chosen = {"max_new_tokens": max_new_tokens, "temperature": 1.0, **filters}
        named = {f"policy.generation.{name}": value for name, value in chosen.items()}
        config = configuration({**self.options, **named})
        generator = build.build_generator(config.policy, self.tokenizer, device=CPU)
        encoder = build.build_encoder(config.policy, config.data, self.tokenizer)
        params = build.build_sampling(config.policy.generation, generator, encoder)
        sampled = generator.generate(prompts, params, torch.Generator().manual_seed(seed))
        return [
            Sampled(
                prompt_ids=row.prompt_ids,
                ids=row.ids,
                logprobs=row.logprobs,
                finish_reason=row.finish_reason,  # type: ignore[arg-type]  # nothing is aborted here
            )
            for row in sampled
        ]
