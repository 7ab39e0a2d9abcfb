"""Weights within one process: one storage for policy and generator, or a copy for each."""

from __future__ import annotations

from collections.abc import Mapping

from refrl.weight_sync.base import WeightSource, WeightTarget


class SharedWeights:
    """A `refrl.weight_sync.base.WeightSync`: the generator samples with the policy's own tensors (colocated)."""

    def __init__(self, source: WeightSource, target: WeightTarget) -> None:
        """Share the storage once."""
        self._source, self._target = source, target
        target.share_weights(source.named_weights())
        target.weight_version = source.version

    def sync(self) -> Mapping[str, float]:
        """Set the generator's version; the weights are shared."""
        self._target.weight_version = self._source.version
        return {}


class CopiedWeights:
    """A `refrl.weight_sync.base.WeightSync`: the generator has a copy of its own.

    The copy changes in `sync` and nowhere else: without it the generator samples with old weights.
    """

    def __init__(self, source: WeightSource, target: WeightTarget) -> None:
        """Copy the weights as they are now."""
        self._source, self._target = source, target
        target.load_weights(source.named_weights(), source.version)

    def sync(self) -> Mapping[str, float]:
        """Copy every parameter and buffer, unless the generator has this version already."""
        if self._target.weight_version != self._source.version:
            self._target.load_weights(self._source.named_weights(), self._source.version)
        return {}
