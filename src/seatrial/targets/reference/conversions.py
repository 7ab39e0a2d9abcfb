"""What the relations pass and what refrl takes: the same numbers under other names."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from refrl.algorithms.batching import Batch, TrainSample
from refrl.policy.base import Policy
from refrl.policy.tensors import whole
from seatrial.relations.records import BuiltBatch, LossInputs, Row


@dataclass
class VersionedPolicy:
    """A policy whose version is set by hand: the laws of a weight sync go back, as a restart does."""

    policy: Policy
    version: int = 0
    shares_weights: bool = True

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self.policy.named_weights()

    def redraw(self, version: int, names: Collection[str] | None) -> None:
        """Give the tensors of these names (None: all) the values of a version."""
        self.version = version
        stream = torch.Generator().manual_seed(version)
        for name, tensor in self.named_weights():
            if names is None or name in names:
                tensor.data.normal_(generator=stream)


def whole_state(policy: Policy) -> dict[str, Tensor]:
    """Return what a policy saves, of one process: live where it is not spread."""
    return {name: whole(tensor.detach()) for name, tensor in policy.state_tensors().items()}


def sample_of(row: Row) -> TrainSample:
    return TrainSample(
        prompt_ids=row.prompt_ids,
        completion_ids=row.completion_ids,
        sampling_logprobs=row.sampling_logprobs,
        reward=row.reward,
        group_id=row.prompt_id,
        completion_mask=row.completion_mask,
        advantage=row.advantage,
    )


def padded(rows: Sequence[Sequence[float]]) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def built_of(batch: Batch) -> BuiltBatch:
    cut_B = batch.num_truncated_tokens_B
    return BuiltBatch(
        input_ids_BS=batch.input_ids_BS,
        attention_mask_BS=batch.attention_mask_BS,
        loss_mask_BS=batch.at_positions(batch.mask_BT),
        sampling_logprobs_BS=batch.at_positions(batch.sampling_logprobs_BT),
        rewards_B=batch.rewards_B,
        prompt_ids_B=batch.group_ids_B,
        num_cut_tokens=0 if cut_B is None else int(cut_B.sum()),
    )


def batch_of(inputs: LossInputs) -> Batch:
    """Return the batch of a loss that reads no ids."""
    ids_BT = torch.zeros(inputs.mask_BT.shape, dtype=torch.long)
    ones_B = ids_BT.new_ones(len(ids_BT))
    return Batch(
        input_ids_BS=ids_BT,
        attention_mask_BS=torch.ones_like(ids_BT),
        completion_ids_BT=ids_BT,
        mask_BT=inputs.mask_BT,
        prompt_lens_B=ones_B,
        sampling_logprobs_BT=inputs.sampling_logprobs_BT,
        rewards_B=ones_B,
        group_ids_B=ones_B,
        advantages_B=inputs.advantages_B,
        old_logprobs_BT=inputs.old_logprobs_BT,
        ref_logprobs_BT=inputs.ref_logprobs_BT,
    )
