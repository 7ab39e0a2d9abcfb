"""Checks that a sampler has the trainer's weights after a sync: names, values, types, and int8 rounding."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from refrl.training.session import Session
from seatrial.guards import Guards
from seatrial.targets.reference.guards.base import RunConfig

LEVELS = 127
HALF = 0.5 + 1e-3
"""Of a scale: how far rounding may move an element, and what float32 adds to it."""
Weights = Mapping[str, Tensor]


def check_sync(session: Session, config: RunConfig, guards: Guards) -> None:
    """Check that names and values in the sampler are the trainer's."""
    trained: Weights = dict(session.policy.named_weights())
    served: Weights = dict(session.generator.named_weights())
    if config.policy.generation.quantization == "int8":
        trained, served = _check_int8(trained, served, guards)
    guards.same_weights(trained, served)
    if config.policy.generation.backend == "torch":
        # Rotary frequencies are computed from the configuration by each side: they are not sent.
        other = [
            name
            for name, one in served.items()
            if name in trained and not name.endswith("inv_freq") and one.dtype != trained[name].dtype
        ]
        wrong = f"{len(other)} tensors are of another type in the sampler, such as {other[:1]}"
        guards.hold("types after sync", not other, wrong, number=len(served))


def _check_int8(trained: Weights, served: Weights, guards: Guards) -> tuple[Weights, Weights]:
    """Check each int8 tensor: its scale is its row's largest magnitude over 127, its error at most half of that.

    Returns:
        The tensors of both sides that are not rounded.
    """
    rounded = [name for name, tensor in served.items() if tensor.dtype == torch.int8 and name in trained]
    wrong = ""
    for name in rounded:
        weight_OI = trained[name].detach().double()
        scale_O1 = weight_OI.abs().amax(1, keepdim=True) / LEVELS
        served_O1 = served[f"{name}_scale"].double()[:, None]
        error_OI = (served[name].double() * served_O1 - weight_OI).abs()
        good = torch.allclose(served_O1, scale_O1, rtol=1e-4) and bool((error_OI <= HALF * scale_O1).all())
        wrong = wrong or ("" if good else f"{name} is off by {float((error_OI / scale_O1).max()):.3g} scales")
    guards.hold(
        "int8 after sync", bool(rounded) and not wrong, wrong or "no tensor is int8", number=len(rounded)
    )
    scales = {f"{name}_scale" for name in rounded}
    return (
        {name: tensor for name, tensor in trained.items() if name not in rounded},
        {name: tensor for name, tensor in served.items() if name not in scales.union(rounded)},
    )
