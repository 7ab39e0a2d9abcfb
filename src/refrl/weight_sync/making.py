"""Which weight sync serves a configuration."""

from __future__ import annotations

from typing import Protocol

from refrl.config import GenerationConfig
from refrl.timing import Timer
from refrl.weight_sync.base import WeightReceiver, WeightSource, WeightSync, WeightTarget
from refrl.weight_sync.colocated import CopiedWeights, SharedWeights
from refrl.weight_sync.transferred import TransferredWeights


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
