"""A Hugging Face directory written from tensors that come one by one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refrl.config import LoraConfig
from refrl.directories import new_directory
from refrl.models.loading import writing
from refrl.policy.adapter_files import save_adapters
from refrl.policy.megatron.architecture import Architecture
from refrl.policy.megatron.checkpoint_files import write_tensors
from refrl.policy.megatron.conversion import links

SHARD_BYTES = 4 * 2**30
"""Most bytes of an exported file, which is in memory while it is written."""


def save_directory(
    weights: Iterator[tuple[str, Tensor]],
    architecture: Architecture,
    dtype: torch.dtype,
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    *,
    adapters: tuple[Mapping[str, Tensor], LoraConfig] | None = None,
) -> None:
    """Write weights (safetensors), configuration and tokenizer; the directory appears whole or not at all.

    Args:
        weights: whole tensors named as in a checkpoint; every rank takes all of them.
        architecture: of the model.
        dtype: of the weights.
        tokenizer: saved with them.
        output: an empty or missing directory; the first process writes it.
        adapters: whole, with their configuration: written in `adapter/` within it, in PEFT's format.

    Raises:
        ConfigError: the directory cannot be made.
        OSError: it cannot be written; the message names it.
    """
    if dist.get_rank():
        for _ in weights:
            pass
        return
    config = copy.deepcopy(architecture.config)
    config.dtype = dtype
    shapes = {
        name: shape
        for link in links(architecture)
        for name, shape in zip(link.tensors, link.shapes, strict=True)
    }
    with new_directory(output) as folder, writing(output):
        write_tensors(weights, shapes, folder, shard_bytes=SHARD_BYTES)
        config.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))
        if config.name_or_path:
            _copy_generation_config(Path(config.name_or_path), folder)
        if adapters is not None:
            save_adapters(*adapters, str(config.name_or_path), folder / "adapter")


def _copy_generation_config(source: Path, folder: Path) -> None:
    """Copy the model's generation defaults, if it has some."""
    path = source / "generation_config.json"
    if path.is_file():
        (folder / path.name).write_bytes(path.read_bytes())
