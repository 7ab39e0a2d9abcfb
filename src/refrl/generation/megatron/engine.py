"""The Megatron-core engine: samples with a GPTModel of its own; what it computes with is held against what arrived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from refrl.generation.base import Completion, SamplingParams
from refrl.generation.decoding import decode, finish_reason
from refrl.generation.megatron.decoder import MegatronDecoder
from refrl.generation.prompts import check_prompts
from refrl.generation.sampling import row_uniforms
from refrl.generation.staged import StagedEngine


class ServedModel(Protocol):
    """A Megatron-core model whose weights go in and come out under Hugging Face names."""

    @property
    def module(self) -> nn.Module:
        """The `megatron.core.models.gpt.GPTModel`, with all layers."""
        ...

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Put whole parameters in their places."""
        ...

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """Yield every parameter, gathered, as the module holds it."""
        ...


class MegatronGenerator(StagedEngine):
    """A `refrl.generation.base.Generator`. Its random streams are the torch engine's."""

    library = "Megatron-core"

    def __init__(
        self,
        model: PreTrainedModel,
        served: ServedModel,
        *,
        pad_token_id: int,
        limit: int,
        load_batch_bytes: int,
    ) -> None:
        """Take a model in both forms, with the same weights.

        Args:
            model: in host memory; weights arrive in it.
            served: sampled with.
            pad_token_id: fills the unused slots of short prompts; no token sees it.
            limit: most tokens of a prompt and its completion.
            load_batch_bytes: changed weights that are put in their places at a time.
        """
        super().__init__(model, load_batch_bytes=load_batch_bytes)
        self._served_model = served
        self._pad_token_id = pad_token_id
        self._limit = limit

    @property
    def engine(self) -> str:
        """The library that samples, and its version."""
        return f"megatron-core {version('megatron-core')}"

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample one completion per prompt (see `refrl.generation.base.Generator`).

        Raises:
            ValueError: a prompt is empty or holds an id outside the vocabulary.
            ConfigError: a prompt and a completion exceed what the engine was made for.
            FloatingPointError: the model's logits are not finite.
            WeightSyncError: a sync of the weights is open, or failed half-way.
        """
        self._check_serving()
        rows = [tuple(prompt) for prompt in prompts]
        if not rows:
            return []
        vocab_size = self._embedding().num_embeddings
        check_prompts(rows, vocab_size=vocab_size, limit=self._limit, max_new_tokens=params.max_new_tokens)
        stop_ids = frozenset(params.stop_token_ids) if params.stop_token_ids is not None else self.stop_ids()
        module = self._served_model.module
        uniforms_BT = row_uniforms(len(rows), params.max_new_tokens, generator)
        decoder = MegatronDecoder(module, vocab_size=vocab_size, max_new_tokens=params.max_new_tokens)
        with torch.no_grad():
            sampled = decode(
                decoder,
                rows,
                params,
                uniforms_BT.to(next(module.parameters()).device),
                stop_ids=stop_ids,
                pad_token_id=self._pad_token_id,
                gives_up=self._aborting.is_set,
            )
        return [
            Completion(
                prompt_ids=prompt,
                ids=row.ids,
                logprobs=row.logprobs,
                finish_reason=finish_reason(row.ids, params, stop_ids),
                kept_ids=row.kept_ids,
                weight_version=self.weight_version,
            )
            for prompt, row in zip(rows, sampled, strict=True)
        ]

    def _take(self, parameters: Sequence[tuple[str, Tensor]]) -> None:
        self._served_model.take(dict(parameters))

    def _served(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._served_model.weights()

    def _clear_caches(self) -> None:
        """Nothing is kept between calls: a cache is made for each."""
