"""Weight sync within one process: shared (colocated) or copied. Also chooses the weight sync of a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from refrl.config import GenerationConfig
from refrl.timing import Timer
from refrl.weight_sync.base import WeightReceiver, WeightSource, WeightSync, WeightTarget
from refrl.weight_sync.transferred import TransferredWeights


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


class _Target(WeightTarget, WeightReceiver, Protocol):
    """Takes weights whole and in parts: a generator."""


def make_weight_sync(
    config: GenerationConfig, source: WeightSource, target: _Target, timer: Timer
) -> WeightSync:
    """Return what keeps the target's weights those of the source, and bring them there once.

    A colocated target shares the source's tensors; where these are spread over processes it gets a copy.

    Raises:
        refrl.weight_sync.base.WeightSyncError: the weights did not arrive whole.
    """
    if config.colocated.enabled and source.shares_weights:
        return SharedWeights(source, target)
    if config.placement == "inline" and not config.delta_compression.enabled:
        return CopiedWeights(source, target)
    return TransferredWeights(
        source,
        target,
        bucket_bytes=config.weight_bucket_size_bytes,
        delta=config.delta_compression,
        timer=timer,
    )
