"""refrl's batches, offered to the relations: rows in, padded tensors out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from seatrial.relations.records import BuiltBatch, Row
from seatrial.targets.reference_formulas import ReferenceFormulas
from seatrial.targets.reference_model import PAD_ID


class ReferenceBatches(ReferenceFormulas):
    """The components that turn rows into batches, by refrl's own `make_batch`."""

    def make_batch(self, rows: Sequence[Row]) -> BuiltBatch:
        """See `contracts.BatchBuilder`."""
        return self._built(self._batch(rows))

    def make_clamped_batch(
        self, rows: Sequence[Row], max_sequence_length: int | None, sequence_buckets: Sequence[int]
    ) -> BuiltBatch:
        """See `contracts_batches.ClampedBatch`."""
        batch = make_batch(
            [_sample(row) for row in rows],
            pad_token_id=PAD_ID,
            max_sequence_length=max_sequence_length,
            sequence_buckets=sequence_buckets,
            padding_side=self.cell.padding_side,
        )
        return self._built(batch)

    def _built(self, batch: Batch) -> BuiltBatch:
        loss_mask_BS = torch.zeros(batch.input_ids_BS.shape)
        logprobs_BS = torch.zeros(batch.input_ids_BS.shape)
        for row, start in enumerate(batch.completion_starts_B.tolist()):
            width = min(batch.mask_BT.shape[1], loss_mask_BS.shape[1] - start)
            loss_mask_BS[row, start : start + width] = batch.mask_BT[row, :width]
            logprobs_BS[row, start : start + width] = batch.sampling_logprobs_BT[row, :width]
        cut_B = batch.num_truncated_tokens_B
        return BuiltBatch(
            input_ids_BS=batch.input_ids_BS,
            attention_mask_BS=batch.attention_mask_BS,
            loss_mask_BS=loss_mask_BS,
            sampling_logprobs_BS=logprobs_BS,
            rewards_B=batch.rewards_B,
            prompt_ids_B=batch.group_ids_B,
            num_cut_tokens=0 if cut_B is None else int(cut_B.sum()),
        )

    def _batch(self, rows: Sequence[Row], **options: Any) -> Batch:
        options = {"padding_side": self.cell.padding_side, **options}
        batch = make_batch([_sample(row) for row in rows], pad_token_id=PAD_ID, **options)
        T = batch.completion_ids_BT.shape[1]
        batch.old_logprobs_BT = _padded([row.old_logprobs for row in rows], T)
        batch.ref_logprobs_BT = _padded([row.ref_logprobs for row in rows], T)
        return batch


def _sample(row: Row) -> TrainSample:
    return TrainSample(
        prompt_ids=row.prompt_ids,
        completion_ids=row.completion_ids,
        sampling_logprobs=row.sampling_logprobs,
        reward=row.reward,
        group_id=row.prompt_id,
        completion_mask=row.completion_mask,
        advantage=row.advantage,
    )


def _padded(rows: Sequence[Sequence[float]], T: int) -> Tensor:
    return torch.tensor([[*row, *[0.0] * (T - len(row))] for row in rows])
