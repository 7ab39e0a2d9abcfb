"""The generic decoder: any Hugging Face causal language model, by its own forward and `past_key_values`."""

from __future__ import annotations

import inspect

import torch
from transformers import DynamicCache, PreTrainedModel

from refrl.config.loading import ConfigError
from refrl.generation.decoder import PaddedPrompts
from refrl.media import model_inputs


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
        if fixed or "past_key_values" not in parameters:
            keeps = f" ({', '.join(sorted(fixed))})" if fixed else ""
            raise ConfigError(
                f"policy.model_name: {type(model).__name__} keeps between tokens what cannot be reordered by rows"
                f"{keeps}, so refrl cannot sample from it; take a model with attention in every layer"
            )

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
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
            **positions,
            **media,
        )
        return output.logits[:, -1]
