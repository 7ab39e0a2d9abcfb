"""The norms of decoder layers, as the Hugging Face models round them.

Shapes: Q query heads, K key/value heads, N = Q + K, H width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch.nn import functional


class NormLike(Protocol):
    """A norm over the last dimension, or over queries and keys."""

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it reads."""
        ...

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the normalised inputs."""
        ...


class NoNorm:
    """Returns its input: the architecture has no norm at this place."""

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield nothing."""
        return iter(())

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the inputs."""
        return inputs


class Norm:
    """Root-mean-square norm over the last dimension (arXiv 1910.07467)."""

    def __init__(
        self, weight: torch.Tensor, eps: float, *, offset: float = 0.0, rounds_last: bool = False
    ) -> None:
        """Prepare the norm; the weight broadcasts against the input.

        Args:
            weight: of the module.
            eps: added to the mean square.
            offset: added to the weight, in float32.
            rounds_last: multiply by the weight in float32, then round to the type of the input; False rounds first.
        """
        width = weight.shape[-1]
        self.weight = weight.float() + offset if offset else weight
        self.eps = eps
        self.rounds_last = rounds_last
        # x / sqrt(mean(x^2) + eps) = x * sqrt(width) / hypot(|x|, sqrt(width * eps)): fewer passes over x.
        self._root_weight = self.weight * math.sqrt(width)
        self._floor = torch.tensor(math.sqrt(width * eps), device=weight.device)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it reads."""
        yield from (self.weight, self._root_weight, self._floor)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise in float32, then scale."""
        if inputs.dtype == torch.float32:
            length = torch.linalg.vector_norm(inputs, dim=-1, keepdim=True)
            return inputs / torch.hypot(length, self._floor) * self._root_weight
        normalised = functional.rms_norm(inputs.float(), inputs.shape[-1:], eps=self.eps)
        if self.rounds_last:
            return (normalised * self.weight).to(inputs.dtype)
        return normalised.to(inputs.dtype) * self.weight


class CentredNorm:
    """Layer norm over the last dimension (arXiv 1607.06450), with or without a bias."""

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, *, offset: float = 0.0
    ) -> None:
        """Prepare the norm; a weight of two dimensions has one row for each head."""
        self.weight = weight + offset if offset else weight
        self.bias = bias
        self.eps = eps

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it reads."""
        yield self.weight
        if self.bias is not None:
            yield self.bias

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise in float32, scale, and round to the type of the input."""
        if self.weight.dim() == 1:
            return functional.layer_norm(inputs, inputs.shape[-1:], self.weight, self.bias, self.eps)
        normalised = functional.layer_norm(inputs.float(), inputs.shape[-1:], eps=self.eps)
        return (normalised * self.weight).to(inputs.dtype)


class WideNorm:
    """A norm over all query heads together and one over all key heads together."""

    def __init__(self, queries: NormLike, keys: NormLike, num_query_heads: int) -> None:
        """Take the two norms, and the number of heads that belong to the first."""
        self._queries = queries
        self._keys = keys
        self._num_query_heads = num_query_heads

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it reads."""
        yield from self._queries.tensors()
        yield from self._keys.tensors()

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise queries and keys, which are side by side: [..., N, H]."""
        num_heads, head_dim = inputs.shape[-2:]
        parts = inputs.split_with_sizes((self._num_query_heads, num_heads - self._num_query_heads), dim=-2)
        normalised = [
            norm(part.flatten(-2)).unflatten(-1, (-1, head_dim))
            for norm, part in zip((self._queries, self._keys), parts, strict=True)
        ]
        return torch.cat(normalised, dim=-2)
