"""Filters of claimed rollouts: from tags alone, in the trainer's process, where the current version is known.

A filter splits a claim in two. Both halves share nothing with the claim. A sample that cannot be judged is an error:
keeping it would train on what the filter must exclude, and dropping it would hide a producer that omits a tag.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from refrl.algorithms.schedule import Schedule
from refrl.data_plane.metadata import KVBatchMeta


class BaseRolloutFilter(ABC):
    """Parts a claim into what is trained on and what is cleared."""

    name: str
    """The reason that dropped samples are counted under."""

    def __call__(self, meta: KVBatchMeta, **state: Any) -> tuple[KVBatchMeta, KVBatchMeta]:
        """Return (keep, drop), each in the claim's order; together they are the claim.

        Args:
            meta: a claim with tags.
            state: what the trainer knows now, such as `current_weight_version`.

        Raises:
            ValueError, TypeError: a sample cannot be judged.
        """
        kept = self.keeps(meta, **state)
        if len(kept) != meta.size:
            raise ValueError(f"filter {self.name}: {len(kept)} judgements of {meta.size} samples")
        keep = [row for row, is_kept in enumerate(kept) if is_kept]
        drop = [row for row, is_kept in enumerate(kept) if not is_kept]
        return meta.subset(keep), meta.subset(drop)

    @abstractmethod
    def keeps(self, meta: KVBatchMeta, **state: Any) -> Sequence[bool]:
        """Return for each sample whether it is kept."""


class StalenessFilter(BaseRolloutFilter):
    """Keeps samples of weights that are at most `max_staleness` versions old, inclusive."""

    name = "stale"

    def __init__(self, max_staleness: int) -> None:
        """Set the bound.

        Raises:
            ValueError: it is negative.
        """
        if max_staleness < 0:
            raise ValueError(
                f"max_staleness={max_staleness}: at least 0, which keeps the current version alone"
            )
        self._schedule = Schedule(
            accumulation_steps=1, sync_every=1, reference_sync_every=None, max_staleness=max_staleness
        )

    def keeps(self, meta: KVBatchMeta, **state: Any) -> Sequence[bool]:
        """See the class; `current_weight_version` must be given.

        Raises:
            ValueError: it is not given, tags are missing or misaligned, or a sample is of a version yet to come.
            KeyError: a sample has no tag `weight_version`.
            TypeError: a version is no integer.
        """
        if state.get("current_weight_version") is None:
            raise ValueError("current_weight_version is missing: staleness is relative to it")
        current = _version(state["current_weight_version"], "current_weight_version")
        versions = [
            _version(value, f"tag weight_version of sample {sample}")
            for sample, value in zip(meta.sample_ids, tag_values(meta, "weight_version"), strict=True)
        ]
        ahead = [
            sample for sample, version in zip(meta.sample_ids, versions, strict=True) if version > current
        ]
        if ahead:
            raise ValueError(
                f"samples {ahead[:5]} are of versions after the current one, {current}: did a counter start again?"
            )
        return [self._schedule.is_fresh(version, current) for version in versions]


class ZeroVarianceFilter(BaseRolloutFilter):
    """Drops groups whose rewards are all the same, and groups of one: their advantages are zero.

    Reads the tags `group_id` and `reward`, which is the verifier's: a penalty on length would make rewards differ in a
    group that solved nothing.
    """

    name = "zero variance"

    def keeps(self, meta: KVBatchMeta, **state: Any) -> Sequence[bool]:
        """See the class.

        Raises:
            ValueError: a reward is not finite; see also `tag_values`.
            KeyError: a tag is missing.
            TypeError: a reward is no number.
        """
        groups = tag_values(meta, "group_id")
        rewards = [_finite(value) for value in tag_values(meta, "reward")]
        members: dict[Any, set[float]] = defaultdict(set)
        for group, reward in zip(groups, rewards, strict=True):
            members[group].add(reward)
        return [len(members[group]) > 1 for group in groups]


class WholeGroups(BaseRolloutFilter):
    """Drops a group with all its samples where another filter drops any of them (tag `group_id`)."""

    def __init__(self, of_samples: BaseRolloutFilter) -> None:
        """Take the judgements, and the name, of a filter of single samples."""
        self._of_samples, self.name = of_samples, of_samples.name

    def keeps(self, meta: KVBatchMeta, **state: Any) -> Sequence[bool]:
        """See the class.

        Raises:
            ValueError, KeyError, TypeError: as the other filter; a sample has no tag `group_id`.
        """
        kept = self._of_samples.keeps(meta, **state)
        of_sample = tag_values(meta, "group_id")
        dropped = {group for group, is_kept in zip(of_sample, kept, strict=True) if not is_kept}
        return [group not in dropped for group in of_sample]


class LengthFilter(BaseRolloutFilter):
    """Drops samples of more than `max_length` tokens, prompt and completion together."""

    name = "too long"

    def __init__(self, max_length: int) -> None:
        """Set the bound.

        Raises:
            ValueError: nothing could be kept.
        """
        if max_length < 1:
            raise ValueError(f"max_length={max_length}: at least 1")
        self.max_length = max_length

    def keeps(self, meta: KVBatchMeta, **state: Any) -> Sequence[bool]:
        """See the class.

        Raises:
            ValueError: the meta has no lengths.
        """
        if meta.sequence_lengths is None:
            raise ValueError(
                "the claim has no sequence_lengths: let the producer stamp the tag input_lengths"
            )
        return [length <= self.max_length for length in meta.sequence_lengths]


def tag_values(meta: KVBatchMeta, name: str) -> list[Any]:
    """Return a tag of every sample.

    Raises:
        ValueError: the meta has no tags, or not one set a sample.
        KeyError: a sample does not have the tag.
    """
    if meta.tags is None or len(meta.tags) != meta.size:
        have = "no tags" if meta.tags is None else f"{len(meta.tags)} sets of tags"
        raise ValueError(f"the claim has {have} for {meta.size} samples")
    without = [sample for sample, tags in zip(meta.sample_ids, meta.tags, strict=True) if name not in tags]
    if without:
        raise KeyError(f"samples {without[:5]} have no tag {name!r}: let the producer stamp it")
    return [tags[name] for tags in meta.tags]


def _version(value: Any, what: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{what} is {value!r} ({type(value).__name__}), not an integer")
    return int(value)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"tag reward is {value!r} ({type(value).__name__}), not a number")
    if not math.isfinite(value):
        raise ValueError(f"tag reward is {value}: a reward that is not finite passes any test of spread")
    return float(value)
