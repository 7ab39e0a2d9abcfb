"""Shares of a device's peaks, against counts by hand and by torch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.training.performance import ModelCost, model_cost, shares_of_peaks, utilization_metrics

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


def rows(*lens: tuple[int, int]) -> Batch:
    samples = [
        TrainSample(
            prompt_ids=(1,) * prompt,
            completion_ids=(2,) * completion,
            sampling_logprobs=(0.0,) * completion,
            reward=0.0,
            group_id=0,
        )
        for prompt, completion in lens
    ]
    return make_batch(samples, pad_token_id=0)


@pytest.mark.parametrize("tied", [False, True])
def test_operations_of_products_are_those_that_torch_counts(tied: bool) -> None:
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=tied, attn_implementation="eager"))
    cost = model_cost(model)
    assert cost is not None
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(3, 40, dtype=torch.long), use_cache=False).logits.sum().backward()
    # Eager attention computes the whole square, and norms and embeddings are no products.
    square = 12 * cost.num_layers * cost.attention_width * 3 * 40 * 40
    norms = sum(weight.numel() for weight in model.parameters() if weight.ndim == 1)
    expected = 6 * (cost.num_multiplied - norms) * 3 * 40 + square
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.01)


def test_shares_by_hand() -> None:
    cost = ModelCost(num_multiplied=1000, num_layers=2, attention_width=8, weight_bytes=2000, cache_bytes=10)
    batch = rows((3, 2), (1, 4))
    found = shares_of_peaks({"policy_training": 2.0, "generation": 4.0}, batch, cost, (1e6, 1e3), 1)
    assert found == {
        "policy_training_model_flops_utilization": pytest.approx(
            (6 * 1000 * 10 + 6 * 2 * 8 * (25 + 25)) / 1e6 / 2.0
        ),
        # Four token steps; the rows read 3 + 4 and 1 + 2 + 3 + 4 tokens.
        "generation_memory_bandwidth_utilization": pytest.approx((2000 * 4 + 10 * (7 + 10)) / 1e3 / 4.0),
    }
    of_two = shares_of_peaks({"policy_training": 2.0, "generation": 4.0}, batch, cost, (1e6, 1e3), 2)
    assert of_two == {
        "policy_training_model_flops_utilization": pytest.approx(
            (6 * 1000 * 10 + 6 * 2 * 8 * (25 + 25)) / 1e6 / 2.0 / 2
        ),
        # Each process reads all weights, and the cache of half of the rows.
        "generation_memory_bandwidth_utilization": pytest.approx((2000 * 4 + 10 * (7 + 10) / 2) / 1e3 / 4.0),
    }
    assert shares_of_peaks({"policy_training": 2.0}, batch, cost, (1e6, 1e3), 1).keys() == {
        "policy_training_model_flops_utilization"
    }


def test_nothing_is_claimed_of_experts_or_of_a_processor() -> None:
    experts = Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            vocab_size=50,
            hidden_size=16,
            intermediate_size=16,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            num_experts=4,
        )
    )
    assert model_cost(experts) is None
    assert model_cost(torch.nn.Linear(2, 2)) is None
    dense = Qwen3ForCausalLM(Qwen3Config(**SHAPE)).bfloat16()
    assert utilization_metrics({"policy_training": 1.0}, rows((2, 2)), dense, 1) == {}
