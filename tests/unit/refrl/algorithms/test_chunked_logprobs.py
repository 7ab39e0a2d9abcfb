"""Chunked log-probabilities equal the plain ones in value and gradient, whatever the tiles."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.ops import compute_logprobs

B, S, T, V, D = 3, 9, 5, 37, 6
PROMPT_LENS = torch.tensor([1, 4, 2])
CHUNKS = [(1, 1), (10, 4), (37, 15), (36, 14), (1000, 1000), (5, 1000), (1000, 2)]


def random_case(
    dtype: torch.dtype, seed: int = 0, scale: float = 2.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(B, S, D, generator=generator, dtype=torch.float64)
    head = scale * torch.randn(V, D, generator=generator, dtype=torch.float64)
    ids = torch.randint(V, (B, T), generator=generator)
    ids[0, :3] = torch.tensor([0, V - 1, 9])
    mask = (torch.rand(B, T, generator=generator) > 0.3).double()
    mask[2] = 0
    return hidden.to(dtype), head.to(dtype), ids, mask


def values_and_gradients(
    score: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], hidden: Tensor, head: Tensor, uses: str
) -> list[Tensor]:
    hidden, head = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    logprobs, entropy = score(hidden, head)
    weights = torch.linspace(-1, 2, B * T, dtype=logprobs.dtype).view(B, T)
    total = torch.zeros((), dtype=logprobs.dtype)
    if "logprobs" in uses:
        total = total + (weights * logprobs).sum()
    if "entropy" in uses:
        total = total + (weights.flip(1) * entropy).sum()
    gradients = torch.autograd.grad(total, (hidden, head))
    return [logprobs.detach(), entropy.detach(), *gradients]


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("keep_bytes", [0, 1000, 2**30])
@pytest.mark.parametrize("uses", ["logprobs", "entropy", "logprobs and entropy"])
def test_equal_to_the_plain_form(chunks: tuple[int, int], keep_bytes: int, uses: str) -> None:
    hidden, head, ids, mask = random_case(torch.float64)
    plain = values_and_gradients(
        lambda h, w: compute_logprobs(h @ w.T, ids, PROMPT_LENS, temperature=0.7, mask_BT=mask),
        hidden,
        head,
        uses,
    )
    chunked = values_and_gradients(
        lambda h, w: compute_logprobs_chunked(
            h,
            w,
            ids,
            PROMPT_LENS,
            temperature=0.7,
            mask_BT=mask,
            vocab_chunk=chunks[0],
            row_chunk=chunks[1],
            keep_bytes=keep_bytes,
        ),
        hidden,
        head,
        uses,
    )
    for expected, value in zip(plain, chunked, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_equal_in_the_models_precision(dtype: torch.dtype, tolerance: float) -> None:
    hidden, head, ids, mask = random_case(dtype, 1)
    options = {"temperature": 1.3, "mask_BT": mask}
    uses = "logprobs and entropy"
    plain = values_and_gradients(
        lambda h, w: compute_logprobs(h @ w.T, ids, PROMPT_LENS, **options), hidden, head, uses
    )
    chunked = values_and_gradients(
        lambda h, w: compute_logprobs_chunked(h, w, ids, PROMPT_LENS, vocab_chunk=8, row_chunk=4, **options),
        hidden,
        head,
        uses,
    )
    for expected, value in zip(plain, chunked, strict=True):
        assert value.dtype == expected.dtype
        error = float((value.double() - expected.double()).abs().max() / expected.double().abs().max())
        assert error < tolerance
    assert torch.equal(plain[0] == 0, chunked[0] == 0)


@pytest.mark.parametrize("chunk", [4, 10, 1000])
def test_peaked_logits_meet_no_phantom_entries(chunk: int) -> None:
    """A vocabulary padded to the block with zeros would add exp(0) entries where every real logit is very low."""
    hidden = torch.ones(B, S, D, dtype=torch.float64)
    head = torch.full((V, D), -200.0, dtype=torch.float64)
    head[3] = -150.0
    ids = torch.full((B, T), 3)
    logprobs, entropy = compute_logprobs_chunked(
        hidden, head, ids, PROMPT_LENS, vocab_chunk=chunk, row_chunk=4
    )
    assert logprobs.abs().max() < 1e-12
    assert entropy.abs().max() < 1e-12


def test_gradients_are_those_of_finite_differences() -> None:
    hidden, head, ids, mask = random_case(torch.float64, 2, 0.5)
    assert torch.autograd.gradcheck(
        lambda h, w: compute_logprobs_chunked(
            h, w, ids, PROMPT_LENS, temperature=0.6, mask_BT=mask, vocab_chunk=8, row_chunk=3
        ),
        (hidden.requires_grad_(), head.requires_grad_()),
    )


def test_masked_positions_are_not_read() -> None:
    hidden, head, ids, mask = random_case(torch.float64, 3)
    expected, _ = compute_logprobs_chunked(hidden, head, ids, PROMPT_LENS, mask_BT=mask)
    dirty = torch.full_like(hidden, math.nan)
    for row, t in torch.nonzero(mask).tolist():
        dirty[row, PROMPT_LENS[row] + t - 1] = hidden[row, PROMPT_LENS[row] + t - 1]
    dirty.requires_grad_()
    head.requires_grad_()
    logprobs, entropy = compute_logprobs_chunked(dirty, head, ids, PROMPT_LENS, mask_BT=mask)
    assert torch.equal(logprobs, expected)
    (logprobs.sum() + entropy.sum()).backward()
    assert dirty.grad is not None
    assert head.grad is not None
    assert dirty.grad.isfinite().all()
    assert head.grad.isfinite().all()


@pytest.mark.parametrize("frozen", ["hidden", "head"])
def test_a_frozen_side_gets_no_gradient(frozen: str) -> None:
    hidden, head, ids, mask = random_case(torch.float64, 4)
    tensors = {"hidden": hidden, "head": head}
    trained = tensors["head" if frozen == "hidden" else "hidden"].requires_grad_()
    logprobs, _ = compute_logprobs_chunked(hidden, head, ids, PROMPT_LENS, mask_BT=mask, vocab_chunk=8)
    logprobs.sum().backward()
    assert tensors[frozen].grad is None
    assert trained.grad is not None
    assert trained.grad.abs().sum() > 0


def test_a_fully_masked_batch_gives_zeros() -> None:
    hidden, head, ids, mask = random_case(torch.float32)
    logprobs, entropy = compute_logprobs_chunked(
        hidden.requires_grad_(), head, ids, PROMPT_LENS, mask_BT=0 * mask
    )
    (logprobs.sum() + entropy.sum()).backward()
    assert (logprobs == 0).all()
    assert hidden.grad is not None
    assert (hidden.grad == 0).all()


def test_backward_can_run_twice() -> None:
    hidden, head, ids, _ = random_case(torch.float64)
    hidden.requires_grad_()
    logprobs, _ = compute_logprobs_chunked(hidden, head, ids, PROMPT_LENS, vocab_chunk=8, keep_bytes=500)
    first = torch.autograd.grad(logprobs.sum(), hidden, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(logprobs.sum(), hidden)[0], first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_chunk": 0}, "vocab_chunk=0"),
        ({"row_chunk": -1}, "row_chunk=-1"),
        ({"keep_bytes": -1}, "keep_bytes=-1"),
        ({"temperature": 0.0}, "temperature"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], message: str) -> None:
    hidden, head, ids, _ = random_case(torch.float32)
    with pytest.raises(ValueError, match=message):
        compute_logprobs_chunked(hidden, head, ids, PROMPT_LENS, **options)  # type: ignore[arg-type]


def test_bounds_are_those_of_the_plain_form() -> None:
    hidden, head, ids, _ = random_case(torch.float32)
    with pytest.raises(ValueError, match="row 1"):
        compute_logprobs_chunked(hidden, head, ids, torch.tensor([1, 6, 1]))
    with pytest.raises(ValueError, match="width"):
        compute_logprobs_chunked(hidden, head[:, :-1], ids, PROMPT_LENS)
    ids[0, 0] = V
    with pytest.raises(ValueError, match="outside the vocabulary"):
        compute_logprobs_chunked(hidden, head, ids, PROMPT_LENS)
