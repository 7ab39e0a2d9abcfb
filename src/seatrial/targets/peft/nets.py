"""Tiny networks with layers that the language models here lack: convolutions, torch's attention, experts as modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

WIDTH = 32


class Net(torch.nn.Module):
    """Ids are embedded, go through an inner layer, and a head gives logits; some inner layers mix positions."""

    def __init__(self, vocab_size: int, make: Callable[[], torch.nn.Module]) -> None:
        """Make it.

        Args:
            vocab_size: ids.
            make: returns the inner layer, from [B, S, WIDTH] to [B, S, any].
        """
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, WIDTH)
        self.inner = make()
        with torch.no_grad():
            width = self.inner(torch.zeros(1, 2, WIDTH)).shape[-1]
        self.head = torch.nn.Linear(width, vocab_size)

    def forward(self, input_ids: Tensor, **options: Any) -> SimpleNamespace:
        """Return logits [B, S, V]; what else a language model takes is ignored."""
        hidden_BSD: Tensor = self.inner(self.embedding(input_ids))
        return SimpleNamespace(logits=self.head(torch.tanh(hidden_BSD)))


class _Convolved(torch.nn.Module):
    """A convolution over positions, and over the width where it has more dimensions."""

    def __init__(self, layer: torch.nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.shape = layer, shape

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return [B, S, D]."""
        x_BCS = x_BSD.reshape(*x_BSD.shape[:2], *self.shape).movedim(2, 1)
        made_BCS: Tensor = self.layer(x_BCS)
        return made_BCS.movedim(1, 2).flatten(2)


class _Attending(torch.nn.Module):
    """Attention of torch from all positions to all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return [B, S, D]."""
        made_BSD: Tensor = self.layer(x_BSD, x_BSD, x_BSD, need_weights=False)[0]
        return made_BSD


class _Tailed(torch.nn.Module):
    """A linear layer, a module of two more after it, and layers in whose names that of the module is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.tail = _Expert()
        self.tail2, self.tail3, self.tail4 = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return [B, S, D]."""
        made_BSD: Tensor = self.tail(self.layer(x_BSD))
        for layer in (self.tail2, self.tail3, self.tail4):
            made_BSD = layer(torch.tanh(made_BSD))
        return made_BSD


class _Expert(torch.nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, WIDTH)
        self.down = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return [B, S, D]."""
        made_BSD: Tensor = self.down(torch.tanh(self.up(x_BSD)))
        return made_BSD


class _Routed(torch.nn.Module):
    """Layers of experts that are modules of a list, mixed by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(WIDTH, 2, bias=False)
        self.experts = torch.nn.ModuleList([_Expert(), _Expert()])

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return [B, S, D]."""
        weights_BSE = self.gate(x_BSD).softmax(-1)
        for number, expert in enumerate(self.experts):
            x_BSD = x_BSD + weights_BSE[..., number, None] * expert(x_BSD)
        return x_BSD


class _Layers(torch.nn.Module):
    """Three layers of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([_Routed() for _ in range(3)])

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return [B, S, D]."""
        for layer in self.layers:
            x_BSD = layer(x_BSD)
        return x_BSD


def _conv2d(**options: Any) -> torch.nn.Module:
    return _Convolved(torch.nn.Conv2d(4, 6, **{"kernel_size": 3, "padding": 1, **options}), (4, 8))


NETS: Mapping[str, Callable[[], torch.nn.Module]] = {
    "conv1": lambda: _Convolved(torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1), (WIDTH,)),
    "conv2": _conv2d,
    "conv2 of one": lambda: _conv2d(kernel_size=1, padding=0),
    "conv2 dilated": lambda: _conv2d(dilation=2, padding="same"),
    "conv2 circular": lambda: _conv2d(padding_mode="circular"),
    "conv2 grouped": lambda: _conv2d(groups=2),
    "conv3": lambda: _Convolved(torch.nn.Conv3d(2, 4, 3, padding=1), (2, 4, 4)),
    "attention": _Attending,
    "experts of modules": _Layers,
    "modules after it": _Tailed,
}
"""The inner layer by the trait."""


def net(trait: str, vocab_size: int) -> Net:
    """Return a network with the layer of a trait."""
    return Net(vocab_size, NETS[trait])
