"""Activation checkpointing (arXiv 1604.06174) of a Hugging Face model.

Transformers' own switch acts on layers in training mode only; the policy stays in evaluation mode, where it would
silently keep every activation. So the layers that Transformers marks as fit for it are wrapped here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from refrl.config import ConfigError


@dataclass(frozen=True)
class _Checkpointed:
    """A layer's forward that keeps its inputs only; without gradients it is the plain one."""

    layer: nn.Module

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        forward = type(self.layer).forward
        if not torch.is_grad_enabled():
            return forward(self.layer, *arguments, **keywords)
        # Nothing in evaluation mode draws random numbers.
        return checkpoint(
            forward, self.layer, *arguments, use_reentrant=False, preserve_rng_state=False, **keywords
        )


def checkpoint_activations(model: PreTrainedModel) -> int:
    """Compute each layer again in the backward pass; return the number of layers.

    Raises:
        ConfigError: the architecture has no layers that it can be done to.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"policy.activation_checkpointing: {type(model).__name__} has no layers that allow it; leave it out"
        )
    for layer in layers:
        layer.forward = _Checkpointed(layer)
    return len(layers)
