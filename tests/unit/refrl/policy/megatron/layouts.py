"""Every layout of ranks against the Hugging Face model in one process, on the CPU over gloo or on GPUs over NCCL."""

import json
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.unit.refrl.policy.megatron.rows import ragged_rows, shared
from tests.unit.refrl.policy.megatron.rows import worst as worst_error

from refrl.config import LossConfig, PolicyConfig, validate_config
from refrl.distributed import World
from refrl.models.tokenization import make_byte_tokenizer
from refrl.policy.base import Policy
from refrl.training.build import build_loss, build_policy

MINUTES = 8
"""A launch of ranks is ended after this: one that hangs is a failure of its own."""


@dataclass(frozen=True)
class Layout:
    """One way to spread a model of a family."""

    family: str
    sizes: dict[str, Any] = field(default_factory=dict)
    packs: bool = False
    adapters: bool = False
    """Beside a frozen model."""


def _sizes(**short: int) -> dict[str, Any]:
    names = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
        "etp": "expert_tensor_parallel_size",
    }
    sizes: dict[str, Any] = {names[name]: size for name, size in short.items() if name != "sp"}
    return {**sizes, "sequence_parallel": True} if "sp" in short else sizes


TWO: dict[str, Layout] = {
    "DP2": Layout("qwen3"),
    "TP2": Layout("qwen3", _sizes(tp=2)),
    "TP2, SP, tied": Layout("qwen2", _sizes(tp=2, sp=1)),
    "PP2": Layout("qwen3", _sizes(pp=2)),
    "PP2, tied": Layout("qwen2", _sizes(pp=2)),
    "PP2, tied, adapters": Layout("qwen2", _sizes(pp=2), adapters=True),
    "PP2, packed": Layout("qwen3", _sizes(pp=2), packs=True),
    "CP2": Layout("qwen3", _sizes(cp=2)),
    "CP2, packed": Layout("qwen3", _sizes(cp=2), packs=True),
    "experts, DP2": Layout("qwen3_moe_before"),
    "experts, EP2": Layout("qwen3_moe_before", _sizes(ep=2)),
    "experts, EP2, packed": Layout("qwen3_moe_before", _sizes(ep=2), packs=True),
    "experts, TP2, SP": Layout("qwen3_moe_before", _sizes(tp=2, sp=1)),
    "experts, TP2, SP, EP2": Layout("qwen3_moe_before", _sizes(tp=2, sp=1, ep=2, etp=1)),
    "experts, CP2": Layout("qwen3_moe_before", _sizes(cp=2)),
    "experts, PP2": Layout("qwen3_moe_before", _sizes(pp=2)),
}
FOUR: dict[str, Layout] = {
    "TP2, SP, PP2": Layout("qwen3", _sizes(tp=2, sp=1, pp=2)),
    "TP2, SP, CP2": Layout("qwen3", _sizes(tp=2, sp=1, cp=2)),
    "TP2, SP, DP2, tied": Layout("qwen2", _sizes(tp=2, sp=1)),
    "PP2, CP2": Layout("qwen3", _sizes(pp=2, cp=2)),
    "experts, EP2, PP2": Layout("qwen3_moe_before", _sizes(ep=2, pp=2)),
    "experts, EP4": Layout("qwen3_moe_before", _sizes(ep=4)),
}


def measure(
    layouts: dict[str, Layout], models: dict[str, Path], folder: Path, *, size: int, device: str
) -> dict[str, dict[str, float]]:
    """Return the largest relative errors of each layout: of scores, raw gradients, and weights after three updates.

    Raises:
        AssertionError: a rank ended badly, or all of them hang.
    """
    work = (dict(layouts), dict(models), folder, size, device)
    ranks = [get_context("spawn").Process(target=_rank, args=(rank, *work)) for rank in range(size)]
    for process in ranks:
        process.start()
    deadline = time.monotonic() + 60 * MINUTES
    try:
        while any(process.is_alive() for process in ranks) and not any(process.exitcode for process in ranks):
            ranks[0].join(0.2)
            assert time.monotonic() < deadline, f"the ranks hang; done: {sorted(_results(folder))}"
    finally:
        for process in ranks:
            process.kill()
            process.join()
    results = _results(folder)
    assert [process.exitcode for process in ranks] == [0] * size, (
        f"a rank ended badly; done: {sorted(results)}"
    )
    return results


def _results(folder: Path) -> dict[str, dict[str, float]]:
    path = folder / "results.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _rank(
    rank: int, layouts: dict[str, Layout], models: dict[str, Path], folder: Path, size: int, device: str
) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    place = torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(rank)
        place = torch.device("cuda", rank)
        torch.backends.cuda.matmul.allow_tf32 = False
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    results: dict[str, dict[str, float]] = {}
    for name, layout in layouts.items():
        results[name] = _errors(layout, models[layout.family], World(rank=rank, size=size), place)
        if rank == 0:
            (folder / "results.json").write_text(json.dumps(results))
    dist.barrier()
    # Not through Python's end, where groups that are gone are waited for.
    os._exit(0)


def _policy(layout: Layout, model: Path, device: torch.device, world: World | None) -> Policy:
    values = {
        "model_name": str(model),
        "train_global_batch_size": 6,
        "train_micro_batch_size": 2,
        "logprob_batch_size": 4,
        "max_total_sequence_length": 32,
        "optimizer": {"lr": 1e-3, "eps": 1e-4, "weight_decay": 0.1},
        "sequence_packing": {"enabled": layout.packs},
        "lora_cfg": {"enabled": layout.adapters},
        **({} if world is None else {"megatron_cfg": {"enabled": True, **layout.sizes}}),
    }
    return build_policy(
        validate_config(PolicyConfig, values, source="test"),
        make_byte_tokenizer(),
        device=device,
        num_updates=10,
        with_reference=False,
        **({} if world is None else {"world": world}),
    )


def _errors(layout: Layout, model: Path, world: World, device: torch.device) -> dict[str, float]:
    spread, alone = (_policy(layout, model, device, each) for each in (world, None))
    loss = build_loss(LossConfig(reference_policy_kl_penalty=0.0))
    batch = ragged_rows()
    batch.old_logprobs_BT = alone.logprobs(batch)
    scores = spread.logprobs(batch) - batch.old_logprobs_BT
    metrics, expected = (shared(policy.gradients(batch, loss)) for policy in (spread, alone))
    assert metrics.keys() == expected.keys()
    gradients = worst_error(spread.named_gradients(), alone.named_gradients())
    norms = [policy.step()[0] for policy in (spread, alone)]
    for policy in (spread, alone):
        policy.train(batch, loss)
        policy.train(batch, loss)
    return {
        "scores": float(scores.abs().max() / batch.old_logprobs_BT.abs().max()),
        "metrics": max(
            abs(metrics[name] - expected[name]) / (abs(expected[name]) + 1e-6) for name in expected
        ),
        "gradients": gradients,
        "norm": abs(norms[0] - norms[1]) / norms[1],
        "weights": worst_error(dict(spread.named_weights()), dict(alone.named_weights())),
        "state": worst_error(dict(spread.state_tensors()), dict(alone.state_tensors())),
    }


def above(results: dict[str, dict[str, float]], layouts: Sequence[str], tolerance: float) -> dict[str, Any]:
    """Return what is above the tolerance, or missing."""
    assert results.keys() == set(layouts)
    return {
        name: {what: error for what, error in errors.items() if not error <= tolerance}
        for name, errors in results.items()
        if any(not error <= tolerance for error in errors.values())
    }
