"""The sampler draws from exactly the distribution whose log-probabilities it reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from refrl.generation.base import SamplingParams
from refrl.generation.sampling import draw, filtered_logits, invert_cdf, row_uniforms

ERROR_RATE = 1e-4
"""Chance that a chi-square test below rejects a correct sampler; the seeds are fixed, so it is drawn once."""


def oracle_distribution(
    logits: list[float], temperature: float, top_k: int | None, top_p: float
) -> np.ndarray:
    """Temperature, then top-k with ties, then top-p, by sorting one row in plain Python."""
    scaled = [value / temperature for value in logits]
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    if top_k is not None and top_k < len(order):
        order = [token for token in order if scaled[token] >= scaled[order[top_k - 1]]]
    top = max(scaled)
    weights = {token: math.exp(scaled[token] - top) for token in order}
    total = sum(weights.values())
    kept: list[int] = []
    for token in order:
        kept.append(token)
        if sum(weights[other] for other in kept) / total >= top_p:
            break
    mass = sum(weights[token] for token in kept)
    return np.array([weights[token] / mass if token in kept else 0.0 for token in range(len(logits))])


def chi_square_p_value(ids: torch.Tensor, expected: np.ndarray) -> float:
    """P-value of the counts; tokens of probability zero must not occur at all."""
    counts = np.bincount(ids.numpy(), minlength=len(expected))
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    return float(stats.chisquare(counts[possible], expected[possible] * len(ids)).pvalue)


LOGITS = torch.linspace(-3, 2, 20).roll(7).tolist()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, None, 1.0), (0.5, None, 1.0), (1.7, None, 1.0), (1.0, 5, 1.0), (1.0, None, 0.6), (0.8, 9, 0.75)],
)
def test_counts_follow_the_exact_distribution(temperature: float, top_k: int | None, top_p: float) -> None:
    num_draws = 20_000
    params = SamplingParams(1, temperature=temperature, top_k=top_k, top_p=top_p)
    uniforms_B = row_uniforms(num_draws, 1, torch.Generator().manual_seed(11))[:, 0]
    ids_B, logprobs_B, _ = draw(torch.tensor(LOGITS).expand(num_draws, -1), uniforms_B, params)
    expected = oracle_distribution(LOGITS, temperature, top_k, top_p)
    assert chi_square_p_value(ids_B, expected) > ERROR_RATE
    np.testing.assert_allclose(logprobs_B.numpy(), np.log(expected[ids_B.numpy()]), atol=1e-5)


@pytest.mark.parametrize("wrong_temperature", [0.9, 1.1])
def test_the_chi_square_test_has_the_power_to_reject(wrong_temperature: float) -> None:
    uniforms_B = row_uniforms(20_000, 1, torch.Generator().manual_seed(11))[:, 0]
    params = SamplingParams(1, temperature=wrong_temperature)
    ids_B, _, _ = draw(torch.tensor(LOGITS).expand(20_000, -1), uniforms_B, params)
    assert chi_square_p_value(ids_B, oracle_distribution(LOGITS, 1.0, None, 1.0)) < ERROR_RATE


def test_successive_tokens_of_a_row_are_independent() -> None:
    uniforms_BT = row_uniforms(4000, 2, torch.Generator().manual_seed(3))
    table = np.histogram2d(*uniforms_BT.T.numpy(), bins=5, range=[[0, 1], [0, 1]])[0]
    assert stats.chi2_contingency(table).pvalue > ERROR_RATE


def test_rare_tokens_of_a_large_vocabulary_keep_their_probability() -> None:
    """Half of the mass lies on 300,007 tokens of 1.7e-6 each; a sum in half precision would lose them."""
    num_rare, num_draws = 300_007, 300
    probs_BV = torch.cat([torch.tensor([0.5]), torch.full((num_rare,), 0.5 / num_rare)])[None]
    uniforms = row_uniforms(num_draws, 1, torch.Generator().manual_seed(5))[:, 0]
    ids = torch.cat([invert_cdf(probs_BV, uniform[None]) for uniform in uniforms])
    rare = ids[ids > 0] - 1
    assert stats.binomtest(len(rare), num_draws, 0.5).pvalue > ERROR_RATE
    assert stats.kstest(rare.numpy() / num_rare, "uniform").pvalue > ERROR_RATE


def kept_ids(logits: list[float], **filters: float) -> list[int]:
    filtered = filtered_logits(torch.tensor([logits]), SamplingParams(1, **filters))
    return torch.isfinite(filtered[0]).nonzero().squeeze(-1).tolist()


@pytest.mark.parametrize(
    ("logits", "filters", "kept"),
    [
        ([1.0, 3.0, 2.0, 0.0], {"top_k": 2}, [1, 2]),
        ([1.0, 2.0, 2.0, 2.0], {"top_k": 2}, [1, 2, 3]),
        ([1.0, 2.0, 3.0], {"top_k": 3}, [0, 1, 2]),
        ([1.0, 2.0, 3.0], {"top_k": 1000}, [0, 1, 2]),
        ([1.0, 2.0, 3.0], {"top_k": 1}, [2]),
        ([math.log(0.5), math.log(0.3), math.log(0.2)], {"top_p": 0.49}, [0]),
        ([math.log(0.5), math.log(0.3), math.log(0.2)], {"top_p": 0.51}, [0, 1]),
        ([math.log(0.2), math.log(0.3), math.log(0.5)], {"top_p": 0.81}, [0, 1, 2]),
        ([1.0, 5.0, 2.0], {"top_p": 1e-12}, [1]),
        ([0.0, 0.0, 0.0, 0.0], {"top_p": 1e-12}, [0]),
        ([0.0, 0.0, 0.0, 0.0], {"top_p": 0.5}, [0, 1]),
        # top-p works on what top-k left: 0.6 of (0.5, 0.5) needs both, of the whole it would need only the first.
        ([math.log(0.4), math.log(0.4), math.log(0.2)], {"top_k": 2, "top_p": 0.6}, [0, 1]),
        ([float("-inf"), 0.0, 0.0], {"top_p": 0.9}, [1, 2]),
    ],
)
def test_filters_keep_the_documented_tokens(
    logits: list[float], filters: dict[str, float], kept: list[int]
) -> None:
    assert kept_ids(logits, **filters) == kept


def test_greedy_takes_the_lowest_id_of_a_tie_and_ignores_the_random_numbers() -> None:
    logits_BV = torch.tensor([[0.0, 2.0, 2.0, 1.0]]).repeat(3, 1)
    ids_B, logprobs_B, _ = draw(
        logits_BV, torch.tensor([0.0, 0.5, 0.999], dtype=torch.float64), SamplingParams(1, greedy=True)
    )
    assert ids_B.tolist() == [1, 1, 1]
    assert logprobs_B[0].item() == pytest.approx(2 - math.log(1 + 2 * math.e**2 + math.e), abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 0.25, 1 - 2**-53])
def test_a_token_of_probability_zero_is_never_taken(uniform: float) -> None:
    probs_BV = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    token = int(invert_cdf(probs_BV, torch.tensor([uniform], dtype=torch.float64)))
    assert probs_BV[0, token] > 0


def test_a_row_has_its_own_stream_which_the_number_of_tokens_does_not_change() -> None:
    short = row_uniforms(5, 3, torch.Generator().manual_seed(1))
    long = row_uniforms(8, 40, torch.Generator().manual_seed(1))
    assert torch.equal(long[:5, :3], short)
    assert len(torch.unique(long)) == long.numel()


def test_successive_calls_with_one_generator_draw_different_numbers() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = row_uniforms(4, 8, generator), row_uniforms(4, 8, generator)
    assert not torch.isin(first, second).any()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_new_tokens": 1, "temperature": 0.0}, "greedy"),
        ({"max_new_tokens": 1, "temperature": float("nan")}, "temperature=nan"),
        ({"max_new_tokens": 1, "temperature": float("inf")}, "temperature=inf"),
        ({"max_new_tokens": 1, "top_p": 0.0}, "top_p=0.0"),
        ({"max_new_tokens": 1, "top_p": 1.01}, "top_p=1.01"),
        ({"max_new_tokens": 1, "top_k": 0}, "top_k=0"),
    ],
)
def test_values_out_of_range_are_refused_by_name(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**values)
