"""The Megatron-core engine: samples with a GPTModel of its own; what it computes with is held against what arrived."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from refrl.generation.base import Completion, SamplingParams
from refrl.generation.decoder import PaddedPrompts
from refrl.generation.decoding import decode, finish_reason
from refrl.generation.receiving import StagedEngine
from refrl.generation.sampling import check_prompts, row_uniforms


class MegatronDecoder:
    """A `refrl.generation.decoder.Decoder`."""

    def __init__(self, module: nn.Module, *, vocab_size: int, max_new_tokens: int) -> None:
        """Share the live model; nothing is copied.

        Args:
            module: a `megatron.core.models.gpt.GPTModel` that has all layers, in evaluation mode.
            vocab_size: ids that the model knows; rows of its head beyond it are padding.
            max_new_tokens: that will be appended at most.
        """
        self._module = module
        self._vocab_size = vocab_size
        self._max_new_tokens = max_new_tokens

    def prefill(self, prompts: PaddedPrompts) -> Tensor:
        """Read the prompts into the cache; return logits_PV."""
        from megatron.core.inference.contexts import StaticInferenceContext

        num_rows, num_slots = prompts.ids_PS.shape
        # The last token is drawn and never read.
        self._cache: Any = StaticInferenceContext(num_rows, num_slots + self._max_new_tokens - 1)
        self._real_BS = prompts.mask_PS()
        device = self._real_BS.device
        before_SS = torch.ones(num_slots, num_slots, dtype=torch.bool, device=device).tril()
        # Padding sees itself: a row of scores that are all masked has no softmax.
        own_SS = torch.eye(num_slots, dtype=torch.bool, device=device)
        return self._forward(prompts.ids_PS, (before_SS & self._real_BS[:, None]) | own_SS)

    def expand(self, prompt_of_row_B: Tensor) -> None:
        """Make one row of the cache for each sequence."""
        self.keep(prompt_of_row_B)

    def step(self, ids_B: Tensor) -> Tensor:
        """Append one token to every row; return logits_BV."""
        self._real_BS = torch.cat([self._real_BS, self._real_BS.new_ones(len(ids_B), 1)], dim=1)
        return self._forward(ids_B.unsqueeze(1), self._real_BS[:, None])

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        self._real_BS = self._real_BS[rows]
        self._cache.key_value_memory_dict = {
            layer: tuple(stored.index_select(1, rows) for stored in memory)
            for layer, memory in self._cache.key_value_memory_dict.items()
        }

    def _forward(self, ids_BT: Tensor, sees_BTS: Tensor) -> Tensor:
        logits_B1V = self._module(
            ids_BT, None, sees_BTS.unsqueeze(1), inference_context=self._cache, runtime_gather_output=True
        )
        self._cache.sequence_len_offset += ids_BT.shape[1]
        self._cache.enable_decode_mode()
        return logits_B1V[:, -1, : self._vocab_size]


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
