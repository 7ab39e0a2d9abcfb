"""Rates of a step, and what share of the device's peak its phases reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch

PEAKS = {
    "A100": (312e12, 2.04e12),
    "H100": (989e12, 3.35e12),
    "H200": (989e12, 4.8e12),
    "B200": (2250e12, 8.0e12),
}
"""(dense bfloat16 operations a second, bytes a second) by a part of the device's name; NVIDIA's data sheets of the SXM
modules (A100 80 GB)."""


def performance_metrics(
    seconds: Mapping[str, float],
    *,
    num_samples: int,
    num_tokens: float,
    num_generated: float,
    num_processes: int,
) -> dict[str, float]:
    """Return rates per second of the step and of its phases, of the whole run and per process, which has one device.

    Args:
        seconds: of each phase, `total_step_time` among them.
        num_samples: rows trained on.
        num_tokens: prompt and completion tokens of these rows.
        num_generated: completion tokens of these rows.
        num_processes: that train.
    """
    counted = {
        "tokens_per_sec": (num_tokens, "total_step_time"),
        "generation_tokens_per_sec": (num_generated, "generation"),
        "policy_and_reference_logprobs_tokens_per_sec": (num_tokens, "policy_and_reference_logprobs"),
        "policy_training_tokens_per_sec": (num_tokens, "policy_training"),
    }
    rates = {name: count / seconds[phase] for name, (count, phase) in counted.items() if phase in seconds}
    per_gpu = {f"{name}_per_gpu": rate / num_processes for name, rate in rates.items()}
    return {"samples_per_sec": num_samples / seconds["total_step_time"], **rates, **per_gpu}


@dataclass(frozen=True)
class ModelCost:
    """What a token costs a dense decoder."""

    num_multiplied: int
    """Weights that every token is multiplied with: all but an input embedding of its own."""
    num_layers: int
    attention_width: int
    """Query heads times their width."""
    weight_bytes: int
    cache_bytes: int
    """Keys and values of one token."""

    def training_operations(self, batch: Batch) -> float:
        """Return the operations of forward and backward over a batch, without recomputation (arXiv 2204.02311, app. B).

        Causal attention counts as half of a square.
        """
        lens_B = batch.attention_mask_BS.sum(1).double()
        attention = 6 * self.num_layers * self.attention_width * float((lens_B**2).sum())
        return 6 * self.num_multiplied * float(lens_B.sum()) + attention

    def generation_bytes(self, batch: Batch, num_processes: int) -> float:
        """Return what each process reads to sample its rows: all weights at each token step, and its rows' cache."""
        prompts_B, completions_B = batch.prompt_lens_B.double(), batch.completion_lens_B.double()
        cached = (completions_B * prompts_B + completions_B * (completions_B - 1) / 2).sum()
        return (
            self.weight_bytes * float(completions_B.max()) + self.cache_bytes * float(cached) / num_processes
        )


def model_cost(model: nn.Module) -> ModelCost | None:
    """Return the cost of a model; None where it has experts, or is not a Hugging Face decoder."""
    if not isinstance(model, PreTrainedModel):
        return None
    config = model.config.get_text_config()
    if any(hasattr(config, name) for name in ("num_experts", "num_local_experts")):
        return None
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    weights = list(model.parameters())
    count = sum(weight.numel() for weight in weights)
    if head is not None and head.weight is not embedding.weight:
        count -= embedding.weight.numel()
    num_heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    num_keys = getattr(config, "num_key_value_heads", None) or num_heads
    size = weights[0].element_size()
    return ModelCost(
        num_multiplied=count,
        num_layers=config.num_hidden_layers,
        attention_width=num_heads * head_dim,
        weight_bytes=count * size,
        cache_bytes=2 * config.num_hidden_layers * num_keys * head_dim * size,
    )


def utilization_metrics(
    seconds: Mapping[str, float], batch: Batch, model: nn.Module | None, num_processes: int
) -> dict[str, float]:
    """Return which shares of the device's peaks training and sampling reach; nothing where a peak is not known.

    Args:
        seconds: of each phase.
        batch: the rows that were sampled and trained on, by all processes.
        model: in bfloat16 on a device of `PEAKS`; anything else has no figures.
        num_processes: that share the rows, each with a device.
    """
    weight = None if model is None else next(model.parameters(), None)
    if model is None or weight is None or weight.device.type != "cuda" or weight.dtype != torch.bfloat16:
        return {}
    name = torch.cuda.get_device_name(weight.device)
    peaks = next((peaks for part, peaks in PEAKS.items() if part in name), None)
    cost = model_cost(model)
    return (
        {} if peaks is None or cost is None else shares_of_peaks(seconds, batch, cost, peaks, num_processes)
    )


def shares_of_peaks(
    seconds: Mapping[str, float],
    batch: Batch,
    cost: ModelCost,
    peaks: tuple[float, float],
    num_processes: int,
) -> dict[str, float]:
    """Return `utilization_metrics` for these peaks (operations and bytes a second)."""
    operations, bandwidth = peaks
    shares = {
        "policy_training": (
            "model_flops_utilization",
            lambda: cost.training_operations(batch) / num_processes / operations,
        ),
        "generation": (
            "memory_bandwidth_utilization",
            lambda: cost.generation_bytes(batch, num_processes) / bandwidth,
        ),
    }
    return {
        f"{phase}_{name}": least_seconds() / seconds[phase]
        for phase, (name, least_seconds) in shares.items()
        if seconds.get(phase)
    }
