"""A dense decoder whose weights are a frozen model's plus adapters, with the gradient of the adapters alone.

A layer with adapters A and B of the rank `r` computes with W + alpha / r * B A (arXiv 2106.09685).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from seatrial.evidence.weights import StoredTensor
from seatrial.trials.sensors.decoder import Array, Decoder

LOW, HIGH = ".lora_A.weight", ".lora_B.weight"


class AdaptedDecoder(Decoder):
    """A model with adapters."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        facts: Mapping[str, Any],
        adapters: Mapping[str, StoredTensor],
        alpha: float,
    ) -> None:
        """Read the weights and add the adapters to them.

        Args:
            tensors: of the frozen model.
            facts: its config.json.
            adapters: A and B of each adapted layer, named after it.
            alpha: `policy.lora_cfg.alpha`.
        """
        super().__init__(tensors, facts)
        self._pairs: dict[str, tuple[Array, Array, float]] = {}
        for name in adapters:
            if name.endswith(LOW):
                layer = name.removesuffix(LOW)
                low = adapters[name].read().astype(np.float64)
                high = adapters[f"{layer}{HIGH}"].read().astype(np.float64)
                self._pairs[layer] = low, high, alpha / len(low)
                self._weights[f"{layer}.weight"] = (
                    self._weights[f"{layer}.weight"] + alpha / len(low) * high @ low
                )

    def norms(self) -> dict[str, float]:
        """Return the norm of each adapter's gradient."""
        found = {}
        for layer, (low, high, scale) in self._pairs.items():
            gradient = scale * self._gradients[f"{layer}.weight"]
            found[f"{layer}{LOW}"] = float(np.linalg.norm(high.T @ gradient))
            found[f"{layer}{HIGH}"] = float(np.linalg.norm(gradient @ low.T))
        return found
