"""The oracle of generation's options, on distributions whose right result is known by hand."""

import math
from typing import Any

import pytest
import torch

from seatrial.relations.oracles.decoding import probabilities

PROBS = (0.4, 0.3, 0.2, 0.1)
"""Of ids 0 to 3; 3 is the end."""
START = {"ids": (0, 1, 0), "num_prompt": 3, "num_new": 3, "end": 3}
LATER = {"ids": (0, 1, 0, 1, 0), "num_prompt": 3, "num_new": 3, "end": 3}
ENTROPY = -sum(prob * math.log(prob) for prob in PROBS)


@pytest.mark.parametrize(
    ("option", "value", "step", "kept"),
    [
        ("top_k", 2, START, {0, 1}),
        ("top_k", 0, START, {0, 1, 2, 3}),
        ("top_p", 0.69, START, {0, 1}),
        ("top_p", 0.71, START, {0, 1, 2}),
        ("min_p", 0.6, START, {0, 1}),
        ("epsilon_cutoff", 0.15, START, {0, 1, 2}),
        ("epsilon_cutoff", 0.5, START, {0}),
        ("eta_cutoff", 0.15, START, {0, 1, 2}),
        ("typical_p", 0.25, START, {1}),
        ("typical_p", 0.35, START, {1, 2}),
        ("no_repeat_ngram_size", 2, START, {0, 2, 3}),
        ("no_repeat_ngram_size", 3, START, {0, 1, 2, 3}),
        ("bad_words_ids", [[2], [0, 1], [2, 0]], START, {0, 3}),
        ("min_length", 4, START, {0, 1, 2}),
        ("min_length", 3, START, {0, 1, 2, 3}),
        ("min_new_tokens", 2, LATER, {0, 1, 2, 3}),
        ("min_new_tokens", 3, LATER, {0, 1, 2}),
        ("forced_eos_token_id", 3, START, {0, 1, 2, 3}),
        ("forced_eos_token_id", 3, LATER, {3}),
        ("suppress_tokens", [0, 2], LATER, {1, 3}),
        ("begin_suppress_tokens", [0], START, {1, 2, 3}),
        ("begin_suppress_tokens", [0], LATER, {0, 1, 2, 3}),
    ],
)
def test_a_cut_keeps_these_ids(option: str, value: Any, step: Any, kept: set[int]) -> None:
    """And their probabilities relative to each other."""
    found = probabilities(torch.tensor(PROBS).log(), {option: value}, step)
    right = torch.tensor(
        [prob if token in kept else 0.0 for token, prob in enumerate(PROBS)], dtype=torch.float64
    )
    assert torch.allclose(found, right / right.sum(), atol=1e-6)


def test_typical_ids_are_nearest_to_the_entropy() -> None:
    """The order that the cut above relies on: 1, then 2, then 0."""
    distances = [abs(-math.log(prob) - ENTROPY) for prob in PROBS]
    assert sorted(range(4), key=lambda token: distances[token]) == [1, 2, 0, 3]


@pytest.mark.parametrize(
    ("options", "scores"),
    [
        ({"temperature": 0.5}, [4.0, -2.0, 1.0, 0.0]),
        ({"repetition_penalty": 2.0}, [1.0, -2.0, 0.5, 0.0]),
        ({"sequence_bias": {(2,): 1.5, (0, 1): 3.0, (1, 3): 9.0}}, [2.0, 2.0, 2.0, 0.0]),
        ({"exponential_decay_length_penalty": (1, 2.0)}, [2.0, -1.0, 0.5, 0.0]),
        ({"repetition_penalty": 2.0, "temperature": 0.5}, [2.0, -4.0, 1.0, 0.0]),
    ],
)
def test_a_penalty_changes_these_scores(options: dict[str, Any], scores: list[float]) -> None:
    """Ids 0 and 1 are there already."""
    found = probabilities(torch.tensor([2.0, -1.0, 0.5, 0.0]), options, LATER)
    assert torch.allclose(found, torch.tensor(scores, dtype=torch.float64).softmax(0))


def test_the_end_grows_with_every_id() -> None:
    found = probabilities(
        torch.tensor([0.0, 0.0, 0.0, -1.0]), {"exponential_decay_length_penalty": (0, 2.0)}, LATER
    )
    assert torch.allclose(found, torch.tensor([0.0, 0.0, 0.0, 2.0], dtype=torch.float64).softmax(0))
