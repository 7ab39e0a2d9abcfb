"""Sampling with the live model: prefill each distinct prompt once, decode in a batch, drop finished rows.

Shapes: P distinct prompts, B rows, T new tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from refrl.config import ConfigError
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.cached_decoder import CachedDecoder
from refrl.generation.decoder import Decoder, pad_prompts
from refrl.generation.sampling import draw, row_uniforms


class TorchGenerator:
    """Generates with the model that is trained (colocated): there is no copy that could be stale."""

    def __init__(self, model: PreTrainedModel, pad_token_id: int) -> None:
        """Share the live model; `pad_token_id` fills the unused slots of short prompts."""
        self._model = model
        self._pad_token_id = pad_token_id

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
        uniforms_BT = row_uniforms(len(rows), params.max_new_tokens, generator)
        with torch.no_grad(), _evaluating(self._model):
            ids, logprobs = self._sample(rows, params, uniforms_BT)
        stop_ids = self._stop_ids(params)
        return [
            Completion(
                row, tuple(row_ids), tuple(row_logprobs), "stop" if row_ids[-1] in stop_ids else "length"
            )
            for row, row_ids, row_logprobs in zip(rows, ids, logprobs, strict=True)
        ]

    def _sample(
        self, rows: Sequence[tuple[int, ...]], params: SamplingParams, uniforms_BT: torch.Tensor
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Decode all rows; return the ids and log-probabilities of each."""
        device = self._model.get_input_embeddings().weight.device
        distinct = list(dict.fromkeys(rows))
        index = {prompt: number for number, prompt in enumerate(distinct)}
        prompt_of_row_B = torch.tensor([index[row] for row in rows], device=device)
        stop_ids = torch.tensor(sorted(self._stop_ids(params)), device=device, dtype=torch.long)

        decoder: Decoder = CachedDecoder(self._model)
        logits_BV = decoder.prefill(pad_prompts(distinct, self._pad_token_id, device))[prompt_of_row_B]
        decoder.expand(prompt_of_row_B)

        num_rows, num_tokens = uniforms_BT.shape
        ids_BT = torch.zeros(num_rows, num_tokens, dtype=torch.long, device=device)
        logprobs_BT = torch.zeros(num_rows, num_tokens, dtype=torch.float32, device=device)
        lens_B = torch.full((num_rows,), num_tokens, device=device)
        uniforms_BT = uniforms_BT.to(device)
        active = torch.arange(num_rows, device=device)
        for token in range(num_tokens):
            ids_B, picked_B = draw(logits_BV, uniforms_BT[active, token], params)
            ids_BT[active, token] = ids_B
            logprobs_BT[active, token] = picked_B
            going_B = ~torch.isin(ids_B, stop_ids)
            if not bool(going_B.all()):
                lens_B[active[~going_B]] = token + 1
                kept = going_B.nonzero().squeeze(-1)
                active, ids_B = active[kept], ids_B[kept]
                if not len(kept):
                    break
                decoder.keep(kept)
            if token + 1 < num_tokens:
                logits_BV = decoder.step(ids_B)
        if not bool(torch.isfinite(logprobs_BT).all()):
            raise FloatingPointError(
                "the model's logits are not finite: sampling has no distribution to draw from"
            )
        lens = lens_B.tolist()
        return (
            [row[:length] for row, length in zip(ids_BT.tolist(), lens, strict=True)],
            [row[:length] for row, length in zip(logprobs_BT.tolist(), lens, strict=True)],
        )

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        if params.stop_token_ids is not None:
            return frozenset(params.stop_token_ids)
        return model_stop_ids(self._model)

    def _check_prompts(self, rows: Sequence[tuple[int, ...]], max_new_tokens: int) -> None:
        vocab_size = self._model.get_input_embeddings().num_embeddings
        limit = getattr(self._model.config, "max_position_embeddings", None)
        for number, row in enumerate(rows):
            if not row:
                raise ValueError(f"prompt {number} is empty: a completion needs at least one token to follow")
            if min(row) < 0 or max(row) >= vocab_size:
                raise ValueError(
                    f"prompt {number} holds id {min(row) if min(row) < 0 else max(row)}, "
                    f"outside the model's vocabulary of {vocab_size}"
                )
            if limit is not None and len(row) + max_new_tokens > limit:
                raise ConfigError(
                    f"prompt {number} has {len(row)} tokens and policy.generation.max_new_tokens={max_new_tokens}, "
                    f"together more than the model's {limit} positions: shorten the prompt or lower max_new_tokens"
                )


def model_stop_ids(model: PreTrainedModel) -> frozenset[int]:
    """Return every end-of-sequence id of the model: those of its configuration and of its generation configuration."""
    found: set[int] = set()
    for config in (model.config, getattr(model, "generation_config", None)):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            found.update(ids if isinstance(ids, (list, tuple)) else (ids,))
    return frozenset(int(token) for token in found)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout and the like off; afterwards every submodule has the mode it had."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
