"""refrl's adapters, without training them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from refrl.config import LoraConfig
from refrl.policy.adapter_files import save_adapters
from refrl.policy.lora import LoraLinear, chosen_layers, stream_of
from seatrial.targets.reference.limits.models import model_of


def adapted_layers(options: Mapping[str, Any]) -> tuple[list[str], str, list[str]]:
    """Return the linear layers of a model, the name of its head, and the layers that get an adapter."""
    model = model_of("qwen3", tie_word_embeddings=False)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return linear, "lm_head", list(chosen_layers(model, LoraConfig(enabled=True, **options)))


def first_adapter(layer: str, seed: int, dim: int, num_inputs: int) -> tuple[Tensor, Tensor]:
    """Return A and B of a new adapter."""
    config = LoraConfig(enabled=True, dim=dim, seed=seed)
    made = LoraLinear(nn.Linear(num_inputs, 7), dim=dim, alpha=config.alpha, stream=stream_of(layer, config))
    with torch.no_grad():
        return made.lora_A.weight.clone(), made.lora_B.weight.clone()


def write_adapter(weights: Mapping[str, Tensor], dim: int, alpha: float, base: str, folder: Path) -> None:
    """Write adapters of this rank and scale."""
    save_adapters(weights, LoraConfig(enabled=True, dim=dim, alpha=alpha), base, folder)
