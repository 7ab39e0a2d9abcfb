"""Log-probabilities and entropies against float64 loops; alignment, temperature, bounds and padding."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from refrl.algorithms.ops import compute_logprobs

PROMPT_LENS = (1, 4, 2)
B, S, T, V = 3, 9, 5, 11


def random_case(seed: int = 0, scale: float = 4.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(B, S, V, generator=generator, dtype=torch.float64)
    return logits, torch.randint(V, (B, T), generator=generator), torch.tensor(PROMPT_LENS)


def oracle(logits: Tensor, ids: Tensor, temperature: float) -> tuple[list[list[float]], list[list[float]]]:
    logprobs, entropies = [], []
    for row in range(B):
        logprobs.append([])
        entropies.append([])
        for t in range(T):
            scores = [value / temperature for value in logits[row, PROMPT_LENS[row] + t - 1].tolist()]
            largest = max(scores)
            normaliser = largest + math.log(math.fsum(math.exp(score - largest) for score in scores))
            every = [score - normaliser for score in scores]
            logprobs[-1].append(every[int(ids[row, t])])
            entropies[-1].append(-math.fsum(math.exp(value) * value for value in every))
    return logprobs, entropies


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("scale", [0.1, 4.0, 300.0])
def test_values_are_those_of_the_loops(temperature: float, scale: float) -> None:
    logits, ids, prompt_lens = random_case(1, scale)
    logprobs, entropies = compute_logprobs(logits, ids, prompt_lens, temperature=temperature)
    expected_logprobs, expected_entropies = oracle(logits, ids, temperature)
    torch.testing.assert_close(
        logprobs, torch.tensor(expected_logprobs, dtype=torch.float64), rtol=1e-12, atol=1e-12
    )
    torch.testing.assert_close(
        entropies, torch.tensor(expected_entropies, dtype=torch.float64), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_scored_in_float32(dtype: torch.dtype) -> None:
    logits, ids, prompt_lens = random_case(2)
    low = logits.to(dtype)
    logprobs, entropies = compute_logprobs(low, ids, prompt_lens, temperature=0.7)
    exact, exact_entropies = compute_logprobs(low.double(), ids, prompt_lens, temperature=0.7)
    assert logprobs.dtype == entropies.dtype == torch.float32
    torch.testing.assert_close(logprobs.double(), exact, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(entropies.double(), exact_entropies, rtol=1e-6, atol=1e-5)


def test_a_position_coded_model_is_certain_only_when_read_at_the_right_place() -> None:
    logits = torch.full((B, S, 64), -100.0)
    for row in range(B):
        for position in range(S):
            logits[row, position, 20 * row + position + 1] = 100.0
    starts = torch.tensor(PROMPT_LENS)
    ids = torch.tensor([[20 * row + PROMPT_LENS[row] + t for t in range(T)] for row in range(B)])
    logprobs, entropies = compute_logprobs(logits, ids, starts)
    assert (logprobs == 0).all()
    assert (entropies.abs() < 1e-30).all()
    assert (compute_logprobs(logits, ids, starts.roll(1))[0] < -100).any()


def test_uniform_logits_have_entropy_log_v() -> None:
    _, entropies = compute_logprobs(torch.zeros(B, S, V), torch.zeros(B, T).long(), torch.tensor(PROMPT_LENS))
    assert entropies.flatten().tolist() == pytest.approx([math.log(V)] * B * T)


def test_a_token_of_probability_zero_leaves_entropy_and_gradient_finite() -> None:
    logits, ids, prompt_lens = random_case(3)
    logits[:, :, 5] = -math.inf
    ids[ids == 5] = 4
    logits.requires_grad_()
    logprobs, entropies = compute_logprobs(logits, ids, prompt_lens)
    (logprobs.sum() + 3 * entropies.sum()).backward()
    assert entropies.isfinite().all()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, :, 5] == 0).all()


def test_gradients_are_those_of_finite_differences() -> None:
    logits, ids, prompt_lens = random_case(4, 1.0)
    mask = (torch.arange(B * T).view(B, T) % 4 != 1).double()
    assert torch.autograd.gradcheck(
        lambda values: compute_logprobs(values, ids, prompt_lens, temperature=0.8, mask_BT=mask),
        logits.requires_grad_(),
    )


@pytest.mark.parametrize("dirt", [math.nan, math.inf, 1e4])
def test_masked_positions_are_not_read_and_get_no_gradient(dirt: float) -> None:
    logits, ids, prompt_lens = random_case(5)
    mask = torch.ones(B, T)
    mask[0, 3:] = mask[1, 0] = mask[2] = 0
    clean, clean_entropy = compute_logprobs(logits, ids, prompt_lens, mask_BT=mask)
    dirty = torch.full_like(logits, dirt)
    for row, t in torch.nonzero(mask).tolist():
        dirty[row, PROMPT_LENS[row] + t - 1] = logits[row, PROMPT_LENS[row] + t - 1]
    ids[2] = 10**6
    dirty.requires_grad_()
    logprobs, entropy = compute_logprobs(dirty, ids, prompt_lens, mask_BT=mask)
    assert torch.equal(logprobs, clean)
    assert torch.equal(entropy, clean_entropy)
    assert (logprobs[mask == 0] == 0).all()
    assert (entropy[mask == 0] == 0).all()
    (logprobs.sum() + entropy.sum()).backward()
    assert dirty.grad is not None
    touched = {(row, position) for row, position, _ in torch.nonzero(dirty.grad).tolist()}
    assert touched == {(row, PROMPT_LENS[row] + t - 1) for row, t in torch.nonzero(mask).tolist()}


@pytest.mark.parametrize(
    ("prompt_lens", "message"),
    [
        ((1, 6, 2), "row 1: a prompt of 6 and 5 completion tokens pass the 9 positions"),
        ((1, 2, 0), "row 2"),
        ((-1, 1, 1), "row 0"),
    ],
)
def test_a_completion_that_leaves_its_row_is_named(prompt_lens: tuple[int, ...], message: str) -> None:
    logits, ids, _ = random_case()
    with pytest.raises(ValueError, match=message):
        compute_logprobs(logits, ids, torch.tensor(prompt_lens))


def test_the_last_position_that_fits_is_allowed() -> None:
    logits, ids, _ = random_case()
    assert compute_logprobs(logits, ids, torch.tensor([5, 5, 5]))[0].shape == (B, T)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        compute_logprobs(*random_case(), temperature=temperature)


@pytest.mark.parametrize("token", [-1, V])
def test_an_id_outside_the_vocabulary_is_named(token: int) -> None:
    logits, ids, prompt_lens = random_case()
    ids[1, 2] = token
    with pytest.raises(ValueError, match=f"token id {token} is outside the vocabulary of {V}"):
        compute_logprobs(logits, ids, prompt_lens)


def test_shapes_are_checked() -> None:
    logits, ids, prompt_lens = random_case()
    with pytest.raises(ValueError, match="rows must agree"):
        compute_logprobs(logits[:2], ids, prompt_lens)
    with pytest.raises(ValueError, match="one shape"):
        compute_logprobs(logits, ids, prompt_lens, mask_BT=torch.ones(B, T + 1))


def test_logits_are_left_as_they_were() -> None:
    logits, ids, prompt_lens = random_case(6)
    before = logits.clone()
    compute_logprobs(logits, ids, prompt_lens, temperature=0.5)
    assert torch.equal(logits, before)
