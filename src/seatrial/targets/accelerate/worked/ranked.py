"""What processes of a gloo group do for worked examples of several processes; called by `several`."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.accelerate.ranked import new_accelerator
from seatrial.targets.accelerate.worked.placed import differing
from seatrial.targets.common.worked_rows import unlike


def _own(rank: int) -> dict[str, Any]:
    """Return nested tensors of a process: of no dimension, of none of the rows, not contiguous, of several dtypes."""
    made = torch.arange(6).reshape(2, 3) + 10 * rank
    return {
        "numbers": made.float() / 4,
        "half": [made.bfloat16(), (made.double() / 8,)],
        "turned": made.T.float(),
        "bools": made % 2 == 0,
        "ids": {"of": made},
        "scalar": torch.tensor(2.5 + rank),
        "none of the rows": torch.zeros(0, 3),
    }


def _flat(value: Any, path: str = "") -> dict[str, Tensor]:
    if isinstance(value, Mapping):
        pairs = [(f"{path}.{name}", one) for name, one in value.items()]
    elif isinstance(value, list | tuple):
        pairs = [(f"{path}.{place}", one) for place, one in enumerate(value)]
    else:
        return {path: value}
    return {key: one for name, part in pairs for key, one in _flat(part, name).items()}


def gathered(payload: Mapping[str, Any]) -> list[str]:
    """Return what differs from the values of both processes, one after the other, and inputs that are changed."""
    accelerator, rank = new_accelerator(), int(os.environ["RANK"])
    own = _own(rank)
    found = _flat(accelerator.gather(own))
    all_of = [_flat(_own(other)) for other in range(accelerator.num_processes)]
    due = {
        name: torch.cat([one[name][None] if not one[name].dim() else one[name] for one in all_of])
        for name in all_of[0]
    }
    return differing(found, due) + differing(_flat(own), _flat(_own(rank)), "input ")


def reduced(payload: Mapping[str, Any]) -> list[str]:
    """Return what differs from sums and means in float64, and inputs that are changed."""
    accelerator, rank = new_accelerator(), int(os.environ["RANK"])
    wrong = []
    for how in ("sum", "mean"):
        own = {name: value for name, value in _flat(_own(rank)).items() if value.is_floating_point()}
        kept = {name: value.clone() for name, value in own.items()}
        found = accelerator.reduce(own, reduction=how)
        for name, value in found.items():
            parts = [_flat(_own(other))[name].double() for other in range(accelerator.num_processes)]
            right = sum(parts) / (len(parts) if how == "mean" else 1)
            if value.dtype != own[name].dtype:
                wrong.append(f"{how} of {name}: {value.dtype}")
            wrong += unlike(
                value.double().flatten().tolist(), torch.as_tensor(right).flatten().tolist(), f"{how} {name}"
            )
        wrong += differing(own, kept, "input ")
    counts = accelerator.reduce(torch.tensor([3 + rank, 4]), reduction="sum")
    return wrong + unlike(counts.tolist(), [7, 8], "sum of counts")


def padded(payload: Mapping[str, Any]) -> list[str]:
    """Return what differs from padding by a loop, of every dimension and dtype; rows of one process alone."""
    accelerator, rank = new_accelerator(), int(os.environ["RANK"])
    wrong = []
    for dim in (0, 1, 2, -1, -3):
        for first in (False, True):
            for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool):
                shape = [2, 3, 2]
                longest = shape[dim] + 2
                shape[dim] += 2 * rank
                own = (torch.arange(torch.Size(shape).numel()).reshape(shape) + 1).to(dtype)
                fill = True if dtype is torch.bool else 7
                full = [*shape]
                full[dim] = longest
                due = torch.full(full, fill, dtype=dtype)
                start = longest - shape[dim] if first else 0
                due.narrow(dim, start, shape[dim]).copy_(own)
                found = accelerator.pad_across_processes(
                    {"a": [own], "scalar": torch.tensor(3)}, dim=dim, pad_index=fill, pad_first=first
                )
                if not torch.equal(found["a"][0].to(dtype), due) or int(found["scalar"]) != 3:
                    wrong.append(f"{dtype}, dimension {dim}, first={first}")
    empty = accelerator.pad_across_processes(torch.ones(2 * rank, 3), dim=0, pad_index=5)
    if not torch.equal(empty, torch.ones(2, 3) if rank else torch.full((2, 3), 5.0)):
        wrong.append("no rows in one process")
    return wrong


def in_order(payload: Mapping[str, Any]) -> list[Any]:
    """Return what is seen in blocks that a process enters first, and which decorated functions run here."""
    accelerator, rank = new_accelerator(), int(os.environ["RANK"])
    shared: list[Any] = [tempfile.mkdtemp(prefix="seatrial-") if not rank else None]
    torch.distributed.broadcast_object_list(shared)
    seen = []
    for number, block in enumerate((accelerator.main_process_first, accelerator.local_main_process_first)):
        path = Path(shared[0]) / str(number)
        with block():
            if rank == 0:
                time.sleep(0.1)
                path.write_text("written", encoding="utf-8")
            else:
                seen.append(path.exists())
    ran: list[str] = []

    def named(name: str) -> Callable[[], str]:
        def run() -> str:
            ran.append(name)
            return name

        return run

    results = [
        accelerator.on_main_process(named("main"))(),
        accelerator.on_local_main_process(named("local main"))(),
        accelerator.on_last_process(named("last"))(),
        accelerator.on_process(named("process 1"), process_index=1)(),
        accelerator.on_local_process(named("local process 1"), local_process_index=1)(),
        accelerator.on_process(process_index=0)(named("process 0"))(),
    ]
    accelerator.wait_for_everyone()
    return [seen, ran, [one or "" for one in results]]


def synchronised(payload: Mapping[str, Any]) -> list[str]:
    """Return which random numbers differ from those of the first process after states are shared."""
    from accelerate.utils import synchronize_rng_states

    accelerator, rank = new_accelerator(), int(os.environ["RANK"])
    torch.manual_seed(7 * rank + 1)
    generator = torch.Generator().manual_seed(5 * rank + 2)
    random.seed(rank)
    own = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    due = torch.rand(2, generator=own[0]).tolist(), torch.rand(2, generator=own[1]).tolist()
    random.seed(rank)
    first = random.random()
    random.seed(rank)
    synchronize_rng_states(["torch", "generator"], generator)
    wrong = unlike(torch.rand(2).tolist(), due[0], "torch")
    wrong += unlike(torch.rand(2, generator=generator).tolist(), due[1], "generator")
    wrong += unlike([random.random()], [first], "Python, which is not named")
    accelerator.wait_for_everyone()
    return wrong


def synced_late(payload: Mapping[str, Any]) -> list[float]:
    """Return gradients after two forward passes without an exchange, of which the second backward pass exchanges."""
    accelerator, rank = new_accelerator(), int(os.environ["RANK"])
    layer: Any = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    model = accelerator.prepare(layer)
    with accelerator.no_sync(model):
        losses = [model(torch.full((1, 1), 1.0 + rank + number)).sum() for number in range(2)]
        accelerator.backward(losses[0])
    found = [float(layer.weight.grad)]
    with accelerator.trigger_sync_in_backward(model):
        accelerator.backward(losses[1])
    found.append(float(layer.weight.grad))
    layer.weight.grad = None
    accelerator.backward(model(torch.full((1, 1), 3.0 + rank)).sum())
    return [*found, float(layer.weight.grad)]


def cycled(payload: Mapping[str, Any]) -> list[float]:
    """Return rates of a one-cycle schedule, whose steps are those of one process, to its end and after it."""
    accelerator = new_accelerator()
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=7)
    model, optimizer, schedule = accelerator.prepare(layer, optimizer, schedule)
    found = []
    for _ in range(5):
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        found.append(float(schedule.get_last_lr()[0]))
    return found


def on_mesh(payload: Mapping[str, Any]) -> list[list[int]]:
    """Return rows of this process, where processes of one part of a mesh are given the same."""
    from accelerate.data_loader import prepare_data_loader
    from torch.distributed.device_mesh import init_device_mesh

    new_accelerator()
    names, sizes = zip(*payload["mesh"].items(), strict=True)
    mesh = init_device_mesh("cpu", tuple(sizes), mesh_dim_names=tuple(names))
    rows: Any = list(range(16))
    given: Any = torch.utils.data.DataLoader(rows, batch_size=2, shuffle=payload["shuffle"])
    torch.manual_seed(3)
    loader = prepare_data_loader(
        given, put_on_device=False, torch_device_mesh=mesh, use_seedable_sampler=True
    )
    return [batch.tolist() for batch in loader]


def nested_batches(payload: Mapping[str, Any]) -> list[Any]:
    """Return batches of nested columns that one process reads for all, and how many have other columns than rows."""
    from accelerate.utils import DataLoaderConfiguration

    accelerator = new_accelerator(
        dataloader_config=DataLoaderConfiguration(
            dispatch_batches=True, split_batches=payload["split"], even_batches=payload["even"]
        )
    )

    def collate(rows: Sequence[int]) -> Any:
        own = torch.tensor(rows)
        return {
            "row": own,
            "more": [own[:, None] * 2.5, (own % 2 == 0,)],
            "mask": own[:, None, None].repeat(1, 2, 2),
        }

    rows: Any = list(range(payload["rows"]))
    loader = accelerator.prepare(
        torch.utils.data.DataLoader(rows, batch_size=payload["batch"], collate_fn=collate)
    )
    found, wrong = [], 0
    for batch in loader:
        row = batch["row"]
        wrong += int(
            not torch.equal(batch["more"][0][:, 0], row * 2.5)
            or not torch.equal(batch["more"][1][0], row % 2 == 0)
            or not torch.equal(batch["mask"][:, 1, 1], row)
        )
        found.append(row.tolist())
    return [found, wrong]


def hybrid_mesh(payload: Mapping[str, Any]) -> list[Any]:
    """Return places of this process in the dimensions of a layout, and in those that are joined."""
    from accelerate.parallelism_config import ParallelismConfig

    new_accelerator()
    made = ParallelismConfig(**payload["sizes"])
    mesh = made.build_device_mesh("cpu")
    joined = {
        "dp": made.dp_dim_names,
        "dp_shard_cp": made.dp_shard_cp_dim_names,
        "dp_cp": made.dp_cp_dim_names,
    }
    return [
        [mesh[name].get_local_rank() for name in mesh.mesh_dim_names],
        [mesh[name].size() for name, parts in joined.items() if parts],
        [mesh[name].get_local_rank() for name, parts in joined.items() if parts],
    ]


def of_models(payload: Mapping[str, Any]) -> list[float]:
    """Return weights of two models that are trained in turns, one of them in every second micro-batch."""
    accelerator, rank = new_accelerator(gradient_accumulation_steps=2), int(os.environ["RANK"])
    layers = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    for layer in layers:
        nn.init.zeros_(layer.weight)
    optimizers = [torch.optim.SGD(layer.parameters(), lr=1.0) for layer in layers]
    made = accelerator.prepare(*layers, *optimizers)
    models, wrapped = made[:2], made[2:]
    for number in range(4):
        with accelerator.accumulate(*models):
            x = torch.full((1, 1), float(1 + rank + number))
            loss = models[0](x).sum() + 2 * models[1](x).sum()
            accelerator.backward(loss)
            for optimizer in wrapped:
                optimizer.step()
                optimizer.zero_grad()
    return [float(layer.weight) for layer in layers]


def debugged(payload: Mapping[str, Any]) -> list[bool]:
    """Return whether tensors of other shapes are refused with debugging, and equal ones gathered."""
    accelerator, rank = new_accelerator(), int(os.environ["RANK"])
    from accelerate.state import PartialState

    if not hasattr(PartialState(), "debug"):
        raise NotServed("this release does not check shapes")
    PartialState().debug = True
    try:
        equal = accelerator.gather(torch.ones(2)).tolist() == [1.0] * 4
        try:
            accelerator.gather(torch.ones(2 + rank))
        except Exception as error:  # noqa: BLE001  its type is not public in all releases
            refused = "shape" in str(error)
        else:
            refused = False
    finally:
        PartialState().debug = False
    return [equal, refused]


def sliced(payload: Mapping[str, Any]) -> list[Any]:
    """Return the rows of a process by a function of the caller's that cuts batches, and what it is given."""
    new_accelerator()
    from accelerate.data_loader import prepare_data_loader

    seen: list[list[Any]] = []

    def cut(batch: Any, part: slice, process_index: Any = None, num_processes: Any = None) -> Any:
        seen.append([process_index, num_processes])
        return batch[process_index::num_processes]

    rows: Any = list(range(8))
    found = prepare_data_loader(
        torch.utils.data.DataLoader(rows, batch_size=4),
        dispatch_batches=True,
        split_batches=True,
        put_on_device=True,
        device=torch.device("cpu"),
        slice_fn_for_dispatch=cut,
    )
    rows = [batch.tolist() for batch in found]
    return [rows, [one for place, one in enumerate(seen) if one not in seen[:place]]]
