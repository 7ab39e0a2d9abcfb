"""Which rows are trained on: groups with a signal, prompts that fit, completions that ended.

Every filter says what it dropped; a filter that silently drops everything would look like a run that waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from refrl.algorithms.advantages import group_index, has_spread
from refrl.algorithms.batching import Batch, TrainSample


def groups_with_spread(rewards_B: Tensor, group_ids_B: Tensor) -> Tensor:
    """Return for each row whether the rewards of its group differ; the others have advantage 0.

    A group of one never differs. DAPO, arXiv 2503.14476, section 3.2.

    Raises:
        ValueError: a reward is not finite, which a test of spread would let pass (the message names the rows).
    """
    bad = torch.nonzero(~rewards_B.isfinite()).flatten().tolist()
    if bad:
        raise ValueError(f"rewards of rows {bad} are not finite")
    return has_spread(rewards_B.double(), group_index(group_ids_B))


def mask_overlong(batch: Batch, overlong_B: Tensor) -> Batch:
    """Return the batch with the rows that ran into the length limit masked out of the loss.

    Their rewards still count in their group's baseline. Overlong filtering of DAPO, arXiv 2503.14476, section 3.4.
    Take the global counts of valid tokens and sequences AFTER this.

    Args:
        batch: not changed.
        overlong_B: true where generation ended at the limit, or where clamping cut tokens off.
    """
    return mask_rows(batch, overlong_B)


def mask_rows(batch: Batch, dropped_B: Tensor) -> Batch:
    """Return the batch with rows masked out of loss, gradient and counts; nothing else of them changes."""
    return replace(batch, mask_BT=torch.where(dropped_B.bool().unsqueeze(1), 0.0, batch.mask_BT))


@dataclass
class DynamicSampling:
    """Collects groups with a signal until a step is full (dynamic sampling of DAPO, arXiv 2503.14476, section 3.2)."""

    num_groups: int
    """Groups of a step."""
    max_generation_batches: int
    """Generation batches after which a step that is not full is an error."""
    kept: list[TrainSample] = field(default_factory=list)
    num_generation_batches: int = 0
    num_dropped_groups: int = 0
    """Groups without spread."""
    num_discarded_valid_samples: int = 0
    """Samples with a signal beyond what the step holds."""

    def add(self, samples: Sequence[TrainSample]) -> bool:
        """Take whole groups from one generation batch; return whether the step is full.

        Raises:
            RuntimeError: the step is not full after `max_generation_batches`.
            ValueError: a reward is not finite.
        """
        self.num_generation_batches += 1
        group_ids_B = torch.tensor([sample.group_id for sample in samples])
        spread_B = groups_with_spread(
            torch.tensor([sample.reward for sample in samples]).double(), group_ids_B
        )
        members: dict[int, list[TrainSample]] = {}
        for sample, spread in zip(samples, spread_B.tolist(), strict=True):
            if spread:
                members.setdefault(sample.group_id, []).append(sample)
        self.num_dropped_groups += len(set(group_ids_B.tolist())) - len(members)
        missing = self.num_groups - len({sample.group_id for sample in self.kept})
        for number, group in enumerate(members.values()):
            if number < missing:
                self.kept.extend(group)
            else:
                self.num_discarded_valid_samples += len(group)
        full = len(members) >= missing
        if not full and self.num_generation_batches >= self.max_generation_batches:
            raise RuntimeError(
                f"{self.num_generation_batches} generation batches gave "
                f"{len({sample.group_id for sample in self.kept})} of {self.num_groups} groups whose rewards differ "
                f"({self.num_dropped_groups} dropped): the task is too easy, too hard, or the verifier is constant"
            )
        return full
