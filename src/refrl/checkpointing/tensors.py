"""Writes tensors to safetensors files and reads them back with `torch.distributed.checkpoint`, for any number of ranks.

No file is a pickle: the format is that of `torch.distributed.checkpoint.hf_storage`, whose metadata are the headers of
the safetensors files.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from refrl.config import ConfigError

FILE = "shard-00001-model-00001-of-00001.safetensors"
"""Name that `torch.distributed.checkpoint` gives the file if the first rank holds everything."""


def write_tensors(tensors: Mapping[str, Tensor], directory: Path) -> None:
    """Write tensors on the CPU into a new directory.

    Raises:
        OSError: it cannot be written, as on a full disk.
    """
    directory.mkdir()
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / FILE)
    except SafetensorError as error:
        raise OSError(f"cannot write {directory / FILE}: {error}") from error


def read_tensors(directory: Path, into: Mapping[str, Tensor]) -> None:
    """Read tensors into existing ones; each rank reads its shard of a DTensor.

    Raises:
        ConfigError: names, shapes or types differ from those in the files.
    """
    reader = HuggingFaceStorageReader(str(directory))
    entries = reader.read_metadata().state_dict_metadata.items()
    stored = {name: entry for name, entry in entries if isinstance(entry, TensorStorageMetadata)}
    missing, unknown = sorted(into.keys() - stored.keys()), sorted(stored.keys() - into.keys())
    if missing or unknown:
        raise ConfigError(
            f"the checkpoint in {directory.parent} is missing {len(missing)} tensors of this run {missing[:3]} and has "
            f"{len(unknown)} unknown ones {unknown[:3]}: resume with the policy that it was saved with"
        )
    for name, tensor in into.items():
        kept = stored[name]
        if tuple(kept.size) != tuple(tensor.shape) or kept.properties.dtype != tensor.dtype:
            raise ConfigError(
                f"the checkpoint in {directory.parent} has {name} as {tuple(kept.size)} {kept.properties.dtype}, and "
                f"this run as {tuple(tensor.shape)} {tensor.dtype}: resume with the policy that it was saved with"
            )
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message=".*torch.distributed is (disabled|unavailable).*")
        load(dict(into), storage_reader=reader, no_dist=True)
