"""The torch engine: samples with a model of its own, whose weights it shares with the policy or gets as copies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import nn
from transformers import PreTrainedModel

from refrl.config import ConfigError
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.cached_decoder import CachedDecoder
from refrl.generation.decoder import Decoder
from refrl.generation.decoding import decode
from refrl.generation.lean_decoder import LeanDecoder
from refrl.generation.lean_support import supports_lean
from refrl.generation.sampling import row_uniforms
from refrl.weight_sync.tensors import copy_tensors, share_tensors


class TorchGenerator:
    """A `refrl.generation.base.Generator`."""

    def __init__(self, model: PreTrainedModel, pad_token_id: int, *, lean: bool = True) -> None:
        """Take a model.

        Args:
            model: sampled with; its own, never the one that is trained.
            pad_token_id: fills the unused slots of short prompts; no token sees it.
            lean: use the lean decoder for the architectures that it supports; False always calls the model's own
                forward.
        """
        self._model = model
        self._pad_token_id = pad_token_id
        self._lean = lean
        self.weight_version = 0

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every parameter and buffer that it samples with, by name."""
        return chain(self._model.named_parameters(), self._model.named_buffers())

    def share_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Sample with these very tensors from now on (see `refrl.weight_sync.base.WeightTarget`)."""
        share_tensors(self._model, dict(weights))

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy the weights into its own (see `refrl.weight_sync.base.WeightTarget`)."""
        copy_tensors(self._model, dict(weights))
        self.weight_version = version

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample one completion per prompt (see `refrl.generation.base.Generator`).

        Raises:
            ValueError: a prompt is empty or holds an id outside the vocabulary.
            refrl.config.ConfigError: a prompt and a completion do not fit the model's positions.
            FloatingPointError: the model's logits are not finite.
        """
        rows = [tuple(prompt) for prompt in prompts]
        if not rows:
            return []
        self._check_prompts(rows, params.max_new_tokens)
        stop_ids = frozenset(params.stop_token_ids) if params.stop_token_ids is not None else self.stop_ids()
        uniforms_BT = row_uniforms(len(rows), params.max_new_tokens, generator)
        modules = tuple(self._model.modules())
        lean = self._lean and supports_lean(self._model, modules)
        # The lean decoder only reads the weights; a module's own forward may write buffers that training needs.
        with torch.inference_mode() if lean else torch.no_grad(), _evaluating(modules):
            decoder: Decoder = (
                LeanDecoder(self._model, params.max_new_tokens) if lean else CachedDecoder(self._model)
            )
            sampled = decode(
                decoder,
                rows,
                params,
                uniforms_BT.to(self._embedding().weight.device),
                stop_ids=stop_ids,
                pad_token_id=self._pad_token_id,
            )
        return [
            Completion(
                prompt_ids=prompt,
                ids=row.ids,
                logprobs=row.logprobs,
                finish_reason="stop" if row.ids[-1] in stop_ids else "length",
                kept_ids=row.kept_ids,
                weight_version=self.weight_version,
            )
            for prompt, row in zip(rows, sampled, strict=True)
        ]

    def stop_ids(self) -> frozenset[int]:
        """Return every end-of-sequence id of the model, of its configuration and of its generation configuration."""
        found: set[int] = set()
        for config in (self._model.config, getattr(self._model, "generation_config", None)):
            ids = getattr(config, "eos_token_id", None)
            if ids is not None:
                found.update(ids if isinstance(ids, list | tuple) else (ids,))
        return frozenset(found)

    def _embedding(self) -> nn.Embedding:
        embedding = self._model.get_input_embeddings()
        assert isinstance(embedding, nn.Embedding)
        return embedding

    def _check_prompts(self, rows: Sequence[tuple[int, ...]], max_new_tokens: int) -> None:
        vocab_size = self._embedding().num_embeddings
        limit = getattr(self._model.config, "max_position_embeddings", None)
        for number, row in enumerate(rows):
            if not row:
                raise ValueError(f"prompt {number} is empty: a completion needs at least one token to follow")
            unknown = next((token for token in row if not 0 <= token < vocab_size), None)
            if unknown is not None:
                raise ValueError(
                    f"prompt {number} holds id {unknown}, outside the vocabulary of {vocab_size}"
                )
            if limit is not None and len(row) + max_new_tokens > limit:
                raise ConfigError(
                    f"prompt {number} has {len(row)} tokens; with policy.generation.max_new_tokens="
                    f"{max_new_tokens} it exceeds the model's {limit} positions: shorten the prompt or lower "
                    "max_new_tokens"
                )


@contextlib.contextmanager
def _evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Switch dropout and the like off; afterwards every submodule has the mode it had."""
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
