"""Worked examples of rates: of a step and its phases, and what share of a device's peaks they reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl.errors import TrainingError
from refrl.timing import Timer
from refrl.training.performance import (
    ModelCost,
    model_cost,
    performance_metrics,
    shares_of_peaks,
    utilization_metrics,
)
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.limits.models import model_of
from seatrial.targets.reference.worked.made import batch, example


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_rates()


def _of_rates() -> Iterator[WorkedExample]:
    seconds = {"total_step_time": 8.0, "generation": 2.0, "policy_training": 4.0}
    rates = {"tokens_per_sec": 3.0, "generation_tokens_per_sec": 5.0, "policy_training_tokens_per_sec": 6.0}
    yield example(
        "rates of a step",
        {"samples_per_sec": 0.75, **rates, **{f"{name}_per_gpu": rate / 2 for name, rate in rates.items()}},
        performance_metrics,
        seconds,
        num_samples=6,
        num_tokens=24.0,
        num_generated=10.0,
        num_processes=2,
    )
    cost = ModelCost(num_multiplied=10, num_layers=2, attention_width=3, weight_bytes=40, cache_bytes=5)
    # Rows of 3, 6 and 3 tokens; completions of 2, 3 and 1 after prompts of 1, 3 and 2.
    yield example("operations of training", 60 * 12 + 36 * 54.0, lambda: cost.training_operations(batch()))
    cached = (2 * 1 + 1) + (3 * 3 + 3) + (1 * 2 + 0)
    yield example("bytes of sampling", 40 * 3 + 5.0 * cached, lambda: cost.generation_bytes(batch(), 1))
    yield example(
        "bytes that each of two processes reads",
        120 + 2.5 * cached,
        lambda: cost.generation_bytes(batch(), 2),
    )
    yield example(
        "shares of the peaks",
        {
            "policy_training_model_flops_utilization": (60 * 12 + 36 * 54) / 100 / 4,
            "generation_memory_bandwidth_utilization": (120 + 5 * cached) / 50 / 2,
        },
        lambda: shares_of_peaks(seconds, batch(), cost, (100.0, 50.0), 1),
    )
    yield example(
        "shares of the peaks of two processes",
        {
            "policy_training_model_flops_utilization": (60 * 12 + 36 * 54) / 100 / 4 / 2,
            "generation_memory_bandwidth_utilization": (120 + 2.5 * cached) / 50 / 2,
        },
        lambda: shares_of_peaks(seconds, batch(), cost, (100.0, 50.0), 2),
    )
    yield example(
        "no share of a phase that took no time",
        {},
        shares_of_peaks,
        {"generation": 0.0},
        batch(),
        cost,
        (1, 1),
        1,
    )
    # Of 2 layers, each with 1536 numbers of attention, 1152 of the rest and 32 of norms, and a head of 640.
    multiplied = 2 * (1536 + 1152 + 32) + 16 + 640
    for name, more in (
        ("a head of its own", {}),
        ("its embedding as its head", {"tie_word_embeddings": True}),
    ):
        yield example(
            f"the cost of a model with {name}",
            (multiplied, 2, 32, 4 * multiplied, 256),
            lambda more=more: astuple(_cost_of("llama", **more)),
        )
    for kind, experts in (("qwen3_moe", "num_experts"), ("mixtral", "num_local_experts")):
        yield example(f"{kind} has experts, and no cost", None, _cost_of, kind, **{experts: 4})
    yield example(
        "a model in bfloat16",
        (2 * multiplied, 128),
        lambda: (lambda found: (found.weight_bytes, found.cache_bytes))(
            _cost_of("llama", dtype=torch.bfloat16)
        ),
    )
    yield example("a model that is none", None, lambda: model_cost(torch.nn.Linear(2, 2)))
    yield example(
        "no shares on a CPU", {}, lambda: utilization_metrics(seconds, batch(), model_of("llama"), 1)
    )
    for device, peak in (
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4", 312e12),
    ):
        yield example(
            f"the peak of {device}",
            float(cost.training_operations(batch())) / 4 / 2 / peak * 1e12,
            lambda device=device: _on(device, cost)["policy_training_model_flops_utilization"] * 1e12,
        )
    yield example("a device without known peaks", {}, lambda: _on("NVIDIA T4", cost))
    yield example("seconds add up until they are taken", ({"a": 3.0, "b": 0.5}, {"a": 4.0}, {}), _timed)
    yield example("a block that raises is timed", (["a"], True), _raising_block)
    yield example("blocks that are timed, one within another", {"a": 4.5, "b": 1.0}, _blocks)


def _cost_of(kind: str, **more: Any) -> Any:
    return model_cost(model_of(kind, **more))


def _on(device: str, cost: ModelCost) -> dict[str, float]:
    """Return the shares of a model in bfloat16 on a device, of two processes."""
    weight = SimpleNamespace(device=SimpleNamespace(type="cuda"), dtype=torch.bfloat16)
    model: Any = SimpleNamespace(parameters=lambda: iter([weight]))
    with (
        patch("torch.cuda.get_device_name", lambda of: device),
        patch("refrl.training.performance.model_cost", lambda of: cost),
    ):
        return utilization_metrics({"policy_training": 4.0}, batch(), model, 2)


def _timed() -> Any:
    timer = Timer()
    for phase, seconds in (("a", 1.0), ("b", 0.5), ("a", 2.0)):
        timer.add(phase, seconds)
    first = timer.take()
    timer.add("a", 4.0)
    return first, timer.take(), timer.take()


def _blocks() -> Any:
    """Return the seconds of a phase of two blocks, of 3.5 s with another phase within, and of 1 s."""
    timer, clock = Timer(), iter((10.0, 11.5, 12.5, 13.5, 20.0, 21.0))
    with patch("refrl.timing.time", SimpleNamespace(perf_counter=lambda: next(clock))):
        with timer.time("a"), timer.time("b"):
            pass
        with timer.time("a"):
            pass
    return timer.take()


def _raising_block() -> Any:
    timer = Timer()
    try:
        with timer.time("a"):
            raise TrainingError("no")
    except TrainingError:
        taken = timer.take()
    return list(taken), taken["a"] > 0
