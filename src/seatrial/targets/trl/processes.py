"""What the processes of a trainer's run share: folders, and data sets on disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from seatrial.targets.common.trainers import temporary_folder


def is_one_of_several() -> bool:
    """Return whether this process is one of a group of several."""
    return int(os.environ.get("WORLD_SIZE", 1)) > 1


def shared_folder() -> str:
    """Return a new folder for what a trainer writes; in several processes that of the first one."""
    shared = [tempfile.mkdtemp(dir=temporary_folder())]
    if is_one_of_several():
        torch.distributed.broadcast_object_list(shared)
    return shared[0]


def made_dataset(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a data set of these rows; in several processes one on disk.

    TRL passes what it precomputes from one process to the others through the folder of the data set.
    """
    from datasets import Dataset, load_from_disk

    made = Dataset.from_list(list(rows))
    if not is_one_of_several():
        return made
    folder = shared_folder()
    if torch.distributed.get_rank() == 0:
        made.save_to_disk(folder)
    torch.distributed.barrier()
    return load_from_disk(folder)
