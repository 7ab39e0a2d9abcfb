"""What each process of a gloo group splits and exchanges through Accelerate; called by `loops`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.exchanges import FILL, flat, leaves, nested, objects_of, types_of
from seatrial.targets.accelerate.ranked import new_accelerator

WIDTH = 3


def _vectors(rows: Tensor) -> Tensor:
    """Return [rows, WIDTH]: each row's number, and the numbers after it."""
    return rows[:, None] + 100 * torch.arange(WIDTH)[None]


def _container(kind: str, num_rows: int) -> Any:
    rows = list(range(num_rows))
    if kind == "list":
        return rows
    if kind == "tuple":
        return tuple(rows)
    if kind == "tensor":
        return torch.tensor(rows)
    if kind == "tensor of vectors":
        return _vectors(torch.tensor(rows))
    if kind == "dictionary of lists":
        return {"row": list(rows), "text": [f"row {row}" for row in rows]}
    if kind == "dictionary of tensors":
        return {"row": torch.tensor(rows), "vectors": _vectors(torch.tensor(rows)).float()}
    try:
        from datasets import Dataset
    except ModuleNotFoundError as missing:
        raise NotServed("datasets is not installed") from missing
    return Dataset.from_dict({"row": rows, "text": [f"row {row}" for row in rows]})


def _rows(kind: str, given: Any) -> list[int]:
    """Return the numbers of rows in a container; -1 for one whose values are not all its own."""
    if kind in ("list", "tuple"):
        return list(given)
    if kind == "tensor":
        return list(given.tolist())
    if kind == "tensor of vectors":
        return _of_vectors(given)
    if kind == "dictionary of tensors":
        rows, others = given["row"].tolist(), _of_vectors(given["vectors"])
    else:
        rows, others = list(given["row"]), [int(text.split()[1]) for text in given["text"]]
    return [row if others[place : place + 1] == [row] else -1 for place, row in enumerate(rows)]


def _of_vectors(given: Tensor) -> list[int]:
    found = given[:, 0].long()
    right = (given == _vectors(found)).all(1)
    return [row if whole else -1 for row, whole in zip(found.tolist(), right.tolist(), strict=True)]


def split(plan: Mapping[str, Any]) -> list[list[int]]:
    """Return the rows of this process's part, and those that the container has after the block."""
    accelerator, kind = new_accelerator(), plan["kind"]
    container = _container(kind, plan["num_rows"])
    if plan["twice"]:
        with accelerator.split_between_processes(container, apply_padding=plan["padded"]):
            pass
    with accelerator.split_between_processes(container, apply_padding=plan["padded"]) as part:
        rows = _rows(kind, part)
    return [rows, _rows(kind, container)]


def exchanged_nested(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this process has after an exchange, by place, and the types of the containers."""
    from accelerate import utils

    accelerator, rank, how = new_accelerator(), int(os.environ["RANK"]), plan["how"]
    if how == "gather objects":
        return {"objects": repr(utils.gather_object(objects_of(rank)))}
    if how == "broadcast objects":
        sent = objects_of(plan["source"])
        received = sent if rank == plan["source"] else [None] * len(sent)
        return {"objects": repr(utils.broadcast_object_list(received, from_process=plan["source"]))}
    own = leaves(rank, numbers=how in ("sum", "mean"), unequal=how == "pad", scalar=how != "concatenate")
    given = nested(own)
    if how == "gather":
        found = accelerator.gather(given)
    elif how == "pad":
        found = accelerator.pad_across_processes(given, dim=0, pad_index=FILL)
    elif how == "broadcast":
        found = utils.broadcast(given, from_process=plan["source"])
    elif how == "concatenate":
        found = utils.concatenate([given, nested(leaves(rank + 1, scalar=False))])
    elif how == "float32":
        found = utils.convert_to_fp32(given)
    else:
        found = accelerator.reduce(given, reduction=how)
    return {**{name: value.contiguous() for name, value in flat(found).items()}, "types": types_of(found)}


def seeded_draws(plan: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return random numbers of Python, NumPy and torch after the seed is set."""
    import random

    import numpy as np
    from accelerate.utils import set_seed

    new_accelerator()
    set_seed(plan["seed"], device_specific=plan["own"])
    return {
        "Python": [random.random() for _ in range(3)],
        "NumPy": [float(one) for one in np.random.rand(3)],
        "torch": [float(one) for one in torch.rand(3)],
    }
