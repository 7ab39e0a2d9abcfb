"""Tiny models of Transformers by their traits, and batches of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedModel

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.config import PolicyConfig
from seatrial.relations.contracts.refusals import Trial
from seatrial.targets.reference.configuration import policy_configuration

VOCABULARY = 40
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config_of(kind: str, **changes: Any) -> Any:
    """Return the configuration of a tiny model of a type of Transformers."""
    return AutoConfig.for_model(kind, **{**SHAPE, **changes})


def model_of(
    kind: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any
) -> PreTrainedModel:
    """Return a tiny model whose norms and biases differ from their first values too."""
    stream = torch.Generator().manual_seed(seed)
    config = config_of(kind, **changes)
    config._attn_implementation = "eager"  # the plainest, with every trait
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    model = model_class(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            centre = 1.0 if weight.ndim == 1 and name.endswith("weight") else 0.0
            weight.normal_(centre, 0.3, generator=stream)
    moved: PreTrainedModel = model.to(dtype).eval()
    return moved


def policy_of(**options: Any) -> PolicyConfig:
    """Return the section `policy` of a configuration; `__` in a name is a dot."""
    return policy_configuration({name.replace("__", "."): value for name, value in options.items()})


def batch_of_rows(*, media: str | None = None) -> Batch:
    """Return two rows of unequal length."""
    rows = [
        TrainSample(
            prompt_ids=(3, 4, 5, 6)[: 2 + number],
            completion_ids=(7, 8, 9)[: 3 - number],
            sampling_logprobs=(-1.0,) * (3 - number),
            reward=0.0,
            group_id=number,
            media=media,
        )
        for number in range(2)
    ]
    return make_batch(rows, pad_token_id=0)


class NoLayers(nn.Module):
    """A module without layers that Transformers marks as units."""


def plain_trial(what: str, says: str | None, call: Callable[[], object]) -> Trial:
    """Return a call."""
    return Trial(what=what, call=call, says=says)
