"""What each process of a gloo group does with an `Accelerator`; called by `loops` through `targets.common.ranks`."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler, SubsetRandomSampler

from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.loops import NUM_FEATURES, features, start
from seatrial.targets.common.vectors import FILL, numbers, vectors


def new_accelerator(**options: Any) -> Any:
    """Return a new `Accelerator` on the CPU, whose state is not that of the one before."""
    import accelerate
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state()
    GradientState._reset_state()
    return accelerate.Accelerator(cpu=True, **options)


def _loader_accelerator(plan: Mapping[str, Any]) -> Any:
    from accelerate.utils import DataLoaderConfiguration

    return new_accelerator(
        dataloader_config=DataLoaderConfiguration(
            split_batches=plan["split"],
            dispatch_batches=plan["dispatch"],
            even_batches=plan["even"],
            use_seedable_sampler=plan.get("shuffled_by") != "process",
            use_stateful_dataloader=plan.get("stateful", False),
        )
    )


class _Subset(SubsetRandomSampler):
    """The first rows in their order; a sampler whose length is not the data's."""

    def __iter__(self) -> Any:
        return iter(self.indices)


class _Stream(IterableDataset[Any]):
    """Rows one after the other."""

    def __init__(self, num_rows: int) -> None:
        """Keep the number of rows, which a loader is not given."""
        self.num_rows = num_rows

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.arange(self.num_rows))


class _Sized(_Stream):
    """The same with a length."""

    def __len__(self) -> int:
        return self.num_rows


class _Permuted(Sampler[int]):
    """Rows in the order of the seed and of the epoch that it is given."""

    def __init__(self, num_rows: int, seed: int) -> None:
        """Begin with epoch 0."""
        self.num_rows, self.seed, self.epoch = num_rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(100 * self.seed + self.epoch)
        return iter(torch.randperm(self.num_rows, generator=generator).tolist())

    def __len__(self) -> int:
        return self.num_rows


class _PermutedStream(_Stream):
    """Rows in the order of the epoch that the data are given."""

    def __init__(self, num_rows: int, seed: int) -> None:
        """Begin with epoch 0."""
        super().__init__(num_rows)
        self.order = _Permuted(num_rows, seed)
        self.set_epoch = self.order.set_epoch

    def __iter__(self) -> Iterator[Tensor]:
        return map(torch.tensor, self.order)


def loader_of(plan: Mapping[str, Any]) -> DataLoader[Any]:
    """Return the plain loader of a plan, after the process is seeded."""
    torch.manual_seed(plan["seed"])
    rows = torch.arange(plan["num_rows"])
    if plan["own_draws"]:
        torch.rand(1 + int(os.environ["RANK"]))
    options: dict[str, Any] = {"batch_size": plan["batch_size"], "drop_last": plan["drop_last"]}
    if plan["iterable"]:
        if plan["shuffle"]:
            return DataLoader(_PermutedStream(plan["num_rows"], plan["seed"]), **options)
        return DataLoader((_Sized if plan.get("sized") else _Stream)(plan["num_rows"]), **options)
    if plan["drawn"] is not None:
        options["sampler"] = _Subset(range(plan["drawn"]))
    elif plan["shuffle"] and plan["shuffled_by"] == "sampler":
        options["sampler"] = _Permuted(plan["num_rows"], plan["seed"])
    elif plan["shuffle"]:
        options["shuffle"] = True
        if plan["shuffled_by"] == "generator":
            options["generator"] = torch.Generator().manual_seed(plan["seed"])
    loader: DataLoader[Any] = DataLoader(rows, **options)  # type: ignore[arg-type]
    if plan["batched_by"] == "batch sampler":
        return DataLoader(rows, batch_sampler=loader.batch_sampler)  # type: ignore[arg-type]
    if plan["batched_by"] == "list of batches":
        return DataLoader(rows, batch_sampler=list(loader.batch_sampler))  # type: ignore[arg-type]
    if plan["batched_by"] == "sampler of batches":
        return DataLoader(rows, sampler=loader.batch_sampler, batch_size=None)  # type: ignore[arg-type]
    return loader


@contextlib.contextmanager
def sizes_needed() -> Iterator[None]:
    """Turn the words with which older releases refuse batches without a size into `NotServed`."""
    try:
        yield
    except ValueError as error:
        if "has no batch size" not in str(error):
            raise
        raise NotServed(f"refused: {error}") from error


def _epochs(plan: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what reads each epoch."""
    accelerator = _loader_accelerator(plan)
    with sizes_needed():
        loader = accelerator.prepare(loader_of(plan))
    for epoch in range(plan["first_epoch"], plan["num_epochs"]):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        resumes = plan["skip"] and epoch == plan["first_epoch"]
        yield accelerator.skip_first_batches(loader, plan["skip"]) if resumes else loader


def rows_read(read: Any) -> list[list[int]]:
    """Return the rows of each batch; none of a batch that is None, which older releases give where there is none."""
    return [[] if batch is None else batch.tolist() for batch in read]


def loaded(plan: Mapping[str, Any]) -> list[list[list[int]]]:
    """Return the rows of each epoch that this process reads, by batch."""
    return [rows_read(read) for read in _epochs(plan)]


def said_lengths(plan: Mapping[str, Any]) -> list[int]:
    """Return the lengths of the epochs that this process reads, as the loader says them."""
    return [len(read) for read in _epochs({**plan, "sized": True})]


def loaded_from_state(plan: Mapping[str, Any]) -> list[list[list[int]]]:
    """Return the rows of each epoch that this process reads; a resume loads the state that a loader before it left."""
    given = {**plan, "stateful": True}
    state = None
    if plan["skip"]:
        accelerator = _loader_accelerator(given)
        loader = accelerator.prepare(loader_of(plan))
        for epoch in range(plan["first_epoch"] + 1):
            for number, _ in enumerate(loader, start=1):
                if epoch == plan["first_epoch"] and number == plan["skip"]:
                    state = loader.state_dict()
                    break
    loader = _loader_accelerator(given).prepare(loader_of(plan))
    if state is not None:
        loader.load_state_dict(state)
    epochs = []
    for epoch in range(plan["first_epoch"], plan["num_epochs"]):
        loader.set_epoch(epoch)
        epochs.append(rows_read(loader))
    return epochs


def gathered_for_metrics(plan: Mapping[str, Any]) -> list[int]:
    """Return the rows that this process gathers over one epoch."""
    accelerator = _loader_accelerator(plan)
    found: list[int] = []
    loader = accelerator.prepare(loader_of(plan))
    read = accelerator.skip_first_batches(loader, plan["skip"]) if plan["skip"] else loader
    for number, batch in enumerate(read):
        if plan["kind"] == "tensor":
            found += accelerator.gather_for_metrics(batch).tolist()
        elif plan["kind"] == "objects":
            # Objects that are no tensors need no word of it.
            said = {} if number % 2 else {"use_gather_object": True}
            texts = accelerator.gather_for_metrics([f"row {row}" for row in batch.tolist()], **said)
            found += [int(text.split()[1]) for text in texts]
        elif plan["kind"] == "tensors of unequal widths":
            wide = accelerator.pad_across_processes(vectors(batch.tolist()), dim=1, pad_index=FILL)
            found += numbers(accelerator.gather_for_metrics(wide).tolist())
        else:
            nested = accelerator.gather_for_metrics({"row": batch, "twice": (batch * 2, batch.float())})
            found += nested["row"].tolist()
            if (nested["twice"][0] != nested["row"] * 2).any() or len(nested["twice"][1]) != len(
                nested["row"]
            ):
                found.append(-1)
    return found


def exchanged(asked: Mapping[str, Any]) -> list[float]:
    """Return what this process has after an exchange."""
    accelerator = new_accelerator()
    own = torch.tensor(asked["values"][int(os.environ["RANK"])])
    if asked["how"] == "gather":
        found = accelerator.gather(own)
    elif asked["how"] == "pad":
        found = accelerator.pad_across_processes(
            own, dim=0, pad_index=asked["fill"], pad_first=asked["first"]
        )
    else:
        found = accelerator.reduce(own, reduction=asked["how"])
    return list(found.tolist())


class Linear(torch.nn.Module):
    """w @ x."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(NUM_FEATURES, 1, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([start()]))

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return [B]."""
        outputs_B: Tensor = self.layer(x_BD)[:, 0]
        return outputs_B


class _Training:
    """What `Accelerator.prepare` returns of a new model, optimizer and schedule."""

    def __init__(self, accelerator: Any, plan: Mapping[str, Any]) -> None:
        model = Linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=plan["rate"])
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, plan["rate_decay"])
        self.model, self.optimizer, self.schedule = accelerator.prepare(model, optimizer, schedule)


def accumulated(plan: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return what this process sees after each micro-batch; see `contracts.loops.AccumulatedBatch`.

    A resume loads the state into new objects of the same accelerator, which has dropped the old ones. Where processes
    wait for one another at the end, an entry without rows has the weights after it.
    """
    accelerator = _accumulating(plan)
    training = _Training(accelerator, plan)
    loader = accelerator.prepare_data_loader(_examples(plan, accelerator.num_processes))
    seen: list[tuple[Any, ...]] = []
    with contextlib.ExitStack() as blocks:
        after = None
        if plan["uneven"]:
            blocks.enter_context(accelerator.join_uneven_inputs([training.model], even_batches=False))
        if plan["local_steps"]:
            from accelerate.local_sgd import LocalSGD

            after = blocks.enter_context(
                LocalSGD(accelerator=accelerator, model=training.model, local_sgd_steps=plan["local_steps"])
            )
        for _ in range(plan["num_epochs"]):
            for batch in loader:
                seen.append(_micro_batch(accelerator, training, plan, batch, after))
                num_steps = sum(one[1] for one in seen)
                if seen[-1][1] and num_steps == plan["resumes_after"]:
                    training = _resumed(accelerator, plan)
                    seen[-1] = (
                        *seen[-1][:2],
                        _weights(accelerator, training),
                        _rate(training),
                        *seen[-1][4:],
                    )
            if plan["schedule"] == "epoch":
                training.schedule.step()
                if seen[-1][1]:
                    seen[-1] = (*seen[-1][:3], _rate(training), *seen[-1][4:])
    if plan["uneven"] or plan["local_steps"]:
        seen.append(([], False, _weights(accelerator, training), _rate(training), None, "torch.float32"))
    return seen


def _micro_batch(
    accelerator: Any, training: _Training, plan: Mapping[str, Any], batch: Any, after: Any | None
) -> tuple[Any, ...]:
    norm = None
    with accelerator.accumulate(training.model):
        outputs_B = training.model(batch["x"])
        loss = torch.nn.functional.mse_loss(outputs_B.float(), batch["y"])
        accelerator.backward(loss)
        if plan["max_norm"] is not None and accelerator.sync_gradients:
            norm = float(accelerator.clip_grad_norm_(training.model.parameters(), plan["max_norm"]))
        if plan["max_value"] is not None and accelerator.sync_gradients:
            accelerator.clip_grad_value_(training.model.parameters(), plan["max_value"])
        training.optimizer.step()
        if plan["schedule"] == "step":
            training.schedule.step()
        training.optimizer.zero_grad()
        if after is not None:
            after.step()
        stepped = bool(accelerator.sync_gradients)
    weights, rate = _weights(accelerator, training), _rate(training)
    return (batch["row"].tolist(), stepped, weights, rate, norm, str(outputs_B.dtype))


def _weights(accelerator: Any, training: _Training) -> list[float]:
    found: list[float] = accelerator.unwrap_model(training.model).layer.weight.detach().flatten().tolist()
    return found


def _rate(training: _Training) -> float:
    return float(training.schedule.get_last_lr()[0])


def _accumulating(plan: Mapping[str, Any]) -> Any:
    from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin

    given: dict[str, Any] = {
        "num_steps": plan["accumulation"],
        "sync_with_dataloader": plan["steps_at_the_end"],
    }
    if plan["exchanges_each"]:
        if "sync_each_batch" not in inspect.signature(GradientAccumulationPlugin).parameters:
            raise NotServed("this release has no sync_each_batch")
        given["sync_each_batch"] = True
    return new_accelerator(
        gradient_accumulation_plugin=GradientAccumulationPlugin(**given),
        mixed_precision="bf16" if plan["mixed"] else "no",
        dataloader_config=DataLoaderConfiguration(split_batches=plan["split"]),
        step_scheduler_with_optimizer=plan["schedule"] == "step",
    )


def _examples(plan: Mapping[str, Any], num_ranks: int) -> DataLoader[Any]:
    num_rows = plan["num_batches"] * plan["batch_size"] * num_ranks
    if plan["uneven"]:
        num_rows -= plan["batch_size"] * (num_ranks - 1)
    batch_size = plan["batch_size"] * (num_ranks if plan["split"] else 1)
    return DataLoader(list(range(num_rows)), batch_size=batch_size, collate_fn=collated)  # type: ignore[arg-type]


def collated(rows: list[int]) -> dict[str, Tensor]:
    """Return the batch of these rows."""
    made = [features(row) for row in rows]
    return {
        "row": torch.tensor(rows),
        "x": torch.tensor([inputs for inputs, _ in made]),
        "y": torch.tensor([target for _, target in made]),
    }


def _resumed(accelerator: Any, plan: Mapping[str, Any]) -> _Training:
    """Save the state, make new objects, and load it into them."""
    folder: list[Any] = [tempfile.mkdtemp(prefix="seatrial-") if accelerator.is_main_process else None]
    if accelerator.num_processes > 1:
        torch.distributed.broadcast_object_list(folder)
    accelerator.save_state(folder[0])
    accelerator.wait_for_everyone()
    accelerator._models.clear()
    accelerator._optimizers.clear()
    accelerator._schedulers.clear()
    training = _Training(accelerator, plan)
    accelerator.load_state(folder[0])
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(folder[0])
    return training
