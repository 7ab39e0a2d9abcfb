"""R31.work: the operations of a step by which a stack measures its speed are those of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

WORK = relation_of(
    "work",
    "operations-of-a-step-are-those-of-the-model",
    "A further layer adds the operations of its matrices for each token, and those of causal attention for each row.",
)
SIZES: Mapping[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}
EXPERTS: Mapping[str, int] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
MODELS: Mapping[str, Mapping[str, int]] = {
    "llama": SIZES,
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 32},
    "qwen3_moe": {**SIZES, **EXPERTS, "head_dim": 32},
}
"""Sizes of a configuration by its `model_type`."""
ROWS: Sequence[Sequence[int]] = ((5, 7), (12,), (1, 90, 30))
"""Lengths of the rows of a step."""


def operations_of_a_layer(sizes: Mapping[str, int], lengths: Sequence[int]) -> float:
    """Return the operations of forward and backward: 6 a weight and token, 6 a channel and pair of tokens.

    A product has 2 operations an entry, and the backward pass two products for one of the forward pass. Attention has
    two products with S^2 entries, half of which causal attention does not need.
    """
    D, H = sizes["hidden_size"], sizes["num_attention_heads"]
    width = H * sizes.get("head_dim", D // H)
    shared = sizes["num_key_value_heads"] * width // H
    mlp = 3 * D * sizes["intermediate_size"]
    if "num_experts" in sizes:
        used = sizes["num_experts_per_tok"] * sizes["moe_intermediate_size"]
        mlp = 3 * D * used + D * sizes["num_experts"]
    weights = 2 * D * width + 2 * D * shared + mlp
    return 6.0 * weights * sum(lengths) + 6.0 * width * sum(length * length for length in lengths)


@WORK.law(
    "operations of a layer",
    "attention that is not causal, all experts of a layer, heads of another width, a family that counts as nothing",
    excluded=without("estimated work"),
)
def a_layer_adds_its_operations(stack: Any, case: Numbers) -> Measure:
    """Compare what three layers have beyond two with the definition, by its size."""
    work, found = stack.utilities["estimated work"], []
    for kind, sizes in MODELS.items():
        for lengths in ROWS:
            three, two = (work(kind, {**sizes, "num_hidden_layers": layers}, lengths) for layers in (3, 2))
            right = operations_of_a_layer(sizes, lengths)
            found.append((abs(three - two - right) / right, f"{kind}, rows of {tuple(lengths)} tokens"))
    return Measure.largest(found, 1e-6, "operations of a layer, relative difference")
