"""Fresh weights of a model whose random draws are replaced by fixed numbers of the same mean and spread."""

from __future__ import annotations

import copy
import math
import zlib
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.targets.transformers.small_models import fresh_model

FLOOR = 1e-4
"""Of the size of a parameter."""


def _places(value: Tensor) -> Tensor:
    return torch.arange(value.numel(), dtype=torch.float64).view(value.shape)


def _normal(self: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return self.data.copy_(mean + std * math.sqrt(2) * torch.cos(2.4 * _places(self)))


def _uniform(self: Tensor, low: float = 0.0, high: float = 1.0, **options: Any) -> Tensor:
    low, high = options.get("a", options.get("from", low)), options.get("b", options.get("to", high))
    return self.data.copy_(low + (high - low) * (0.6180339887 * (_places(self) + 0.5)).frac())


def start_of(model_class: Any, config: Any, largest: int) -> list[float]:
    """Return sums over the parameters of a fresh model: of the logarithms of their sizes, and of their means."""
    with patch.object(Tensor, "normal_", _normal), patch.object(Tensor, "uniform_", _uniform):
        model = fresh_model(model_class, copy.deepcopy(config), largest)
    sizes, means, num = 0.0, 0.0, 0
    for name, value in sorted(model.named_parameters()):
        if not value.numel():
            continue
        num += 1
        weight = math.cos(zlib.crc32(name.encode()))
        size = float(value.double().square().mean().sqrt())
        sizes += weight * math.log(size + FLOOR)
        means += weight * float(value.double().mean())
    scale = math.sqrt(max(num, 1))
    return [sizes / scale, means / scale, 1.0]
