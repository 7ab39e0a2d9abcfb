"""verl's micro-batches of at most so many tokens, whichever release is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from seatrial.relations.contracts.packs import Segment
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name

WIDER = KnownFailure(
    "there are as many micro-batches as the tokens would fill without gaps, however many each then has",
    finding="verl: micro-batches wider than their limit",
    releases=before("verl", "0.9.1"),
)


class VerlMicroBatches(KnowsFailures):
    """`rearrange_micro_batches` with `max_token_len`, of rows that are padded to the longest."""

    rows_beyond_the_width: Literal["refused", "cut", "split"] = "refused"
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        WIDER.of("R4.plan/no pack is wider, rows of more than half"),
    )

    def __init__(self) -> None:
        """Find the function."""
        self.rearrange = find_name("verl", ["verl.utils.seqlen_balancing:rearrange_micro_batches"])

    def plan_packs(self, lengths: Sequence[int], width: int) -> Sequence[Sequence[Segment]]:
        from tensordict import TensorDict

        mask_BS = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        batch = TensorDict(
            {"input_ids": mask_BS.long(), "attention_mask": mask_BS.long()}, batch_size=[len(lengths)]
        )
        _, parts = self.rearrange(batch, max_token_len=width)
        return [[Segment(row, 0, lengths[row]) for row in rows] for rows in parts]
