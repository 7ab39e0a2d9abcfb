"""What the processes of a trainer's run share: folders, and data sets on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from seatrial.targets.common.trainers import new_folder
from seatrial.targets.trl.named import code_has


def is_one_of_several() -> bool:
    """Return whether this process is one of a group of several."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def shared_folder() -> str:
    """Return a new folder for what a trainer writes; in several processes that of the first one."""
    shared = [new_folder()]
    if is_one_of_several():
        torch.distributed.broadcast_object_list(shared)
    return shared[0]


def made_dataset(rows: Sequence[Mapping[str, Any]], trainer_class: type) -> Any:
    """Return a data set of these rows: one in memory, or one on disk where the trainer needs that.

    TRL passes what it precomputes from one process to the others through the folder of the data set. Releases before
    1.10 read it from there in one process too, and end with FileNotFoundError where the data set has no folder.
    """
    from datasets import Dataset, load_from_disk

    made = Dataset.from_list(list(rows))
    several = is_one_of_several()
    if not several and not _reads_precomputed_file(trainer_class):
        return made
    folder = shared_folder()
    if not several or torch.distributed.get_rank() == 0:
        made.save_to_disk(folder)
    if several:
        torch.distributed.barrier()
    return load_from_disk(folder)


def _reads_precomputed_file(trainer_class: type) -> bool:
    """Return whether a trainer reads a file of references whose place it has not given to what writes it."""
    return code_has("Dataset.from_file(cache_file)", trainer_class) and not code_has(
        "cache_file_name=cache_file", trainer_class
    )
