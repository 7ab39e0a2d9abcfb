"""The generic decoder: any Hugging Face causal language model, by its own forward and `past_key_values`."""

from __future__ import annotations

import inspect

import torch
from transformers import DynamicCache, PreTrainedModel

from refrl.generation.decoder import PaddedPrompts


class CachedDecoder:
    """Decodes by the model's own forward; works for every architecture that takes `past_key_values`."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Share the live model; nothing is copied."""
        self._model = model
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self._cache = DynamicCache(config=model.config)

    def prefill(self, prompts: PaddedPrompts) -> torch.Tensor:
        """Read the prompts into the cache; return logits_PV."""
        self._mask_BS = prompts.mask_PS().long()
        self._lens_B = prompts.lens_P
        return self._forward(prompts.ids_PS, prompts.positions_PS())

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

    def _forward(self, ids_BS: torch.Tensor, positions_BS: torch.Tensor) -> torch.Tensor:
        positions = {"position_ids": positions_BS} if self._takes_positions else {}
        output = self._model(
            input_ids=ids_BS,
            attention_mask=self._mask_BS,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
            **positions,
        )
        return output.logits[:, -1]
