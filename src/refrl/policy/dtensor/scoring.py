"""Scoring of rows whose sequences several processes share: each scores the tokens that it has, and all get the sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch
from refrl.algorithms.ops import checked_ids, scatter, score, support_at, valid_positions
from refrl.algorithms.packing import pack_batch
from refrl.policy.auxiliary import Positions
from refrl.policy.dtensor.context_parallel import sum_of_parts
from refrl.policy.dtensor.meshes import Meshes


@dataclass(frozen=True)
class OwnPositions(Positions):
    """One part of every row for each process of the context dimension; rows are filled up so that it divides them."""

    meshes: Meshes
    sequence_parallel: bool

    def own(self, values_BS: Tensor) -> Tensor:
        """Return the values of this process's part."""
        filled_BS = self.fill(values_BS)
        return filled_BS[:, self.part(filled_BS.shape[1])]

    def total(self, part: Tensor) -> Tensor:
        """Return the sum over the context dimension."""
        return sum_of_parts(part, self.meshes.context)

    def fill(self, values_BS: Tensor) -> Tensor:
        """Return rows of a length that the processes divide, 0 behind their ends."""
        divisor = self.meshes.context.size() * (self.meshes.tensor.size() if self.sequence_parallel else 1)
        return functional.pad(values_BS, (0, -values_BS.shape[1] % divisor))

    def part(self, num_positions: int) -> slice:
        """Return the positions of this process, of rows that are filled up."""
        size, rank = self.meshes.context.size(), self.meshes.context.get_local_rank()
        return slice(num_positions * rank // size, num_positions * (rank + 1) // size)


@dataclass(frozen=True)
class SharedForward:
    """A `refrl.policy.base.Forward` over parts of sequences. Rows are padded on the right, or packed."""

    positions: OwnPositions
    packed: bool
    temperature: float
    dtype: torch.dtype
    """That the model computes in."""

    def __call__(self, model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """Score the completions (see `refrl.policy.base.Forward`); every process of the rows gets all values."""
        rows = self._lay_out(batch)
        own = self.positions.part(rows.num_positions)
        num_own = own.stop - own.start
        logits_PLV = model(
            input_ids=rows.input_ids_PS[:, own],
            position_ids=rows.position_ids_PS[:, own],
            attention_mask=rows.attention_mask_P1SS(self.dtype)[:, :, own],
            use_cache=False,
        ).logits
        pack_BT, place_BT = rows.predictors(batch)
        is_own_BT = rows.is_scored(batch) & (place_BT >= own.start) & (place_BT < own.stop)
        index_BT = pack_BT * num_own + place_BT - own.start
        V = logits_PLV.shape[-1]
        logprobs_N, entropy_N = score(
            logits_PLV.flatten(0, 1)[index_BT[is_own_BT]],
            checked_ids(batch.completion_ids_BT[is_own_BT], V),
            self.temperature,
            support_at(batch.kept_ids, is_own_BT, V),
        )
        values_2BT = torch.stack([scatter(logprobs_N, is_own_BT), scatter(entropy_N, is_own_BT)])
        logprobs_BT, entropy_BT = self.positions.total(values_2BT)
        return logprobs_BT, entropy_BT

    def _lay_out(self, batch: Batch) -> _Rows:
        if self.packed:
            pack = pack_batch(batch, pack_length=int(batch.attention_mask_BS.sum()), pad_token_id=0)
            ids, positions, segments = pack.input_ids_PS, pack.position_ids_PS, pack.segment_ids_PS
            first_B = pack.first_B
        else:
            ids, segments = batch.input_ids_BS, batch.attention_mask_BS
            positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
            first_B = torch.arange(batch.num_rows, device=ids.device) * ids.shape[1]
        pack_B, place_B = first_B // ids.shape[1], first_B % ids.shape[1]
        return _Rows(
            input_ids_PS=self.positions.fill(ids),
            position_ids_PS=self.positions.fill(positions),
            segment_ids_PS=self.positions.fill(segments),
            pack_B=pack_B,
            place_B=place_B,
        )


@dataclass(frozen=True)
class _Rows:
    """Rows of tokens that all processes share; L of their S positions belong to each."""

    input_ids_PS: Tensor
    position_ids_PS: Tensor
    segment_ids_PS: Tensor
    """Tokens see tokens of their own segment; 0 is padding."""
    pack_B: Tensor
    place_B: Tensor
    """Where each row of the batch starts."""

    @property
    def num_positions(self) -> int:
        return self.input_ids_PS.shape[1]

    def attention_mask_P1SS(self, dtype: torch.dtype) -> Tensor:
        """Return the additive mask of causal attention within segments; no row of it is fully masked."""
        same_PSS = self.segment_ids_PS.unsqueeze(2) == self.segment_ids_PS.unsqueeze(1)
        seen_PSS = same_PSS & torch.ones_like(same_PSS[0]).tril()
        mask_PSS = torch.zeros(same_PSS.shape, dtype=dtype, device=same_PSS.device)
        return mask_PSS.masked_fill(~seen_PSS, torch.finfo(dtype).min).unsqueeze(1)

    def predictors(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return for each completion token the row of tokens, and the position in it, that predict it."""
        step_T = torch.arange(batch.completion_ids_BT.shape[1], device=self.pack_B.device)
        place_BT = (self.place_B + batch.prompt_lens_B - 1).unsqueeze(1) + step_T
        return self.pack_B.unsqueeze(1).expand_as(place_BT), place_BT

    def is_scored(self, batch: Batch) -> Tensor:
        """Return true where a completion token is scored."""
        step_T = torch.arange(batch.completion_ids_BT.shape[1], device=self.pack_B.device)
        is_there_BT = step_T < batch.completion_lens_B.unsqueeze(1)
        return valid_positions(batch.completion_ids_BT, batch.mask_BT) & is_there_BT
