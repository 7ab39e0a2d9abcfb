"""Decoding by a Megatron-core model's own forward and its static key/value cache.

Prompts are padded on the left: rotary embeddings encode distances, so a row may begin in any slot, and no token sees
the padding before it. Shapes: B rows, S slots of the cache, T new slots, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from refrl.generation.decoder import PaddedPrompts


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
