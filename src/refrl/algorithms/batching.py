"""Pads rows of unequal length into one batch.

Row layout: prompt, then completion. Padded on the right, both are left-aligned, so token t of row b's completion
is at position `prompt_lens_B[b] + t` of `input_ids_BS`. Padded on the left, every completion starts in the
same column. Masks come from lengths and never from comparing ids with the padding id: ids may equal it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor

from refrl.algorithms.kept_ids import KeptIds, gather_kept_ids
from refrl.media import stack


@dataclass(frozen=True)
class TrainSample:
    """One completion with everything that training on it needs."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    """Ids exactly as they were sampled, the end token included."""
    sampling_logprobs: tuple[float, ...]
    """Log-probability of each completion token under the distribution that it was sampled from."""
    reward: float
    group_id: int
    """The prompt's id: completions with one id form a group, wherever they stand in the batch."""
    completion_mask: tuple[int, ...] | None = None
    """1 on sampled tokens and 0 on tokens that the environment wrote; None: all were sampled."""
    advantage: float | None = None
    kept_ids: tuple[tuple[int, ...], ...] | None = None
    """Ids that the filter of sampling (top-p, top-k) kept at each token, the sampled one among them; they are read
    on sampled tokens only. None: no filter was on."""
    weight_version: int = 0
    """Optimizer steps that the weights it was sampled with had seen."""
    media: str | None = None
    """The image or sound in the prompt (`refrl.media`)."""


@dataclass
class Batch:
    """Rows padded to one shape (B rows, S padded sequence, T padded completion)."""

    input_ids_BS: Tensor
    attention_mask_BS: Tensor
    """Long: 1 on prompt and completion tokens."""
    completion_ids_BT: Tensor
    mask_BT: Tensor
    """Float: 1 exactly on sampled tokens."""
    prompt_lens_B: Tensor
    sampling_logprobs_BT: Tensor
    rewards_B: Tensor
    group_ids_B: Tensor
    advantages_B: Tensor | None = None
    old_logprobs_BT: Tensor | None = None
    """Log-probabilities under the policy before this step's updates."""
    ref_logprobs_BT: Tensor | None = None
    """Log-probabilities under the frozen reference policy."""
    num_truncated_tokens_B: Tensor | None = None
    """How many completion tokens clamping cut off each row; 0 almost always."""
    kept_ids: KeptIds | None = None
    """What the filter of sampling kept at each completion token; None: no filter was on."""
    media_BX: Tensor | None = None
    """Float32: the image or sound of each prompt, in their own two or three dimensions; None: prompts are text."""

    @property
    def num_rows(self) -> int:
        """Number of rows, B."""
        return self.input_ids_BS.shape[0]

    @property
    def num_valid_tokens(self) -> Tensor:
        """Number of sampled tokens, a float scalar; summed over micro-batches and ranks it is the global count."""
        return self.mask_BT.sum()

    @property
    def num_valid_seqs(self) -> Tensor:
        """Number of rows with a sampled token, a float scalar; sums like `num_valid_tokens`."""
        return (self.mask_BT.sum(1) > 0).sum().to(self.mask_BT.dtype)

    @property
    def completion_lens_B(self) -> Tensor:
        """Completion tokens of each row, those that the environment wrote included."""
        return self.attention_mask_BS.sum(1) - self.prompt_lens_B

    @property
    def completion_starts_B(self) -> Tensor:
        """Position of each row's first completion token; `prompt_lens_B` when padded on the right."""
        return self.attention_mask_BS.argmax(1) + self.prompt_lens_B

    @property
    def position_ids_BS(self) -> Tensor:
        """Positions counted from each row's first real token; padding repeats the nearest real position."""
        return (self.attention_mask_BS.cumsum(1) - 1).clamp_min(0)

    def at_positions(self, values_BT: Tensor) -> Tensor:
        """Return values of the T columns at their positions in the sequence, [B, S], padding included; 0 elsewhere."""
        tokens_T = torch.arange(values_BT.shape[1], device=values_BT.device)
        places_BT = self.completion_starts_B[:, None] + tokens_T
        fits_BT = places_BT < self.input_ids_BS.shape[1]
        values_BS = values_BT.new_zeros(self.input_ids_BS.shape)
        rows_BT = torch.arange(self.num_rows, device=values_BT.device)[:, None].expand_as(places_BT)
        values_BS[rows_BT[fits_BT], places_BT[fits_BT]] = values_BT[fits_BT]
        return values_BS

    def rows(self, index: slice | Sequence[int] | Tensor, *, trim: bool = False) -> Batch:
        """Return the chosen rows, in the order of `index`, as a batch of their own.

        The tensors are views or copies of this batch's. `trim` also drops the columns that only padding fills.
        """
        chosen = torch.as_tensor(index, dtype=torch.long) if not isinstance(index, slice) else index
        batch = self._map(lambda _, value: value[chosen], lambda kept: kept.rows(chosen))
        return batch.trimmed() if trim else batch

    def trimmed(self) -> Batch:
        """Return the batch without the columns that no row needs; `prompt_lens_B[b] + T <= S` still holds."""
        last_B = self.completion_starts_B + int(self.completion_lens_B.max())
        first = int(self.attention_mask_BS.argmax(1).min())
        num_tokens = int(self.completion_lens_B.max())
        columns = {"BS": slice(first, int(last_B.max())), "BT": slice(0, num_tokens)}
        return self._map(
            lambda name, value: value[:, columns[name[-2:]]] if value.ndim == 2 else value,
            lambda kept: kept.trimmed(num_tokens),
        )

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        return self._map(lambda _, value: value.to(device), lambda kept: kept.to(device))

    def _map(
        self, change: Callable[[str, Tensor], Tensor], change_kept: Callable[[KeptIds], KeptIds]
    ) -> Batch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {
            name: change_kept(value) if isinstance(value, KeptIds) else change(name, value)
            for name, value in values.items()
            if value is not None
        }
        return Batch(**changed)


def make_batch(
    samples: Sequence[TrainSample],
    *,
    pad_token_id: int,
    sequence_buckets: Sequence[int] = (),
    completion_buckets: Sequence[int] = (),
    max_sequence_length: int | None = None,
    padding_side: Literal["right", "left"] = "right",
) -> Batch:
    """Pad samples into a batch, in their order.

    T is the smallest completion bucket that holds the longest completion, S the smallest sequence bucket that
    holds the longest prompt plus T, so that `prompt_lens_B[b] + T <= S` on every row. A completion is cut where
    it passes the last completion bucket, or where prompt plus completion pass the last sequence bucket or
    `max_sequence_length`; it is cut by its own length alone, never by its neighbours', and the batch reports
    it in `num_truncated_tokens_B`. S may pass the last bucket by columns of padding.

    Args:
        samples: at least one.
        pad_token_id: fills padding; it may equal a real id.
        sequence_buckets: padded lengths of prompt plus completion; empty pads to what is needed.
        completion_buckets: padded lengths of completions; empty pads to the longest.
        max_sequence_length: longest prompt plus completion kept, in tokens.
        padding_side: "right", or "left" for prompts padded on the left.

    Raises:
        ValueError: no samples; an empty prompt or completion; lengths within a sample that disagree; a prompt
            that is too long for a completion; a sampled token whose log-probability is not finite, or that is
            not among its kept ids; a reward that is not finite; advantages on some samples only. The message names
            the row.
    """
    if not samples:
        raise ValueError("make_batch needs at least one sample")
    if padding_side not in ("right", "left"):
        raise ValueError(f"padding_side is {padding_side!r}; it must be right or left")
    for row, sample in enumerate(samples):
        _validate(row, sample)
    lens = _kept_lengths(samples, sequence_buckets, completion_buckets, max_sequence_length)
    T = _bucket(max(lens), completion_buckets)
    S = _bucket(max(len(sample.prompt_ids) for sample in samples) + T, sequence_buckets)
    B = len(samples)

    input_ids_BS = torch.full((B, S), pad_token_id)
    attention_mask_BS = torch.zeros(B, S, dtype=torch.long)
    completion_ids_BT = torch.full((B, T), pad_token_id)
    mask_BT = torch.zeros(B, T)
    sampling_logprobs_BT = torch.zeros(B, T)
    for row, (sample, length) in enumerate(zip(samples, lens, strict=True)):
        ids = [*sample.prompt_ids, *sample.completion_ids[:length]]
        first = 0 if padding_side == "right" else S - T - len(sample.prompt_ids)
        input_ids_BS[row, first : first + len(ids)] = torch.tensor(ids)
        attention_mask_BS[row, first : first + len(ids)] = 1
        completion_ids_BT[row, :length] = torch.tensor(sample.completion_ids[:length])
        sampled = torch.tensor(_completion_mask(sample)[:length]).bool()
        mask_BT[row, :length] = sampled.float()
        logprobs = torch.tensor(sample.sampling_logprobs[:length])
        sampling_logprobs_BT[row, :length] = torch.where(sampled, logprobs, 0.0)

    advantages = [sample.advantage for sample in samples if sample.advantage is not None]
    if advantages and len(advantages) < B:
        raise ValueError(f"{len(advantages)} of {B} samples have an advantage; give it to all or to none")
    return Batch(
        input_ids_BS=input_ids_BS,
        attention_mask_BS=attention_mask_BS,
        completion_ids_BT=completion_ids_BT,
        mask_BT=mask_BT,
        prompt_lens_B=torch.tensor([len(sample.prompt_ids) for sample in samples]),
        sampling_logprobs_BT=sampling_logprobs_BT,
        rewards_B=torch.tensor([sample.reward for sample in samples], dtype=torch.float32),
        group_ids_B=torch.tensor([sample.group_id for sample in samples]),
        advantages_B=torch.tensor(advantages, dtype=torch.float32) if advantages else None,
        num_truncated_tokens_B=torch.tensor(
            [len(sample.completion_ids) - length for sample, length in zip(samples, lens, strict=True)]
        ),
        kept_ids=_gather_kept_ids(samples, lens, T),
        media_BX=stack([sample.media for sample in samples]),
    )


def _bucket(length: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds `length`, or `length` where none does."""
    return min((bucket for bucket in buckets if bucket >= length), default=length)


def _kept_lengths(
    samples: Sequence[TrainSample],
    sequence_buckets: Sequence[int],
    completion_buckets: Sequence[int],
    max_sequence_length: int | None,
) -> list[int]:
    """Return how many completion tokens each row keeps."""
    sequence_limit = min(max(sequence_buckets, default=math.inf), max_sequence_length or math.inf)
    completion_limit = max(completion_buckets, default=math.inf)
    kept = []
    for row, sample in enumerate(samples):
        limit = min(sequence_limit - len(sample.prompt_ids), completion_limit)
        if limit < 1:
            raise ValueError(
                f"row {row}: the prompt has {len(sample.prompt_ids)} tokens and sequences at most "
                f"{sequence_limit}, which leaves none for a completion; filter such prompts out first"
            )
        kept.append(int(min(limit, len(sample.completion_ids))))
    return kept


def _gather_kept_ids(samples: Sequence[TrainSample], lens: Sequence[int], num_tokens: int) -> KeptIds | None:
    """Return the kept ids of sampled tokens; None where no sample has any."""
    if all(sample.kept_ids is None for sample in samples):
        return None
    rows = []
    for sample, length in zip(samples, lens, strict=True):
        kept_ids = () if sample.kept_ids is None else sample.kept_ids[:length]
        sampled = _completion_mask(sample)
        rows.append([ids if sampled[token] else () for token, ids in enumerate(kept_ids)])
    return gather_kept_ids(rows, num_tokens)


def _completion_mask(sample: TrainSample) -> tuple[int, ...]:
    return (1,) * len(sample.completion_ids) if sample.completion_mask is None else sample.completion_mask


def _validate(row: int, sample: TrainSample) -> None:
    if not sample.prompt_ids or not sample.completion_ids:
        raise ValueError(f"row {row}: prompt and completion need at least one token each")
    num = len(sample.completion_ids)
    if len(sample.sampling_logprobs) != num:
        raise ValueError(f"row {row}: {len(sample.sampling_logprobs)} log-probabilities for {num} tokens")
    mask = _completion_mask(sample)
    if len(mask) != num or not set(mask) <= {0, 1}:
        raise ValueError(f"row {row}: completion_mask needs {num} entries of 0 or 1, got {mask}")
    for token, (logprob, sampled) in enumerate(zip(sample.sampling_logprobs, mask, strict=True)):
        if sampled and not math.isfinite(logprob):
            raise ValueError(f"row {row}, token {token}: sampling log-probability is {logprob}")
    if sample.kept_ids is not None:
        _validate_kept_ids(row, sample, sample.kept_ids, mask)
    if not math.isfinite(sample.reward):
        raise ValueError(f"row {row}: reward is {sample.reward}; count a failed verifier, do not train on it")


def _validate_kept_ids(
    row: int, sample: TrainSample, kept_ids: Sequence[Sequence[int]], mask: Sequence[int]
) -> None:
    if len(kept_ids) != len(mask):
        raise ValueError(f"row {row}: kept ids of {len(kept_ids)} places for {len(mask)} tokens")
    for token, (sampled_id, kept, sampled) in enumerate(
        zip(sample.completion_ids, kept_ids, mask, strict=True)
    ):
        if sampled and sampled_id not in kept:
            raise ValueError(
                f"row {row}, token {token}: id {sampled_id} is not among the {len(kept)} ids that the filter kept "
                "there: it cannot have been sampled from them"
            )
