"""The torch engine: samples with a model of its own, whose weights it shares with the policy or gets as copies."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from refrl.config.loading import ConfigError
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.decoder import Decoder, PaddedPrompts
from refrl.generation.decoding import SampledRow, decode, finish_reason
from refrl.generation.lean_check import difference
from refrl.generation.lean_decoder import LeanDecoder
from refrl.generation.lean_support import supports_lean
from refrl.generation.quantized import load_tensors, num_quantized
from refrl.generation.receiving import ReceivingEngine
from refrl.generation.sampling import check_prompts, row_uniforms
from refrl.generation.static.decoder import StaticDecoder
from refrl.generation.static.decoding import decode_in_blocks
from refrl.media import model_inputs
from refrl.weight_sync.tensors import share_tensors

CACHE_WORDS = ("cache", "past_key_values")
"""What a model's forward calls its cache: the first since Transformers 5.24, the second before."""


class CachedDecoder:
    """Decodes by the model's own forward; works for every architecture whose cache can be reordered by rows."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Share the live model; nothing is copied.

        Raises:
            ConfigError: what the model keeps between tokens cannot be reordered, as the states of Mamba.
        """
        self._model = model
        parameters = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in parameters
        self._cache = DynamicCache(config=model.config)
        fixed = {
            type(layer).__name__ for layer in self._cache.layers if not hasattr(layer, "batch_select_indices")
        }
        words = [word for word in CACHE_WORDS if word in parameters]
        if fixed or not words:
            keeps = f" ({', '.join(sorted(fixed))})" if fixed else ""
            raise ConfigError(
                f"policy.model_name: {type(model).__name__} keeps between tokens what cannot be reordered by rows"
                f"{keeps}, so refrl cannot sample from it; take a model with attention in every layer"
            )
        self._cache_word = words[0]

    def prefill(self, prompts: PaddedPrompts) -> torch.Tensor:
        """Read the prompts into the cache; return logits_PV."""
        self._mask_BS = prompts.mask_PS().long()
        self._lens_B = prompts.lens_P
        inputs = model_inputs(prompts.media, self._model.dtype)
        inputs = {name: one.to(prompts.ids_PS.device) for name, one in inputs.items()}
        return self._forward(prompts.ids_PS, prompts.positions_PS(), **inputs)

    def expand(self, prompt_of_row_B: torch.Tensor) -> None:
        """Make one row of the cache for each sequence."""
        self.keep(prompt_of_row_B)

    def step(self, ids_B: torch.Tensor) -> torch.Tensor:
        """Append one token to every row; return logits_BV."""
        positions_B = self._lens_B
        self._lens_B = positions_B + 1
        self._mask_BS = torch.cat([self._mask_BS, self._mask_BS.new_ones(len(ids_B), 1)], dim=1)
        return self._forward(ids_B.unsqueeze(1), positions_B.unsqueeze(1))

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order."""
        self._cache.batch_select_indices(rows)
        self._mask_BS = self._mask_BS[rows]
        self._lens_B = self._lens_B[rows]

    def _forward(
        self, ids_BS: torch.Tensor, positions_BS: torch.Tensor, **media: torch.Tensor
    ) -> torch.Tensor:
        positions = {"position_ids": positions_BS} if self._takes_positions else {}
        output = self._model(
            input_ids=ids_BS,
            attention_mask=self._mask_BS,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_word: self._cache},
            **positions,
            **media,
        )
        return output.logits[:, -1]


BLOCK_TOKENS = 16
"""Token steps between two looks of the host on a CUDA device."""


class TorchGenerator(ReceivingEngine):
    """A `refrl.generation.base.Generator`."""

    def __init__(
        self,
        model: PreTrainedModel,
        pad_token_id: int,
        *,
        lean: bool = True,
        block_tokens: int | None = None,
        load_batch_bytes: int = 64 * 2**20,
    ) -> None:
        """Take a model.

        Args:
            model: sampled with; its own, never the one that is trained.
            pad_token_id: fills the unused slots of short prompts; no token sees it.
            lean: use the lean decoder for the architectures that it supports; False always calls the model's own
                forward.
            block_tokens: token steps between two looks at what ended, with static shapes; 0 looks at every token, with
                a cache that fits the call. None: 16 on a CUDA device, 0 elsewhere, where a look costs nothing.
            load_batch_bytes: changed weights that are put in their places at a time.
        """
        super().__init__(model, load_batch_bytes=load_batch_bytes)
        self._pad_token_id = pad_token_id
        self._lean = lean
        if block_tokens is None:
            block_tokens = BLOCK_TOKENS if model.device.type == "cuda" else 0
        self._block_tokens = block_tokens
        self._static: StaticDecoder | None = None
        self._is_compared = False
        self._difference: str | None = None

    @property
    def engine(self) -> str:
        """The library that samples, its version, how many layers it holds in int8, and how it decodes on CUDA."""
        layers = num_quantized(self._model)
        parts = [f"torch {torch.__version__}"]
        if layers:
            parts.append(f"{layers} layers in int8")
        name = type(self._model).__name__
        if not supports_lean(self._model):
            if self._block_tokens:
                parts.append(f"no static decoding: it does not serve {name} as it is here")
        else:
            try:
                refusal = self._compare(tuple(self._model.modules()))
            except FloatingPointError as error:
                refusal = str(error)
            if refusal is not None:
                parts.append(f"{name}'s own forward in place of the fast decoders: {refusal}")
            elif self._block_tokens:
                parts.append(f"static decoding in blocks of {self._block_tokens} tokens")
        return ", ".join(parts)

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every parameter and buffer that it samples with, by name."""
        return chain(self._model.named_parameters(), self._model.named_buffers())

    def share_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Sample with these very tensors from now on (see `refrl.weight_sync.base.WeightTarget`)."""
        share_tensors(self._model, dict(weights))

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        """Copy the weights into its own (see `refrl.weight_sync.base.WeightTarget`)."""
        load_tensors(self._model, dict(weights))
        self.weight_version = version

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Sample one completion per prompt (see `refrl.generation.base.Generator`).

        Raises:
            ValueError: a prompt is empty or holds an id outside the vocabulary.
            refrl.config.ConfigError: a prompt and a completion do not fit the model's positions.
            FloatingPointError: the model's logits are not finite.
            refrl.weight_sync.base.WeightSyncError: a sync of the weights is open, or failed half-way.
        """
        return self.generate_with_media(prompts, [None] * len(prompts), params, generator)

    def generate_with_media(
        self,
        prompts: Sequence[Sequence[int]],
        media: Sequence[str | None],
        params: SamplingParams,
        generator: torch.Generator,
    ) -> list[Completion]:
        """Sample one completion per prompt with its image or sound (see `refrl.generation.base.MediaSampler`)."""
        self._receiver.check_whole()
        rows = [tuple(prompt) for prompt in prompts]
        if not rows:
            return []
        check_prompts(
            rows,
            vocab_size=self._embedding().num_embeddings,
            limit=getattr(self._model.config.get_text_config(), "max_position_embeddings", None),
            max_new_tokens=params.max_new_tokens,
        )
        stop_ids = frozenset(params.stop_token_ids) if params.stop_token_ids is not None else self.stop_ids()
        num_tokens = params.max_new_tokens
        uniforms_BT = row_uniforms(len(rows), num_tokens, generator)
        modules = tuple(self._model.modules())
        uniforms_BT = uniforms_BT.to(self._embedding().weight.device)
        lean = self._lean and supports_lean(self._model, modules) and self._compare(modules) is None
        if lean and self._block_tokens:
            sampled = self._decode_in_blocks(rows, params, uniforms_BT, stop_ids)
        else:
            # The lean decoder only reads the weights; a module's own forward may write buffers that training needs.
            with torch.inference_mode() if lean else torch.no_grad(), _evaluating(modules):
                decoder: Decoder = (
                    LeanDecoder(self._model, params.max_new_tokens) if lean else CachedDecoder(self._model)
                )
                sampled = decode(
                    decoder,
                    rows,
                    params,
                    uniforms_BT,
                    stop_ids=stop_ids,
                    pad_token_id=self._pad_token_id,
                    gives_up=self._aborting.is_set,
                    media=media,
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

    def _compare(self, modules: Sequence[nn.Module]) -> str | None:
        """Return why the fast decoders are not used for a model that they support: once, by its first weights.

        Raises:
            FloatingPointError: the model's logits are not finite.
        """
        if not self._is_compared:
            with _evaluating(modules):
                self._difference = difference(self._model)
            self._is_compared = True
        return self._difference

    def _decode_in_blocks(
        self,
        rows: Sequence[tuple[int, ...]],
        params: SamplingParams,
        uniforms_BT: torch.Tensor,
        stop_ids: frozenset[int],
    ) -> list[SampledRow]:
        if self._static is None:
            captures = uniforms_BT.device.type == "cuda"
            self._static = StaticDecoder(self._model, block_tokens=self._block_tokens, captures=captures)
        with torch.no_grad():
            return decode_in_blocks(
                self._static,
                rows,
                params,
                uniforms_BT,
                stop_ids=stop_ids,
                pad_token_id=self._pad_token_id,
                gives_up=self._aborting.is_set,
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
