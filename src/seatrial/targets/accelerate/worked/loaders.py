"""Worked examples of Accelerate's loaders: shares of processes, batches that are skipped, sizes, orders of seeds."""

from __future__ import annotations

import copy
import math
from collections import namedtuple
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from seatrial.targets.accelerate.ranked import new_accelerator
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row, unlike

LOADER = "accelerate.data_loader"
PROCESSES = (1, 2, 3)


def _batches(number: int, size: int, drop_last: bool) -> list[list[int]]:
    rows = [list(range(start, min(start + size, number))) for start in range(0, number, size)]
    return [row for row in rows if len(row) == size or not drop_last]


def _cycle(first: Sequence[int], length: int) -> list[int]:
    return [first[place % len(first)] for place in range(length)]


def _due(
    number: int, size: int, processes: int, split: bool, drop: bool, even: bool
) -> list[list[list[int]]]:
    """Return the batches of each process.

    Either each batch is cut, or the processes take batches alternately; a round that is not whole is dropped, left as
    it is, or filled up with rows from the beginning.
    """
    batches = _batches(number, size, drop)
    shares: list[list[list[int]]] = [[] for _ in range(processes)]
    if split:
        part = size // processes
        for batch in batches:
            whole = batch + _cycle(batches[0], size - len(batch)) if even else batch
            for rank in range(processes):
                cut = whole[rank * part : (rank + 1) * part]
                shares[rank] += [cut] if cut else []
        return shares
    for start in range(0, len(batches), processes):
        turn = batches[start : start + processes]
        rows = list(chain.from_iterable(turn))
        if len(rows) < processes * size:
            if drop:
                break
            if even:
                rows += _cycle(list(range(min(number, size * processes))), processes * size - len(rows))
                turn = [rows[at : at + size] for at in range(0, len(rows), size)]
        for rank, batch in enumerate(turn):
            shares[rank].append(batch)
    return shares


def _shared(shard_class: Any) -> list[str]:
    """Return where the shares of a sampler, or their number, are not those of the definition."""
    wrong = []
    for number in (0, 1, 2, 5, 6, 7, 11, 12, 13, 18):
        for processes in PROCESSES:
            for size in (6, 3, 2) if processes == 1 else (6, 2 * processes):
                for split in (False, True):
                    for drop in (False, True):
                        for even in (True, False):
                            what = f"{number} rows, {size=}, {processes=}, {split=}, {drop=}, {even=}"
                            due = _due(number, size, processes, split, drop, even)
                            for rank in range(processes):
                                sampler = torch.utils.data.BatchSampler(range(number), size, drop)
                                shard = shard_class(
                                    sampler, processes, rank, split_batches=split, even_batches=even
                                )
                                found = [list(batch) for batch in shard]
                                wrong += [] if found == due[rank] else [f"{what}: {found}, not {due[rank]}"]
                                # With a split, a process without rows of the last batch counts it too.
                                if even and len(shard) != len(found):
                                    wrong.append(f"{what}: a length of {len(shard)}")
    return wrong


class _Stream(torch.utils.data.IterableDataset[int]):
    def __init__(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.number))

    def __len__(self) -> int:
        return self.number


def _streamed(shard_class: Any) -> list[str]:
    """Return where the rows of a stream that a process gets, or their number, are not those of the definition."""
    wrong = []
    for number in (0, 1, 3, 5, 8, 12, 13):
        for processes in PROCESSES:
            for split in (False, True):
                for drop in (False, True):
                    size = 6 if split else 2
                    whole = size if split else size * processes
                    rows = list(range(number))
                    if drop:
                        rows = rows[: number // whole * whole]
                    elif number % whole:
                        rows += _cycle(rows[: min(whole, number)], whole - number % whole)
                    part = whole // processes
                    for rank in range(processes):
                        due = [
                            row
                            for start in range(0, len(rows), whole)
                            for row in rows[start + rank * part : start + (rank + 1) * part]
                        ]
                        shard = shard_class(
                            _Stream(number), batch_size=size, drop_last=drop, num_processes=processes,
                            process_index=rank, split_batches=split,
                        )  # fmt: skip
                        found = list(shard)
                        what = f"{number} rows, {processes=}, {rank=}, {split=}, {drop=}"
                        wrong += [] if found == due else [f"{what}: {found}, {due} are due"]
                        if not split and len(shard) != len(due):
                            wrong.append(f"{what}: a length of {len(shard)}")
    return wrong


def _ends(loader: Any) -> list[Any]:
    """Return the batches of a loader, and of each whether it is known to be the last."""
    gradient: Any = find_name("accelerate", ["accelerate.state:GradientState"])()
    return [[batch.tolist(), gradient.end_of_dataloader] for batch in loader]


def _prepared(rows: Any, **options: Any) -> Any:
    accelerator = new_accelerator()
    return accelerator.prepare(torch.utils.data.DataLoader(rows, **options))


def _skipped(skip: Any) -> list[Any]:
    """Return the batches that are left of loaders of rows and streams, and the number of batches of rows."""
    found: list[Any] = []
    kinds: Sequence[Any] = (list(range(7)), _Stream(7))
    for rows in kinds:
        loader = _prepared(rows, batch_size=2)
        for number in (0, 1, 3):
            left = skip(loader, number)
            found.append([_ends(left), len(left) if isinstance(rows, list) else 4 - number])
        plain = skip(torch.utils.data.DataLoader(rows, batch_size=2), 2)
        found.append([[batch.tolist() for batch in plain], len(plain)])
        found.append([batch.tolist() for batch in loader])
    again = skip(skip(_prepared(list(range(7)), batch_size=2), 1), 1)
    return [*found, [[batch.tolist() for batch in again], len(again)]]


def _left(start: int) -> list[Any]:
    return [[batch, place == 3] for place, batch in enumerate(_batches(7, 2, False))][start:]


LEFT = [[_left(0), 4], [_left(1), 3], [_left(3), 1], [[[4, 5], [6]], 2], _batches(7, 2, False)]


def _sizes(prepare: Any) -> list[list[Any]]:
    """Return the total size of a batch, the rows of all, and the number of batches, on a share of two processes."""
    found = []
    kinds: Sequence[Any] = (list(range(10)), _Stream(10))
    for split in (False, True):
        for rows in kinds:
            loader = prepare(
                torch.utils.data.DataLoader(rows, batch_size=4), device=torch.device("cpu"), num_processes=2,
                process_index=1, split_batches=split, put_on_device=False, rng_types=[],
            )  # fmt: skip
            first = next(iter(loader)).tolist()
            sampled = isinstance(rows, list)
            sizes = [loader.total_batch_size, loader.total_dataset_length] if sampled else []
            found.append([*sizes, first])
    return found


def _seeded(prepare: Any) -> list[str]:
    """Return where the orders of a sampler with a seed are not those of torch's permutations of seed and epoch."""
    wrong = []
    for seed in (0, 11):
        torch_state = torch.random.get_rng_state()
        loader = prepare(
            torch.utils.data.DataLoader(list(range(9)), batch_size=2, shuffle=True),  # type: ignore[arg-type]
            use_seedable_sampler=True,
            data_seed=seed,
        )
        orders = [[int(row) for batch in loader for row in batch] for _ in range(2)]
        loader.set_epoch(7)
        orders.append([int(row) for batch in loader for row in batch])
        torch.random.set_rng_state(torch_state)
        for epoch, order in zip((0, 1, 7), orders, strict=True):
            due = torch.randperm(9, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
            wrong += [] if order == due else [f"seed {seed}, epoch {epoch}: {order}, {due} is due"]
    return wrong


Pair = namedtuple("Pair", ["one", "two"])


def _nested(operations: Any) -> list[str]:
    """Return where functions of nested tensors change types, what they are given, or other values."""
    apply = find_name("accelerate", ["accelerate.utils.operations:recursively_apply"])
    make = find_name("accelerate", ["accelerate.utils.operations:initialize_tensors"])
    structure = find_name("accelerate", ["accelerate.utils.operations:get_data_structure"])
    listed = find_name("accelerate", ["accelerate.utils.operations:listify"])
    device = find_name("accelerate", ["accelerate.utils.operations:find_device"])
    given = {"a": Pair(torch.ones(2, 3), [torch.arange(2)]), "b": "text", "c": (torch.zeros(1), 4)}
    kept = copy.deepcopy(given)
    found = apply(lambda value: value + 1, given)
    wrong = []
    if not (isinstance(found["a"], Pair) and found["b"] == "text" and found["c"][1] == 4):
        wrong.append(f"kinds of {found}")
    if found["a"].one.tolist() != [[2.0] * 3] * 2 or found["a"].two[0].tolist() != [1, 2]:
        wrong.append(f"values of {found}")
    wrong += [] if str(given) == str(kept) else ["what is given is changed"]
    try:
        apply(lambda value: value, given, error_on_other_type=True)
        wrong.append("text is taken for a tensor")
    except TypeError:
        pass
    made = make(structure({"x": [torch.ones(3, 2, dtype=torch.int16)], "y": torch.zeros(2)}))
    shapes = [tuple(made["x"][0].shape), made["x"][0].dtype, tuple(made["y"].shape), made["y"].dtype]
    wrong += [] if shapes == [(3, 2), torch.int16, (2,), torch.float32] else [f"made {shapes}"]
    lists = listed({"x": torch.ones(2, requires_grad=True), "y": (torch.ones(1, dtype=torch.bfloat16), "z")})
    wrong += [] if lists == {"x": [1.0, 1.0], "y": ([1.0], "z")} else [f"lists {lists}"]
    places = [device({"x": [torch.ones(1)]}), device((1, "x")), device([{"y": torch.ones(1, device="meta")}])]
    wrong += [] if [str(one) for one in places] == ["cpu", "None", "meta"] else [f"devices {places}"]
    return wrong


def _unscaled(accelerator_class: Any) -> list[str]:
    """Return where gradients of a scaled loss are not divided by the scale, once, before they are clipped."""
    wrong = []
    for kind, right in (("norm", 5.0), ("value", 4.0), ("none", 4.0)):
        accelerator = new_accelerator()
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        accelerator.native_amp = True
        accelerator.state._mixed_precision = "fp16"
        made = accelerator.prepare(optimizer)
        accelerator.backward((weight * torch.tensor([3.0, 4.0])).sum())
        if weight.grad is None or not math.isclose(float(weight.grad[1]), 32.0):
            wrong.append(f"{kind}: a gradient of {weight.grad}, scaled")
        if kind == "norm":
            wrong += unlike([float(accelerator.clip_grad_norm_([weight], 2.5))], [right], "the norm")
            due = [-1.5, -2.0]
        elif kind == "value":
            accelerator.clip_grad_value_([weight], 3.5)
            due = [-3.0, -3.5]
        else:
            due = [-3.0, -4.0]
        made.step()
        wrong += unlike(weight.tolist(), due, kind, 1e-5)
        wrong += [f"{kind}: skipped"] if made.step_was_skipped else []
    return wrong


# Sources: the documentation of BatchSamplerShard, IterableDatasetShard, prepare_data_loader and skip_first_batches.
LOADER_ROWS: Sequence[Row] = (
    Row("batches", f"{LOADER}:BatchSamplerShard", "shares of every size", _shared, []),
    Row("batches", f"{LOADER}:IterableDatasetShard", "shares of streams", _streamed, []),
    Row(
        "batches",
        f"{LOADER}:skip_first_batches",
        "batches that are left",
        _skipped,
        [*LEFT, *LEFT, [[[4, 5], [6]], 2]],
        since="1.3",
    ),
    Row(
        "batches",
        f"{LOADER}:prepare_data_loader",
        "sizes of shares",
        _sizes,
        [
            [8, 10, [4, 5, 6, 7]],
            [[4, 5, 6, 7]],
            [4, 10, [2, 3]],
            [[2, 3]],
        ],
        since="1.3",
    ),
    Row("batches", f"{LOADER}:prepare_data_loader", "orders of seeds", _seeded, [], since="1.3"),
    Row("states", "accelerate.utils:operations", "nested values", _nested, [], since="1.3"),
    Row("steps", "accelerate:Accelerator", "gradients of a scaled loss", _unscaled, [], since="1.3"),
)
