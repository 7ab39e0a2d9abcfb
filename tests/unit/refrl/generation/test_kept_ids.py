"""With top-p or top-k on, every token carries the ids that the filters kept: the support that it was sampled from."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refrl.config import ConfigError
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.sampling import check_stop_ids, draw, is_filtered, row_uniforms
from refrl.generation.torch_engine import TorchGenerator

from .conftest import make_model
from .tiny_models import END_IDS, VOCAB

LOGITS = [1.4 * math.log(share) for share in (0.1, 0.4, 0.05, 0.25, 0.2)]
"""At temperature 1.4 the probabilities are these shares."""


def drawn(params: SamplingParams, *logits: list[float]) -> tuple[list[int], list[float], list[list[int]]]:
    uniforms_B = row_uniforms(len(logits), 1, torch.Generator().manual_seed(4))[:, 0]
    ids_B, logprobs_B, kept_BV = draw(torch.tensor(logits, dtype=torch.float64), uniforms_B, params)
    assert kept_BV is not None
    return ids_B.tolist(), logprobs_B.tolist(), [row.nonzero().flatten().tolist() for row in kept_BV]


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"top_k": 2}, [1, 3]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.7}, [1, 3, 4]),
        ({"top_k": 2, "top_p": 0.6}, [1]),
        ({"top_k": 4, "top_p": 0.9}, [1, 3, 4, 0]),
        ({"top_k": 4, "top_p": 0.89}, [1, 3, 4]),
    ],
)
def test_the_kept_ids_of_hand_made_logits(filters: dict[str, float], kept: list[int]) -> None:
    """Shares 0.4, 0.25, 0.2, 0.1, 0.05; top-p counts shares of what top-k left, at the temperature sampled at."""
    ids, logprobs, found = drawn(SamplingParams(1, temperature=1.4, **filters), *[LOGITS] * 50)
    shares = [0.1, 0.4, 0.05, 0.25, 0.2]
    total = sum(shares[token] for token in kept)
    assert found == [sorted(kept)] * 50
    assert set(ids) == set(kept)
    for token, logprob in zip(ids, logprobs, strict=True):
        assert logprob == pytest.approx(math.log(shares[token] / total), abs=1e-6)


@given(
    st.lists(st.floats(-6, 6, width=32), min_size=2, max_size=12),
    st.floats(0.01, 0.999),
    st.none() | st.integers(1, 14),
    st.floats(0.3, 3.0),
)
def test_the_support_holds_the_sampled_id_enough_mass_and_no_more(
    logits: list[float], top_p: float, top_k: int | None, temperature: float
) -> None:
    """Mass of what top-k left, to the rounding of float32; without its least likely id it would be too small."""
    params = SamplingParams(1, temperature=temperature, top_p=top_p, top_k=top_k)
    (sampled,), _, (kept,) = drawn(params, logits)
    weights = [math.exp(value / temperature) for value in logits]
    candidates = range(len(logits))
    if top_k is not None and top_k < len(logits):
        least = sorted(logits, reverse=True)[top_k - 1]
        candidates = [token for token in candidates if logits[token] >= least]
    total = sum(weights[token] for token in candidates)
    assert sampled in kept
    assert set(kept) <= set(candidates)
    mass = sum(weights[token] for token in kept) / total
    assert mass >= top_p - 1e-5
    assert mass - min(weights[token] for token in kept) / total < top_p + 1e-5
    assert all(weights[token] <= min(weights[k] for k in kept) for token in candidates if token not in kept)


@pytest.mark.parametrize(
    ("options", "filtered"),
    [
        ({}, False),
        ({"temperature": 0.5}, False),
        ({"top_k": VOCAB}, False),
        ({"top_k": VOCAB - 1}, True),
        ({"top_p": 0.99}, True),
        ({"top_p": 0.5, "greedy": True}, False),
    ],
)
def test_nothing_is_recorded_where_no_filter_is_on(options: dict[str, float], filtered: bool) -> None:
    params = SamplingParams(2, stop_token_ids=(), **options)
    assert is_filtered(params, VOCAB) is filtered
    rows = TorchGenerator(make_model("qwen3"), 0).generate(
        [[7], [9, 1]], params, torch.Generator().manual_seed(0)
    )
    assert all((row.kept_ids is not None) is filtered for row in rows)


def expected_support(logits_V: torch.Tensor, params: SamplingParams) -> list[int]:
    """By sorting one row of the plain forward in float64."""
    scaled = (logits_V.double() / params.temperature).tolist()
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])[: params.top_k]
    weights = [math.exp(scaled[token]) for token in order]
    kept, mass = [], 0.0
    for token, weight in zip(order, weights, strict=True):
        if mass >= params.top_p:
            break
        kept.append(token)
        mass += weight / sum(weights)
    return sorted(kept)


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "generic"])
@pytest.mark.parametrize("filters", [{"top_p": 0.5}, {"top_k": 3}, {"top_p": 0.8, "top_k": 9}], ids=str)
def test_every_token_of_a_batch_has_its_own_support(
    ragged_prompts: list[list[int]], filters: dict[str, float], lean: bool
) -> None:
    """Rows end at different times and change their places; each support is that of a plain forward of its own row,
    and the reported log-probability is the log softmax over it.
    """
    model = make_model("qwen3")
    params = SamplingParams(16, temperature=0.7, stop_token_ids=(*END_IDS, 7, 11, 19), **filters)
    rows = TorchGenerator(model, 0, lean=lean).generate(
        ragged_prompts * 2, params, torch.Generator().manual_seed(1)
    )
    assert len({len(row.ids) for row in rows}) > 3
    for row in rows:
        check_support(row, params, plain_logits(model, row))


def plain_logits(model: torch.nn.Module, row: Completion) -> torch.Tensor:
    with torch.no_grad():
        logits_SV = model(input_ids=torch.tensor([row.prompt_ids + row.ids]), use_cache=False).logits[0]
    return logits_SV[len(row.prompt_ids) - 1 : -1]


def check_support(row: Completion, params: SamplingParams, logits_TV: torch.Tensor) -> None:
    assert row.kept_ids is not None
    assert len(row.kept_ids) == len(row.ids)
    for token, kept in enumerate(row.kept_ids):
        assert list(kept) == expected_support(logits_TV[token], params)
        scaled = logits_TV[token].double() / params.temperature
        expected = scaled[row.ids[token]] - scaled[list(kept)].logsumexp(0)
        assert row.logprobs[token] == pytest.approx(float(expected), abs=2e-5)


def test_a_stop_id_outside_the_vocabulary_is_refused_by_name() -> None:
    check_stop_ids([0, 258], 259)
    check_stop_ids([], 259)
    with pytest.raises(ConfigError, match=r"stop_token_ids: -1, 259 outside the vocabulary of 259"):
        check_stop_ids([259, 3, -1], 259)
