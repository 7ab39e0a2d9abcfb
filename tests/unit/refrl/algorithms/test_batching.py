"""Batches: what stands where, masks by length, buckets, clamping that is reported, padding on either side."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch

from refrl.algorithms.batching import Batch, TrainSample, make_batch

PAD = 7


def sample(prompt: int, completion: int, *, base: int = 100, **changes: object) -> TrainSample:
    """A row whose ids tell where they come from; its second completion token equals the padding id."""
    completion_ids = [base + 50 + t for t in range(completion)]
    if completion > 1:
        completion_ids[1] = PAD
    made = TrainSample(
        prompt_ids=tuple(base + t for t in range(prompt)),
        completion_ids=tuple(completion_ids),
        sampling_logprobs=tuple(-0.5 - t for t in range(completion)),
        reward=float(base),
        group_id=base % 3,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


SAMPLES = [sample(3, 2), sample(1, 5, base=200), sample(4, 1, base=300)]
sides = pytest.mark.parametrize("side", ["right", "left"])


def recovered(batch: Batch, row: int) -> tuple[list[int], list[int]]:
    """Read a row's prompt and completion back from the attention mask and the true start."""
    ids = batch.input_ids_BS[row][batch.attention_mask_BS[row].bool()].tolist()
    prompt = int(batch.prompt_lens_B[row])
    return ids[:prompt], ids[prompt:]


@sides
def test_every_row_can_be_read_back(side: Literal["right", "left"]) -> None:
    batch = make_batch(SAMPLES, pad_token_id=PAD, padding_side=side)
    for row, made in enumerate(SAMPLES):
        assert recovered(batch, row) == (list(made.prompt_ids), list(made.completion_ids))
        length = len(made.completion_ids)
        start = int(batch.completion_starts_B[row])
        for t, token in enumerate(made.completion_ids):
            assert int(batch.input_ids_BS[row, start + t]) == int(batch.completion_ids_BT[row, t]) == token
        assert batch.sampling_logprobs_BT[row, :length].tolist() == pytest.approx(made.sampling_logprobs)
        assert batch.mask_BT[row].tolist() == [1.0] * length + [0.0] * (5 - length)
        assert (batch.sampling_logprobs_BT[row, length:] == 0).all()
    assert batch.completion_lens_B.tolist() == [2, 5, 1]
    assert batch.rewards_B.tolist() == [100, 200, 300]
    assert batch.group_ids_B.tolist() == [1, 2, 0]
    assert float(batch.num_valid_tokens) == 8
    assert float(batch.num_valid_seqs) == 3


def test_right_padding_is_left_aligned_and_left_padding_starts_completions_in_one_column() -> None:
    right = make_batch(SAMPLES, pad_token_id=PAD)
    assert right.attention_mask_BS[:, 0].tolist() == [1, 1, 1]
    assert right.completion_starts_B.tolist() == right.prompt_lens_B.tolist() == [3, 1, 4]
    left = make_batch(SAMPLES, pad_token_id=PAD, padding_side="left", sequence_buckets=(12,))
    assert left.completion_starts_B.tolist() == [7, 7, 7]
    assert left.position_ids_BS[1].tolist() == [0] * 7 + [1, 2, 3, 4, 5]


@sides
def test_every_completion_is_within_the_sequence(side: Literal["right", "left"]) -> None:
    batch = make_batch(SAMPLES, pad_token_id=PAD, padding_side=side)
    T = batch.completion_ids_BT.shape[1]
    assert (batch.completion_starts_B + T <= batch.input_ids_BS.shape[1]).all()


def test_the_mask_does_not_ask_which_id_pads() -> None:
    masks = [make_batch(SAMPLES, pad_token_id=pad).mask_BT for pad in (PAD, 0, 151, 250)]
    assert all(torch.equal(mask, masks[0]) for mask in masks)


def test_tokens_that_the_environment_wrote_are_masked_and_read_nothing() -> None:
    row = sample(2, 4, completion_mask=(1, 0, 0, 1), sampling_logprobs=(-1.0, math.nan, 1e4, -2.0))
    batch = make_batch([row, SAMPLES[1]], pad_token_id=PAD)
    assert batch.mask_BT[0].tolist() == [1, 0, 0, 1, 0]
    assert batch.sampling_logprobs_BT[0].tolist() == [-1, 0, 0, -2, 0]
    assert int(batch.completion_lens_B[0]) == 4


@pytest.mark.parametrize(
    ("sequence_buckets", "completion_buckets", "shape"),
    [
        ((), (), (9, 5)),
        ((8, 16, 32), (4, 8), (16, 8)),
        ((12,), (), (12, 5)),
        ((), (5,), (9, 5)),
        ((9,), (5,), (9, 5)),
        ((9, 16), (5, 8), (9, 5)),
    ],
)
def test_buckets_round_up(
    sequence_buckets: tuple[int, ...], completion_buckets: tuple[int, ...], shape: tuple[int, int]
) -> None:
    batch = make_batch(
        SAMPLES, pad_token_id=PAD, sequence_buckets=sequence_buckets, completion_buckets=completion_buckets
    )
    assert (batch.input_ids_BS.shape[1], batch.completion_ids_BT.shape[1]) == shape
    assert batch.num_truncated_tokens_B is not None
    assert batch.num_truncated_tokens_B.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"completion_buckets": (2, 3)}, [2, 3, 1]),
        ({"max_sequence_length": 5}, [2, 4, 1]),
        ({"sequence_buckets": (4, 5)}, [2, 4, 1]),
        ({"sequence_buckets": (5,), "completion_buckets": (1,), "max_sequence_length": 100}, [1, 1, 1]),
    ],
)
def test_what_clamping_cuts_is_reported_and_the_rest_stays_aligned(
    options: dict[str, object], kept: list[int]
) -> None:
    batch = make_batch(SAMPLES, pad_token_id=PAD, **options)  # type: ignore[arg-type]
    assert batch.num_truncated_tokens_B is not None
    assert batch.num_truncated_tokens_B.tolist() == [
        len(made.completion_ids) - length for made, length in zip(SAMPLES, kept, strict=True)
    ]
    assert batch.mask_BT.sum(1).tolist() == kept
    for row, (made, length) in enumerate(zip(SAMPLES, kept, strict=True)):
        assert recovered(batch, row)[1] == list(made.completion_ids[:length])
        assert batch.sampling_logprobs_BT[row, :length].tolist() == pytest.approx(
            made.sampling_logprobs[:length]
        )


def test_rows_that_fit_alone_are_not_cut_together() -> None:
    rows = [sample(60, 10), sample(10, 60, base=200)]
    batch = make_batch(rows, pad_token_id=PAD, sequence_buckets=(64, 77), max_sequence_length=77)
    assert batch.mask_BT.sum(1).tolist() == [10, 60]
    assert batch.input_ids_BS.shape[1] == 120


@pytest.mark.parametrize("limit", [{"max_sequence_length": 4}, {"sequence_buckets": (2, 4)}])
def test_a_prompt_that_does_not_fit_is_named(limit: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"row 2: the prompt has 4 tokens"):
        make_batch(SAMPLES, pad_token_id=PAD, **limit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_ids": ()}, "at least one token"),
        ({"completion_ids": (), "sampling_logprobs": ()}, "at least one token"),
        ({"sampling_logprobs": (-1.0,)}, "1 log-probabilities for 2 tokens"),
        ({"sampling_logprobs": (-1.0, math.nan)}, "token 1: sampling log-probability is nan"),
        ({"sampling_logprobs": (-math.inf, -1.0)}, "token 0: sampling log-probability is -inf"),
        ({"completion_mask": (1,)}, "completion_mask needs 2 entries"),
        ({"completion_mask": ()}, "completion_mask needs 2 entries"),
        ({"completion_mask": (1, 2)}, "completion_mask needs 2 entries"),
        ({"reward": math.nan}, "reward is nan"),
    ],
)
def test_a_bad_row_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"row 1.*{message}"):
        make_batch([SAMPLES[0], replace(SAMPLES[0], **changes)], pad_token_id=PAD)  # type: ignore[arg-type]


def test_advantages_are_all_or_none() -> None:
    rows = [replace(SAMPLES[0], advantage=0.5), replace(SAMPLES[1], advantage=0.0)]
    advantages_B = make_batch(rows, pad_token_id=PAD).advantages_B
    assert advantages_B is not None
    assert advantages_B.tolist() == [0.5, 0]
    assert make_batch(SAMPLES, pad_token_id=PAD).advantages_B is None
    with pytest.raises(ValueError, match="2 of 3 samples"):
        make_batch([*rows, SAMPLES[2]], pad_token_id=PAD)


def test_an_empty_batch_and_an_unknown_side_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        make_batch([], pad_token_id=PAD)
    with pytest.raises(ValueError, match="middle"):
        make_batch(SAMPLES, pad_token_id=PAD, padding_side="middle")  # type: ignore[arg-type]


@sides
@pytest.mark.parametrize("index", [[2, 0], slice(1, 3), torch.tensor([1])])
@pytest.mark.parametrize("trim", [False, True])
def test_chosen_rows_equal_a_batch_made_of_them(
    side: Literal["right", "left"], index: list[int] | slice | torch.Tensor, trim: bool
) -> None:
    whole = make_batch(SAMPLES, pad_token_id=PAD, padding_side=side, sequence_buckets=(16,))
    order = torch.arange(3)[index].tolist()
    chosen = whole.rows(index, trim=trim)
    alone = make_batch([SAMPLES[row] for row in order], pad_token_id=PAD, padding_side=side)
    assert chosen.num_rows == alone.num_rows == len(order)
    for number in range(len(order)):
        assert recovered(chosen, number) == recovered(alone, number)
    assert torch.equal(chosen.rewards_B, alone.rewards_B)
    if trim:
        assert torch.equal(chosen.input_ids_BS, alone.input_ids_BS)
        assert torch.equal(chosen.mask_BT, alone.mask_BT)
        assert torch.equal(chosen.completion_starts_B, alone.completion_starts_B)


def test_rows_carry_what_was_added_later() -> None:
    batch = make_batch(SAMPLES, pad_token_id=PAD)
    batch.old_logprobs_BT = torch.arange(15.0).view(3, 5)
    assert batch.rows([2, 1]).old_logprobs_BT.tolist() == [list(range(10, 15)), list(range(5, 10))]
    assert batch.rows([2], trim=True).old_logprobs_BT.tolist() == [[10]]
    assert batch.rows([0]).ref_logprobs_BT is None
