"""Weights of a model on record: drawn by their names alone, the same for every release that has the names."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

NOISE = 0.1
"""Spread of what is constant in a fresh model, such as norms and biases."""
SPREAD = 1.2
"""Of a matrix, times the root of its inputs: logits of a few layers are then about 1."""
VECTOR = 0.3
"""Spread of a vector that is not constant in a fresh model."""
RENAMED: Sequence[tuple[str, str]] = (
    (r"(predictions|lm_head)\.decoder\.bias", r"\1.bias"),
    ("block_sparse_moe", "mlp"),
    (r"\.w1(?=\.|$)", ".gate_proj"),
    (r"\.w3(?=\.|$)", ".up_proj"),
    (r"\.w2(?=\.|$)", ".down_proj"),
    (r"experts\.fc1\.weight", "experts.gate_up_proj"),
    (r"experts\.fc2\.weight", "experts.down_proj"),
    (r"\.input_linear\.weight", ".experts.gate_up_proj"),
    (r"\.output_linear\.weight", ".experts.down_proj"),
    (r"router\.layer\.weight", "router.weight"),
    (r"gate\.wg\.weight", "gate.weight"),
    (r"mlp\.(gate|router)\.weight", "mlp.gate.weight"),
    ("embed_out", "lm_head"),
)
"""Names of older releases and those of later ones."""
FUSED: Mapping[str, Sequence[str]] = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
"""Tensors of all experts, [E, ...], and the matrices of one expert that earlier releases have in their place."""


def draw_by_names_alone(model: Any) -> None:
    """Draw the weights of a model by their names, and the biases that are buffers."""
    saved = {*model.state_dict()}
    with torch.no_grad():
        for name, value in model.named_parameters():
            _draw(name, value)
        for name, value in model.named_buffers():
            if name in saved and name.endswith("bias") and value.is_floating_point():
                _draw(name, value)


def pieces(name: str, value: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a tensor that are tensors of their own in some releases, by the same names in all."""
    for old, new in RENAMED:
        name = re.sub(old, new, name)
    whole, _, last = name.rpartition(".")
    if value.dim() != 3 or not whole.endswith("experts") or last not in FUSED:
        yield name, value
        return
    for number, one in enumerate(value):
        for part, own in zip(one.chunk(len(FUSED[last]), dim=0), FUSED[last], strict=True):
            yield f"{whole}.{number}.{own}.weight", part


def _draw(name: str, whole: Tensor) -> None:
    for own, value in pieces(name, whole):
        constant = value.numel() > 1 and not bool((value != value.flatten()[0]).any())
        if value.dim() > 1 and not constant:
            value.copy_(_matrix(own, value))
        elif value.numel() > 1 and not constant:
            value.copy_(VECTOR * _normal(own, value))
        else:
            value.add_(NOISE * _normal(own, value))


def _matrix(name: str, value: Tensor) -> Tensor:
    num_inputs = value.shape[-1] if value.dim() == 2 else value[0].numel()
    drawn: Tensor = _normal(name, value) * SPREAD / max(num_inputs, 1) ** 0.5
    return drawn


def _normal(name: str, value: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(value.shape, generator=generator)
