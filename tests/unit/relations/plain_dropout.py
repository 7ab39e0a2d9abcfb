"""Dropout of what a plain adapter reads, and its faults."""

from typing import Any

from torch import Tensor
from torch.nn.functional import dropout


def dropped(model: Any, kept: Tensor) -> Tensor:
    """Return what is left of the inputs of an adapter."""
    if model.dropout and model.fault == "dropout":
        return kept * (1 - model.dropout)
    if not model.training or model.fault == "no rate":
        return kept
    return dropout(kept, model.dropout) * (1 - model.dropout if model.fault == "not scaled" else 1)


def in_training(model: Any, ids_BS: Tensor) -> Tensor:
    """Return logits under dropout."""
    model.training = True
    logits_BSV: Tensor = model.outputs(ids_BS)
    model.training = False
    return dropout(logits_BSV, model.dropout) if model.fault == "dropout of the base" else logits_BSV
