"""Tokens that were drawn from a filtered distribution are scored under it, in every form and after every transform."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.filters import mask_rows
from refrl.algorithms.kept_ids import KeptIds
from refrl.algorithms.microbatches import micro_batches_by_tokens
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.packing import compute_logprobs_packed, pack_batch

V, D = 37, 6
SHAPES = [(3, 2), (1, 6), (4, 1), (2, 4)]
ENVIRONMENT = {(1, 2), (1, 3)}
"""Tokens that nothing sampled."""


def make_samples() -> list[TrainSample]:
    """Rows of unequal length; each token keeps its own id and up to 20 others, and the last row is unfiltered."""
    generator = torch.Generator().manual_seed(0)
    samples = []
    for row, (prompt, completion) in enumerate(SHAPES):
        ids = torch.randint(V, (prompt + completion,), generator=generator).tolist()
        kept = []
        for token, sampled_id in enumerate(ids[prompt:]):
            others = torch.randperm(V, generator=generator)[: (7 * row + 5 * token) % 21].tolist()
            kept.append(tuple({sampled_id, *others}))
        samples.append(
            TrainSample(
                prompt_ids=tuple(ids[:prompt]),
                completion_ids=tuple(ids[prompt:]),
                sampling_logprobs=(-1.0,) * completion,
                reward=float(row),
                group_id=row,
                completion_mask=tuple(int((row, token) not in ENVIRONMENT) for token in range(completion)),
                kept_ids=tuple(kept) if row < 3 else None,
            )
        )
    return samples


def supports(batch: Batch) -> dict[tuple[float, int], set[int]]:
    """Read every recorded support back, by reward (which tells rows apart) and token."""
    assert batch.kept_ids is not None
    ids = batch.kept_ids.ids_M.tolist()
    found, start = {}, 0
    for reward, counts in zip(batch.rewards_B.tolist(), batch.kept_ids.counts_BT.tolist(), strict=True):
        for token, count in enumerate(counts):
            if count:
                found[reward, token] = set(ids[start : start + count])
            start += count
    assert start == len(ids)
    return found


def recorded(samples: list[TrainSample], num_tokens: int = 100) -> dict[tuple[float, int], set[int]]:
    return {
        (sample.reward, token): set(kept)
        for row, sample in enumerate(samples)
        for token, kept in enumerate((sample.kept_ids or ())[:num_tokens])
        if (row, token) not in ENVIRONMENT
    }


def test_a_batch_holds_the_kept_ids_of_sampled_tokens() -> None:
    samples = make_samples()
    assert supports(make_batch(samples, pad_token_id=0)) == recorded(samples)


def test_nothing_is_held_where_no_filter_was_on() -> None:
    samples = [replace(sample, kept_ids=None) for sample in make_samples()]
    batch = make_batch(samples, pad_token_id=0)
    assert batch.kept_ids is None
    assert batch.rows([1]).to("cpu").trimmed().kept_ids is None


def test_what_clamping_cuts_off_takes_its_kept_ids_with_it() -> None:
    samples = make_samples()
    assert supports(make_batch(samples, pad_token_id=0, completion_buckets=(3,))) == recorded(samples, 3)


TRANSFORMS: dict[str, tuple[Callable[[Batch], Batch], list[int]]] = {
    "slice": (lambda batch: batch.rows(slice(1, 3)), [1, 2]),
    "list": (lambda batch: batch.rows([2, 0]), [2, 0]),
    "tensor, trimmed": (lambda batch: batch.rows(torch.tensor([0, 2]), trim=True), [0, 2]),
    "rows of rows": (lambda batch: batch.rows([3, 1, 0]).rows([2, 1], trim=True), [0, 1]),
    "device": (lambda batch: batch.to("cpu"), [0, 1, 2, 3]),
    "masked rows": (lambda batch: mask_rows(batch, torch.tensor([1, 0, 0, 0])), [0, 1, 2, 3]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_kept_ids_follow_every_transform(name: str) -> None:
    samples = make_samples()
    transform, rows = TRANSFORMS[name]
    changed = transform(make_batch(samples, pad_token_id=0, sequence_buckets=(16,)))
    assert supports(changed) == {place: kept for place, kept in recorded(samples).items() if place[0] in rows}
    assert changed.kept_ids is not None
    assert changed.kept_ids.counts_BT.shape == changed.mask_BT.shape


def test_micro_batches_share_out_the_kept_ids() -> None:
    samples = make_samples()
    parts = micro_batches_by_tokens(make_batch(samples, pad_token_id=0), 16)
    assert len(parts) > 1
    found = [item for part in parts for item in supports(part).items()]
    assert len(found) == len(dict(found))
    assert dict(found) == recorded(samples)


@pytest.mark.parametrize(
    ("kept_ids", "message"),
    [
        (((4,), (9, 5)), r"row 1, token 1: id 8 is not among the 2 ids"),
        (((4,), ()), r"row 1, token 1: id 8 is not among the 0 ids"),
        (((4,),), r"row 1: kept ids of 1 places for 2 tokens"),
    ],
)
def test_an_id_that_was_not_kept_is_refused_by_row_and_token(
    kept_ids: tuple[tuple[int, ...], ...], message: str
) -> None:
    good = TrainSample((1,), (4, 8), (-1.0, -1.0), 0.0, 0, kept_ids=((4,), (8,)))
    with pytest.raises(ValueError, match=message):
        make_batch([good, replace(good, kept_ids=kept_ids)], pad_token_id=0)


Score = Callable[[Batch, Tensor, Tensor], tuple[Tensor, Tensor]]


def padded(batch: Batch, hidden_BSD: Tensor, head_VD: Tensor) -> tuple[Tensor, Tensor]:
    return compute_logprobs(
        hidden_BSD @ head_VD.T,
        batch.completion_ids_BT,
        batch.prompt_lens_B,
        temperature=0.7,
        mask_BT=batch.mask_BT,
        kept_ids=batch.kept_ids,
    )


def packed(batch: Batch, hidden_BSD: Tensor, head_VD: Tensor) -> tuple[Tensor, Tensor]:
    laid_out = pack_batch(batch, pack_length=int(batch.attention_mask_BS.sum()), pad_token_id=0)
    order = torch.argsort(laid_out.first_B).tolist()
    hidden_SD = torch.cat([hidden_BSD[row][batch.attention_mask_BS[row].bool()] for row in order])
    return compute_logprobs_packed(
        (hidden_SD @ head_VD.T).unsqueeze(0),
        laid_out,
        batch.completion_ids_BT,
        temperature=0.7,
        mask_BT=batch.mask_BT,
        kept_ids=batch.kept_ids,
    )


def chunked(vocab_chunk: int, row_chunk: int, keep_bytes: int) -> Score:
    def run(batch: Batch, hidden_BSD: Tensor, head_VD: Tensor) -> tuple[Tensor, Tensor]:
        return compute_logprobs_chunked(
            hidden_BSD,
            head_VD,
            batch.completion_ids_BT,
            batch.prompt_lens_B,
            temperature=0.7,
            mask_BT=batch.mask_BT,
            kept_ids=batch.kept_ids,
            vocab_chunk=vocab_chunk,
            row_chunk=row_chunk,
            keep_bytes=keep_bytes,
        )

    return run


FORMS: dict[str, Score] = {
    "padded": padded,
    "packed": packed,
    "one tile": chunked(1000, 1000, 2**20),
    "single entries": chunked(1, 1, 0),
    "tiles that divide nothing": chunked(10, 4, 900),
}


def oracle(batch: Batch, hidden_BSD: Tensor, head_VD: Tensor) -> tuple[Tensor, Tensor]:
    """Each token by autograd of log softmax over the logits of its kept ids alone."""
    known = supports(batch)
    logprobs_BT, entropy_BT = (torch.zeros(batch.mask_BT.shape, dtype=torch.float64) for _ in range(2))
    for row, token in torch.nonzero(batch.mask_BT).tolist():
        kept = sorted(known.get((float(batch.rewards_B[row]), token), range(V)))
        position = int(batch.prompt_lens_B[row]) + token - 1
        logprobs_K = (head_VD[kept] @ hidden_BSD[row, position] / 0.7).log_softmax(0)
        place = torch.zeros_like(logprobs_BT)
        place[row, token] = 1
        sampled = kept.index(int(batch.completion_ids_BT[row, token]))
        logprobs_BT = logprobs_BT + place * logprobs_K[sampled]
        entropy_BT = entropy_BT - place * (logprobs_K.exp() * logprobs_K).sum()
    return logprobs_BT, entropy_BT


def values_and_gradients(score: Score, batch: Batch, scale: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (*batch.input_ids_BS.shape, D)
    hidden = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    head = (scale * torch.randn(V, D, generator=generator, dtype=torch.float64)).requires_grad_()
    logprobs_BT, entropy_BT = score(batch, hidden, head)
    weights_BT = torch.linspace(-1, 2, logprobs_BT.numel(), dtype=torch.float64).view_as(logprobs_BT)
    total = (weights_BT * logprobs_BT + weights_BT.flip(1) * entropy_BT).sum()
    return [logprobs_BT.detach(), entropy_BT.detach(), *torch.autograd.grad(total, (hidden, head))]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_every_form_is_the_log_softmax_over_the_kept_ids(name: str, scale: float) -> None:
    """In value, entropy and gradient; also where the policy now prefers an id that was not kept by hundreds of nats."""
    batch = make_batch(make_samples(), pad_token_id=0)
    expected = values_and_gradients(oracle, batch, scale)
    for value, wanted in zip(values_and_gradients(FORMS[name], batch, scale), expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kept", [(1, 3), (1, 3, 4), (1,)])
def test_closed_form_of_hand_made_logits_at_a_temperature(kept: tuple[int, ...]) -> None:
    """Weights 0.1, 0.4, 0.05, 0.25, 0.2 at temperature 0.7."""
    weights = [0.1, 0.4, 0.05, 0.25, 0.2]
    logits = torch.tensor([[[0.7 * math.log(weight) + 5 for weight in weights]]], dtype=torch.float64)
    recorded_ids = KeptIds(torch.tensor(kept, dtype=torch.int32), torch.tensor([[len(kept)]]))
    logprobs, entropy = compute_logprobs(
        logits, torch.tensor([[1]]), torch.tensor([1]), temperature=0.7, kept_ids=recorded_ids
    )
    shares = [weights[token] / sum(weights[other] for other in kept) for token in kept]
    assert float(logprobs) == pytest.approx(math.log(shares[0]), abs=1e-12)
    assert float(entropy) == pytest.approx(-sum(share * math.log(share) for share in shares), abs=1e-12)


@pytest.mark.parametrize("name", FORMS)
def test_logits_that_were_not_kept_change_nothing(name: str) -> None:
    """Neither a value nor, were they infinite, the gradient of another token."""
    samples = [replace(sample, kept_ids=sample.kept_ids or ((0,),)) for sample in make_samples()[:3]]
    outside = next(id for id in range(V) if not any(id in kept for kept in recorded(samples).values()))
    batch = make_batch(samples, pad_token_id=0)
    hidden = torch.ones(*batch.input_ids_BS.shape, D, dtype=torch.float64)
    head = torch.linspace(-1, 1, V * D, dtype=torch.float64).view(V, D)
    before = FORMS[name](batch, hidden, head)
    head[outside] = 1e4
    for value, wanted in zip(FORMS[name](batch, hidden, head), before, strict=True):
        assert torch.equal(value, wanted)


@pytest.mark.parametrize("name", FORMS)
def test_a_kept_id_outside_the_vocabulary_is_named(name: str) -> None:
    samples = make_samples()
    broken = replace(samples[2], kept_ids=(tuple({*(samples[2].kept_ids or ((),))[0], V}),))
    batch = make_batch([broken], pad_token_id=0)
    with pytest.raises(ValueError, match=f"token id {V} is outside the vocabulary of {V}"):
        values_and_gradients(FORMS[name], batch, 1.0)
