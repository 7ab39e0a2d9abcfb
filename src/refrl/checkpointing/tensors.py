"""Tensors to safetensors files and back, by `torch.distributed.checkpoint`: any number of ranks reads them.

No file is a pickle: the form is the one of `torch.distributed.checkpoint.hf_storage`, whose metadata are the headers of
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
"""Name that `torch.distributed.checkpoint` gives the file of a run whose first rank has everything."""


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
    """Read tensors into those that are there, each rank its own part of what is spread.

    Raises:
        ConfigError: names, shapes or types are not those of the files.
    """
    reader = HuggingFaceStorageReader(str(directory))
    entries = reader.read_metadata().state_dict_metadata.items()
    stored = {name: entry for name, entry in entries if isinstance(entry, TensorStorageMetadata)}
    missing, unknown = sorted(into.keys() - stored.keys()), sorted(stored.keys() - into.keys())
    if missing or unknown:
        raise ConfigError(
            f"the checkpoint in {directory.parent} lacks {len(missing)} tensors of this run {missing[:3]} and has "
            f"{len(unknown)} that it does not know {unknown[:3]}: resume with the policy that it was saved with"
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
