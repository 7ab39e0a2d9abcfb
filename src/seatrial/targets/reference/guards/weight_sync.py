"""Weights that a sampler holds in int8, held to those that they were rounded from."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from seatrial.guards import Guards

LEVELS = 127
HALF = 0.5 + 1e-3
"""Of a scale: how far rounding may move an element, and what float32 adds to it."""
Weights = Mapping[str, Tensor]


def hold_int8(trained: Weights, served: Weights, guards: Guards) -> tuple[Weights, Weights]:
    """Hold each int8 tensor to its own: the scale is its row's largest magnitude over 127, the error half of it.

    Returns:
        The tensors of both sides that are not rounded.
    """
    rounded = [name for name, tensor in served.items() if tensor.dtype == torch.int8 and name in trained]
    wrong = ""
    for name in rounded:
        weight_OI = trained[name].detach().double()
        scale_O1 = weight_OI.abs().amax(1, keepdim=True) / LEVELS
        held_O1 = served[f"{name}_scale"].double()[:, None]
        error_OI = (served[name].double() * held_O1 - weight_OI).abs()
        good = torch.allclose(held_O1, scale_O1, rtol=1e-4) and bool((error_OI <= HALF * scale_O1).all())
        wrong = wrong or ("" if good else f"{name} is off by {float((error_OI / scale_O1).max()):.3g} scales")
    guards.hold(
        "int8 after sync", bool(rounded) and not wrong, wrong or "no tensor is int8", number=len(rounded)
    )
    scales = {f"{name}_scale" for name in rounded}
    return (
        {name: tensor for name, tensor in trained.items() if name not in rounded},
        {name: tensor for name, tensor in served.items() if name not in scales.union(rounded)},
    )
