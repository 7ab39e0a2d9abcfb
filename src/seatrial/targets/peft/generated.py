"""What a model generates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def generated(
    model: Any, ids_BS: Tensor, mask_BS: Tensor, number: int, **options: Any
) -> tuple[Tensor, Tensor]:
    """Return the logits [B, number, V] of new ids, the likeliest ones, and all ids [B, S + number]."""
    made = model.generate(
        input_ids=ids_BS,
        attention_mask=mask_BS,
        max_new_tokens=number,
        min_new_tokens=number,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
        **options,
    )
    return torch.stack(list(made.logits), dim=1), made.sequences
