"""Samplers and what evaluations gather, of Transformers' trainer, by the names of `contracts.utilities`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name
from seatrial.targets.common.trainers import new_folder

PARTS = "transformers.trainer_pt_utils"


def _found(*places: str) -> Any:
    try:
        return find_name("transformers", list(places))
    except Gone as error:
        raise NotServed(str(error)) from error


def by_length(lengths: Sequence[int], batch: int, seed: int, form: str) -> list[int]:
    """Return the order of `LengthGroupedSampler`, which is given lengths, or rows to read them from."""
    given: dict[str, Any] = {"lengths": list(lengths)}
    if form == "rows":
        given = {"dataset": [{"input_ids": [0] * length} for length in lengths]}
    elif form == "tensor":
        given = {"lengths": torch.tensor(lengths)}
    generator = torch.Generator().manual_seed(seed)
    return list(_found(f"{PARTS}:LengthGroupedSampler")(batch, generator=generator, **given))


def shared_by_length(
    lengths: Sequence[int], batch: int, processes: int, epoch: int, options: Mapping[str, Any]
) -> list[list[int]]:
    """Return the rows of each process by `DistributedLengthGroupedSampler`."""
    made = _found(f"{PARTS}:DistributedLengthGroupedSampler")
    found = []
    for process in range(processes):
        sampler = made(batch, lengths=list(lengths), num_replicas=processes, rank=process, **options)
        sampler.set_epoch(epoch)
        found.append(list(sampler))
        assert len(sampler) == len(found[-1]), (
            f"{len(sampler)} rows are announced, {len(found[-1])} are given"
        )
    return found


def shared(number: int, batch: int, processes: int, drop: bool) -> list[list[int]]:
    """Return the rows of each process by `ShardSampler`."""
    return _shares(_found(f"{PARTS}:ShardSampler"), number, batch, processes, drop)


def streamed(number: int, batch: int, processes: int, drop: bool) -> list[list[int]]:
    """Return the rows of each process by `IterableDatasetShard`."""
    return _shares(_found(f"{PARTS}:IterableDatasetShard"), number, batch, processes, drop)


def _shares(made: Any, number: int, batch: int, processes: int, drop: bool) -> list[list[int]]:
    rows = list(range(number))
    found = []
    for process in range(processes):
        share = made(rows, batch, drop_last=drop, num_processes=processes, process_index=process)
        found.append([int(row) for row in share])
        assert len(share) == len(found[-1]), f"{len(share)} rows are announced, {len(found[-1])} are given"
    return found


def rebalanced(
    lengths: Sequence[int], size: int, processes: int, parts: int, options: Mapping[str, Any]
) -> list[list[list[int]]]:
    """Return the micro-batches of each process by `BatchRebalanceSampler`."""
    made = _found(f"{PARTS}:BatchRebalanceSampler")
    given = {name: value for name, value in options.items() if name != "epoch"}
    found = []
    for process in range(processes):
        sampler = made(list(lengths), size, processes, parts, rank=process, **given)
        sampler.set_epoch(options["epoch"])
        found.append([list(rows) for rows in sampler])
    return found


def joined(batches: Sequence[Any], padding: int, concatenates: bool, every: int) -> Any:
    """Return what `EvalLoopContainer` has of batches, moved to arrays after every so many of them."""
    container = _found(f"{PARTS}:EvalLoopContainer")(concatenates, padding_index=padding)
    for number, batch in enumerate(batches, start=1):
        container.add(batch)
        if every and number % every == 0:
            container.to_cpu_and_numpy()
    return _lists(container.get_arrays())


def _lists(nested: Any) -> Any:
    if isinstance(nested, Mapping):
        return {name: _lists(value) for name, value in nested.items()}
    return [_lists(one) for one in nested] if isinstance(nested, (list, tuple)) else nested.tolist()


def truncated(nested: Any, limit: int) -> Any:
    """Return the first rows of nested tensors."""
    return _found(f"{PARTS}:nested_truncate")(nested, limit)


def first_size(nested: Any) -> int | None:
    """Return the number of rows of nested tensors."""
    found: int | None = _found(f"{PARTS}:find_batch_size")(nested)
    return found


def smoothed(
    logits: Tensor, labels: Tensor, epsilon: float, ignored: int, shifted: bool, num_items: int | None
) -> float:
    """Return the loss of `LabelSmoother`."""
    smoother = _found(f"{PARTS}:LabelSmoother")(epsilon=epsilon, ignore_index=ignored)
    if num_items is not None and "num_items_in_batch" not in inspect.signature(smoother).parameters:
        raise NotServed("smoothing of this release takes no count of items")
    more = {} if num_items is None else {"num_items_in_batch": num_items}
    return float(smoother({"logits": logits}, labels, shift_labels=shifted, **more))


def decaying(names: Mapping[str, str]) -> list[str]:
    """Return which parameters decay; modules have their kinds."""
    kinds: Mapping[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(2, 2),
        "norm": lambda: nn.LayerNorm(2),
        "own norm": lambda: nn.Linear(2, 2, bias=False),
        "embedding": lambda: nn.Embedding(2, 2),
    }
    model = nn.Module()
    for path, kind in names.items():
        *outer, last = path.split(".")
        place = model
        for name in outer:
            if not hasattr(place, name):
                place.add_module(name, nn.Module())
            place = getattr(place, name)
        place.add_module(last, kinds[kind]())
    trainer: Any = _found("transformers:Trainer")
    return sorted(trainer.get_decay_parameter_names(SimpleNamespace(), model))


def rotated(steps: Sequence[int], limit: int | None, best: int | None) -> list[int]:
    """Return the steps of checkpoints that `rotate_checkpoints` leaves."""
    rotate = _found("transformers.trainer_utils:rotate_checkpoints")
    folder = _checkpoints(steps)
    rotate(str(folder), limit, None if best is None else str(folder / f"checkpoint-{best}"))
    return sorted(int(one.name.partition("-")[2]) for one in folder.glob("checkpoint-*") if one.is_dir())


def last(steps: Sequence[int]) -> int | None:
    """Return the step of the last checkpoint."""
    found = _found("transformers.trainer_utils:get_last_checkpoint")(str(_checkpoints(steps)))
    return None if found is None else int(Path(found).name.partition("-")[2])


def _checkpoints(steps: Sequence[int]) -> Path:
    folder = Path(new_folder())
    for step in steps:
        (folder / f"checkpoint-{step}").mkdir()
    (folder / "checkpoint-99999").touch()  # a file is no checkpoint
    return folder


def noise(rows: int, length: int, width: int, alpha: float, training: bool) -> dict[str, float]:
    """Return the largest noise that NEFTune adds to embeddings, its deviation and mean, over alpha / sqrt(L D)."""
    hook = _found("transformers.integrations.neftune:neftune_post_forward_hook")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        layer: Any = nn.Embedding(5, width).train(training)
        layer.neftune_noise_alpha = alpha
        ids = torch.randint(0, 5, (rows, length))
        plain = layer(ids)
        handle = layer.register_forward_hook(hook)
        added = (layer(ids) - plain) * (length * width) ** 0.5 / alpha
        handle.remove()
    return {"largest": float(added.abs().max()), "deviation": float(added.std()), "mean": float(added.mean())}


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "order by length": by_length,
    "shares by length": shared_by_length,
    "shares of rows": shared,
    "shares of a stream": streamed,
    "rebalanced batches": rebalanced,
    "joined batches": joined,
    "first rows": truncated,
    "number of rows": first_size,
    "smoothed loss": smoothed,
    "names that decay": decaying,
    "rotated checkpoints": rotated,
    "last of checkpoints": last,
    "noise of embeddings": noise,
}
