"""Activation checkpointing (arXiv 1604.06174) of a Hugging Face model.

Transformers' own switch acts on layers in training mode only; the policy stays in evaluation mode, where it would
silently keep every activation. So the layers that Transformers marks as fit for it are wrapped here, and only while
a training pass runs forward: a replaced forward at any other time would keep generation from its fast path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError
from refrl.policy.base import Forward


@dataclass(frozen=True)
class CheckpointedForward:
    """A `Forward` that keeps the inputs of each layer only; backward computes the rest again."""

    forward: Forward
    layers: Sequence[nn.Module]

    def __call__(self, model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """Score with gradient."""
        for layer in self.layers:
            layer.forward = _Checkpointed(layer)
        try:
            return self.forward(model, batch)
        finally:
            for layer in self.layers:
                del layer.forward


@dataclass(frozen=True)
class _Checkpointed:
    layer: nn.Module

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        # Nothing in evaluation mode draws random numbers. Backward calls the class's forward, not this one again.
        forward = type(self.layer).forward
        return checkpoint(
            forward, self.layer, *arguments, use_reentrant=False, preserve_rng_state=False, **keywords
        )


def checkpointed_forward(forward: Forward, model: PreTrainedModel) -> CheckpointedForward:
    """Wrap a forward of this model.

    Raises:
        ConfigError: the architecture has no layers that it can be done to.
    """
    return CheckpointedForward(forward, _layers("policy.activation_checkpointing", model))


def compile_layers(model: PreTrainedModel) -> None:
    """Compile the model's decoder layers with torch.compile, for sequences of any length.

    Raises:
        ConfigError: the architecture has no layers that Transformers marks as units.
    """
    for layer in _layers("policy.compile_layers", model):
        layer.compile(dynamic=True)


def _layers(option: str, model: PreTrainedModel) -> list[nn.Module]:
    layers: list[nn.Module] = [
        module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)
    ]
    if not layers:
        raise ConfigError(f"{option}: {type(model).__name__} has no layers that allow it; leave it out")
    return layers
