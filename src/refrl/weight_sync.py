"""Weights on their way from the policy to a generator that has a copy of its own (not colocated)."""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel


class WeightSync:
    """A generator's copy of a model, and what brings it up to date.

    The copy changes in `sync` and nowhere else: without it the generator samples with old weights.
    """

    def __init__(self, source: PreTrainedModel) -> None:
        """Copy the model as it is now."""
        self._source = source
        self.replica: PreTrainedModel = copy.deepcopy(source).requires_grad_(False)
        self.version = 0
        """Optimizer steps that the copy's weights have seen."""

    @torch.no_grad()
    def sync(self, version: int) -> None:
        """Copy every parameter and buffer, unless the copy has this version already.

        Raises:
            ValueError: the two models do not have the same tensors.
        """
        if version == self.version:
            return
        targets = dict(_tensors(self.replica))
        sources = dict(_tensors(self._source))
        if targets.keys() != sources.keys():
            raise ValueError(f"only one of the models has {sorted(targets.keys() ^ sources.keys())[:5]}")
        for name, tensor in sources.items():
            targets[name].copy_(tensor)
        self.version = version


def _tensors(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]
