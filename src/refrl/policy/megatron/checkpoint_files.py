"""Reads and writes Hugging Face safetensors files tensor by tensor; at most one file is in memory."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refrl.config import ConfigError, LoraConfig
from refrl.directories import new_directory
from refrl.models.loading import writing
from refrl.policy.adapter_files import save_adapters
from refrl.policy.megatron.architecture import Architecture
from refrl.policy.megatron.conversion import links

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class TensorFiles:
    """The tensors of a Hugging Face directory by name."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Open the files; the stack closes them.

        Raises:
            ConfigError: there are none, or one cannot be read.
        """
        self._files: dict[str, Any] = {}
        paths = sorted(directory.glob("*.safetensors"))
        if not paths:
            raise ConfigError(
                f"{directory} holds no weights (*.safetensors), which the Megatron-core policy reads"
            )
        for path in paths:
            try:
                opened = stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{path} cannot be read: {error}") from error
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                self._files[name] = opened

    def names(self) -> set[str]:
        """Return the names of all tensors."""
        return set(self._files)

    def read(self, name: str) -> Tensor:
        """Read one tensor whole."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor


def write_tensors(
    tensors: Iterable[tuple[str, Tensor]],
    shapes: Mapping[str, tuple[int, ...]],
    folder: Path,
    *,
    shard_bytes: int,
) -> None:
    """Write tensors as Transformers does, one file or several with an index; called with nothing held back.

    Args:
        tensors: what is written, each looked at once.
        shapes: of all of them, in their order: how many files there will be is in the names of all.
        folder: is there.
        shard_bytes: most bytes of a file (a larger tensor has one for itself).

    Raises:
        OSError: it cannot be written.
    """
    waiting = iter(tensors)
    first = next(waiting)
    shards = list(_shards(shapes, first[1].element_size(), shard_bytes))
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    )
    chained = _chain(first, waiting)
    weight_map: dict[str, str] = {}
    total = 0
    for file, shard in zip(names, shards, strict=True):
        held: dict[str, Tensor] = {}
        for expected in shard:
            name, tensor = next(chained)
            assert name == expected
            held[name] = tensor.detach().cpu().contiguous()
        total += sum(tensor.nbytes for tensor in held.values())
        save_file(held, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _chain(first: tuple[str, Tensor], rest: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    yield first
    yield from rest


def _shards(
    shapes: Mapping[str, tuple[int, ...]], element_size: int, shard_bytes: int
) -> Iterator[list[str]]:
    shard: list[str] = []
    size = 0
    for name, shape in shapes.items():
        nbytes = torch.Size(shape).numel() * element_size
        if shard and size + nbytes > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += nbytes
    yield shard


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
