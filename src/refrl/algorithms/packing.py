"""Sequence packing: several rows share one long row, without padding between them and without seeing one another.

The rows of a pack are separated by `segment_ids` (0 is padding) and `position_ids`, which start at 0 in each. Attention
needs one of two forms: the explicit block-diagonal mask (`attention_mask_P1SS`), which every Hugging Face model with
eager or SDPA attention takes, or position ids without any mask, from which flash attention finds the boundaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.algorithms.kept_ids import KeptIds
from refrl.algorithms.ops import (
    check_temperature,
    checked_ids,
    scatter,
    score,
    support_at,
    valid_positions,
)


@dataclass(frozen=True)
class PackedBatch:
    """Rows of a batch laid end to end in P packs of S tokens."""

    input_ids_PS: Tensor
    position_ids_PS: Tensor
    """Counted from 0 within each sequence; 0, 1, 2, ... in the padding at the end."""
    segment_ids_PS: Tensor
    """1, 2, ... for the sequences of a pack; 0 on padding."""
    first_B: Tensor
    """Where each row of the batch starts, as an index into the flattened packs."""
    lengths_B: Tensor
    """Prompt plus completion tokens of each row."""
    prompt_lens_B: Tensor

    def attention_mask_P1SS(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the additive mask: 0 where a token may look (itself and before it, within its sequence).

        Elsewhere it is the lowest number of the dtype. Padding looks at padding only, so no row is fully masked.
        """
        num_positions = self.input_ids_PS.shape[1]
        same_PSS = self.segment_ids_PS.unsqueeze(2) == self.segment_ids_PS.unsqueeze(1)
        causal_SS = torch.ones(num_positions, num_positions, dtype=torch.bool, device=same_PSS.device).tril()
        mask_PSS = torch.zeros(same_PSS.shape, dtype=dtype, device=same_PSS.device)
        return mask_PSS.masked_fill(~(same_PSS & causal_SS), torch.finfo(dtype).min).unsqueeze(1)

    def unpack(self, values_PSX: Tensor, num_positions: int | None = None) -> Tensor:
        """Return values per packed token as `values_BSX`: rows padded on the right with 0.

        Args:
            values_PSX: logits, hidden states, anything with one entry per packed token.
            num_positions: S of the result; None takes the longest row.

        Raises:
            ValueError: a row is longer than `num_positions`.
        """
        longest = int(self.lengths_B.max())
        S = longest if num_positions is None else num_positions
        if longest > S:
            raise ValueError(f"a row of {longest} tokens does not fit {S} positions")
        position_S = torch.arange(S, device=self.first_B.device)
        real_BS = position_S < self.lengths_B.unsqueeze(1)
        index_BS = torch.where(real_BS, self.first_B.unsqueeze(1) + position_S, 0)
        values_BSX = values_PSX.flatten(0, 1)[index_BS]
        extra = (1,) * (values_PSX.ndim - 2)
        return torch.where(real_BS.view(*real_BS.shape, *extra), values_BSX, 0.0)


def assign_packs(lengths: Sequence[int], pack_length: int) -> list[list[int]]:
    """Return the rows of each pack, first-fit decreasing: no pack exceeds `pack_length`, every row is in one.

    Raises:
        ValueError: no rows, or a row longer than a pack (it is named; nothing is ever cut or split).
    """
    if not lengths:
        raise ValueError("assign_packs needs at least one row")
    packs: list[list[int]] = []
    free: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if lengths[row] > pack_length:
            raise ValueError(f"row {row} has {lengths[row]} tokens, more than a pack of {pack_length}")
        pack = next((number for number, space in enumerate(free) if space >= lengths[row]), len(packs))
        if pack == len(packs):
            packs.append([])
            free.append(pack_length)
        packs[pack].append(row)
        free[pack] -= lengths[row]
    return packs


def pack_batch(batch: Batch, *, pack_length: int, pad_token_id: int) -> PackedBatch:
    """Lay the rows of a batch end to end in as few packs of `pack_length` as first-fit decreasing finds.

    Raises:
        ValueError: as `assign_packs`.
    """
    device = batch.input_ids_BS.device
    lengths = batch.attention_mask_BS.sum(1).tolist()
    packs = assign_packs(lengths, pack_length)
    shape = (len(packs), pack_length)
    input_ids_PS = torch.full(shape, pad_token_id, device=device)
    position_ids_PS = torch.zeros(shape, dtype=torch.long, device=device)
    segment_ids_PS = torch.zeros(shape, dtype=torch.long, device=device)
    first_B = torch.zeros(batch.num_rows, dtype=torch.long, device=device)
    for pack, rows in enumerate(packs):
        start = 0
        for segment, row in enumerate(rows, start=1):
            span = slice(start, start + lengths[row])
            input_ids_PS[pack, span] = batch.input_ids_BS[row][batch.attention_mask_BS[row].bool()]
            position_ids_PS[pack, span] = torch.arange(lengths[row], device=device)
            segment_ids_PS[pack, span] = segment
            first_B[row] = pack * pack_length + start
            start += lengths[row]
        position_ids_PS[pack, start:] = torch.arange(pack_length - start, device=device)
    return PackedBatch(
        input_ids_PS=input_ids_PS,
        position_ids_PS=position_ids_PS,
        segment_ids_PS=segment_ids_PS,
        first_B=first_B,
        lengths_B=torch.tensor(lengths, device=device),
        prompt_lens_B=batch.prompt_lens_B,
    )


def compute_logprobs_packed(
    logits_PSV: Tensor,
    packed: PackedBatch,
    completion_ids_BT: Tensor,
    *,
    temperature: float = 1.0,
    mask_BT: Tensor | None = None,
    kept_ids: KeptIds | None = None,
) -> tuple[Tensor, Tensor]:
    """Score completion tokens from packed logits: equal to `ops.compute_logprobs` on the padded rows.

    Positions past a row's own completion give 0, as masked ones do; they would read the next sequence's logits.

    Returns:
        (logprobs_BT, entropy_BT).

    Raises:
        ValueError: a temperature that is not positive, a mask of another shape, an id (or a kept id) outside the
            vocabulary.
    """
    check_temperature(temperature)
    step_T = torch.arange(completion_ids_BT.shape[1], device=completion_ids_BT.device)
    own_BT = step_T < (packed.lengths_B - packed.prompt_lens_B).unsqueeze(1)
    valid_BT = valid_positions(completion_ids_BT, mask_BT) & own_BT
    index_BT = (packed.first_B + packed.prompt_lens_B - 1).unsqueeze(1) + step_T
    ids_N = checked_ids(completion_ids_BT[valid_BT], logits_PSV.shape[-1])
    support = support_at(kept_ids, valid_BT, logits_PSV.shape[-1])
    logits_NV = logits_PSV.flatten(0, 1)[index_BT[valid_BT]]
    logprobs_N, entropy_N = score(logits_NV, ids_N, temperature, support)
    return scatter(logprobs_N, valid_BT), scatter(entropy_N, valid_BT)
