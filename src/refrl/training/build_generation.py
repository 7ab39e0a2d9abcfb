"""Builds a generation engine, its placement and its weight sync from the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from refrl.config import ConfigError, GenerationConfig, PolicyConfig
from refrl.generation.base import Generator
from refrl.generation.broadcast_link import BroadcastLink
from refrl.generation.megatron.engine import MegatronGenerator
from refrl.generation.process import ProcessGenerator, SocketLink
from refrl.generation.quantized import quantize_layers
from refrl.generation.torch_engine import TorchGenerator
from refrl.generation.vllm.engine import VllmGenerator
from refrl.models.loading import load_model
from refrl.timing import Timer
from refrl.weight_sync.base import WeightSource, WeightSync
from refrl.weight_sync.colocated import make_weight_sync


def build_generator(
    config: PolicyConfig, tokenizer: PreTrainedTokenizerBase, *, device: torch.device, number: int = 0
) -> Generator:
    """Return the generation engine with the weights of the model's directory; a weight sync updates them later.

    Args:
        config: names the model, the engine and its place.
        tokenizer: names the padding token.
        device: the policy's.
        number: of the engine among those of this host.

    Raises:
        ConfigError: the model cannot be loaded, or there are too few devices.
        refrl.generation.process.GeneratorLostError: the engine's process ended while it started.
    """
    place: Callable[..., Generator] = build_engine
    if config.generation.placement == "process":
        place = _engine_in_process
    elif config.generation.placement == "ray":
        from refrl.generation.ray_link import actor_generator as place  # imports Ray only where it is used
    return place(
        config, pad_token_id=tokenizer.pad_token_id, device=engine_device(config.generation, device, number)
    )


def engine_device(config: GenerationConfig, device: torch.device, number: int) -> torch.device:
    """Return the device of an engine: the policy's, or one of those on which nothing but generation runs.

    Raises:
        ConfigError: there are too few CUDA devices.
    """
    gpus = config.colocated.resources.gpus_per_node
    if gpus is None:
        return device
    first = (torch.cuda.device_count() if device.type == "cuda" else 0) - gpus
    if device.type != "cuda" or (device.index or 0) >= first:
        raise ConfigError(
            f"policy.generation.colocated.resources.gpus_per_node={gpus} leaves no CUDA device for the policy on "
            f"{device}: this host has {first + gpus}; lower it, lower cluster.num_processes, or leave it out"
        )
    return torch.device("cuda", first + number % gpus)


def build_engine(config: PolicyConfig, *, pad_token_id: int, device: torch.device) -> Generator:
    """Return the generation engine in this process.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    return ENGINES[config.generation.backend](config, pad_token_id, device)


def _torch_engine(config: PolicyConfig, pad_token_id: int, device: torch.device) -> Generator:
    model = load_model(Path(config.model_name)).eval().requires_grad_(False)
    model.to(device=device, dtype=getattr(torch, config.precision))
    if config.generation.quantization == "int8":
        quantize_layers(model)
    return TorchGenerator(
        model,
        pad_token_id,
        block_tokens=config.generation.block_tokens,
        load_batch_bytes=config.generation.delta_compression.delta_load_batch_size_bytes,
    )


def _engine_in_process(config: PolicyConfig, *, pad_token_id: int, device: torch.device) -> Generator:
    python = config.generation.vllm_cfg.python if config.generation.backend == "vllm" else None
    connect = partial(LINKS[config.generation.weight_transport], python, device)
    return ProcessGenerator(config, pad_token_id=pad_token_id, device=device, connect=connect)


def _vllm_engine(config: PolicyConfig, pad_token_id: int, device: torch.device) -> Generator:
    return VllmGenerator(config, device=device)


def _megatron_engine(config: PolicyConfig, pad_token_id: int, device: torch.device) -> Generator:
    from refrl.policy.megatron.served import ServedModel

    model = load_model(Path(config.model_name)).eval().requires_grad_(False)
    positions = getattr(model.config, "max_position_embeddings", config.max_total_sequence_length)
    return MegatronGenerator(
        model.to(getattr(torch, config.precision)),
        ServedModel(config, device),
        pad_token_id=pad_token_id,
        limit=min(config.max_total_sequence_length, positions),
        load_batch_bytes=config.generation.delta_compression.delta_load_batch_size_bytes,
    )


ENGINES: Mapping[str, Callable[[PolicyConfig, int, torch.device], Generator]] = {
    "torch": _torch_engine,
    "vllm": _vllm_engine,
    "megatron": _megatron_engine,
}
"""Generation engines by the name that `policy.generation.backend` takes."""


LINKS: Mapping[str, Callable[[str | None, torch.device], SocketLink]] = {
    "messages": lambda python, _: SocketLink(python),
    "broadcast": lambda python, device: BroadcastLink(python, engine_device=device),
}
"""Connections to an engine in a separate process by the name that `policy.generation.weight_transport` takes.

Each takes the interpreter of the process and the engine's device.
"""


def build_weight_sync(
    config: GenerationConfig, policy: WeightSource, generator: Generator, timer: Timer | None = None
) -> WeightSync:
    """Return the weight sync of a generator, after a first sync.

    Args:
        config: whether policy and generator share storage, where the generator runs, and what is sent.
        policy: the source of the weights.
        generator: the receiver of the weights.
        timer: records the seconds of each phase of a transfer.

    Raises:
        refrl.weight_sync.base.WeightSyncError: the weights did not arrive complete.
    """
    return make_weight_sync(config, policy, generator, timer or Timer())
