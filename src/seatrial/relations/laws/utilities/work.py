"""R31.work: the operations of a step by which a stack measures its speed are those of the model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of
from seatrial.relations.not_served import NotServed

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
LATENT: Mapping[str, int] = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
"""Of attention with latent keys and values, in a model whose first layer has no experts."""
MODELS: Mapping[str, Mapping[str, int]] = {
    "llama": SIZES,
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 32},
    "qwen3_moe": {**SIZES, **EXPERTS, "head_dim": 32},
    "mistral": {**SIZES, "head_dim": 32},
    "gemma3_text": {**SIZES, "head_dim": 32},
    "apertus": SIZES,
    "gpt_oss": {**SIZES, "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v3": {**SIZES, **LATENT},
}
"""Sizes of a configuration by its `model_type`."""
EXPERT_NAMES = ("num_experts", "num_local_experts", "n_routed_experts")
UNGATED = ("apertus",)
"""Whose MLPs have two matrices."""
WINDOWED, WINDOW = ("gemma3_text", "gpt_oss"), 32
"""Whose third layer attends to the tokens of a window."""
ROWS: Sequence[Sequence[int]] = ((5, 7), (12,), (1, 90, 30))
"""Lengths of the rows of a step."""


def operations_of_a_layer(kind: str, sizes: Mapping[str, int], lengths: Sequence[int]) -> float:
    """Return the operations of forward and backward: 6 a weight and token, 12 a channel and pair of tokens.

    A product has 2 operations an entry, and the backward pass two products for one of the forward pass. Attention has
    two products with an entry for each token and each one that it sees: those before it, or those within a window.
    """
    pairs = _pairs(lengths, sizes.get("sliding_window", max(lengths)))
    return _of_weights(kind, sizes, lengths) + 12.0 * _width(sizes) * pairs


def _pairs(lengths: Sequence[int], window: int) -> float:
    """Return pairs of a token and one that it sees, a token itself as a half."""
    near = [min(length, window) for length in lengths]
    return sum(length * own - own * own / 2 for length, own in zip(lengths, near, strict=True))


def _width(sizes: Mapping[str, int]) -> float:
    """Return the channels of all heads, as the mean of those of keys and of values."""
    H = sizes["num_attention_heads"]
    if "kv_lora_rank" in sizes:
        return H * (sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"] + sizes["v_head_dim"]) / 2
    return H * sizes.get("head_dim", sizes["hidden_size"] // H)


def _of_weights(kind: str, sizes: Mapping[str, int], lengths: Sequence[int]) -> float:
    D, H = sizes["hidden_size"], sizes["num_attention_heads"]
    mlp = (2 if kind in UNGATED else 3) * D * sizes["intermediate_size"]
    experts = next((sizes[name] for name in EXPERT_NAMES if name in sizes), 0)
    if experts:
        size = sizes.get("moe_intermediate_size", sizes["intermediate_size"])
        used = sizes["num_experts_per_tok"] + sizes.get("n_shared_experts", 0)
        mlp = 3 * D * used * size + D * experts
    if "kv_lora_rank" in sizes:
        rope, key = sizes["qk_rope_head_dim"], sizes["qk_nope_head_dim"]
        queries = sizes["q_lora_rank"] * (D + H * (key + rope))
        keys = D * (sizes["kv_lora_rank"] + rope) + sizes["kv_lora_rank"] * H * (key + sizes["v_head_dim"])
        attention: float = queries + keys + H * sizes["v_head_dim"] * D
    else:
        attention = 2 * D * _width(sizes) * (1 + sizes["num_key_value_heads"] / H)
    return 6.0 * (attention + mlp) * sum(lengths)


@WORK.law(
    "operations of a layer",
    "attention that is not causal, all experts of a layer, heads of another width, a family that counts as nothing",
    excluded=without("estimated work"),
)
def a_layer_adds_its_operations(stack: Any, case: Numbers) -> Measure:
    """Compare what three layers have beyond two with the definition, by its size."""
    found = []
    for kind, sizes in MODELS.items():
        for lengths in ROWS:
            with contextlib.suppress(NotServed):
                added = _added(stack, kind, sizes, lengths)
                right = operations_of_a_layer(kind, sizes, lengths)
                # Norms of queries and keys may count.
                norms = 6.0 * sum(lengths) * 2 * sizes["hidden_size"] if kind in UNGATED else 0.0
                error = max(0.0, abs(added - right) - norms)
                found.append((error / right, f"{kind}, rows of {tuple(lengths)} tokens"))
    return Measure.largest(found, 1e-6, "operations of a layer, relative difference")


def _added(stack: Any, kind: str, sizes: Mapping[str, int], lengths: Sequence[int]) -> float:
    """Return what three layers have beyond two."""
    three, two = (
        stack.utilities["estimated work"](kind, {**sizes, "num_hidden_layers": layers}, lengths)
        for layers in (3, 2)
    )
    return float(three - two)


@WORK.law(
    "operations of a layer with a window",
    "attention that has no window, a window of another size, one for all layers",
    excluded=without("estimated work"),
)
def a_window_saves_operations(stack: Any, case: Numbers) -> Measure:
    """Compare attention within a window with its pairs of tokens.

    Half of them may be missing: some count a token's window as if it were causal too.
    """
    wrong, judged = [], 0
    for kind in WINDOWED:
        sizes = {**MODELS[kind], "sliding_window": WINDOW}
        for lengths in ROWS:
            with contextlib.suppress(NotServed):
                attention = _added(stack, kind, sizes, lengths) - _of_weights(kind, sizes, lengths)
                share = attention / (12.0 * _width(sizes) * _pairs(lengths, WINDOW))
                judged += 1
                if not 0.5 <= share <= 1 + 1e-6:
                    wrong.append(f"{kind}, rows of {tuple(lengths)} tokens: {share:.3g} of the operations")
    if not judged:
        raise NotServed("no model with a window is counted")
    return Measure.count(wrong, "models whose windows are counted otherwise")
