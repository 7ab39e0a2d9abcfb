"""Trainers in the form of Hugging Face's `Trainer`: one optimizer step, its raw gradients captured before clipping."""

from __future__ import annotations

import copy
import dataclasses
import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import SequentialSampler

from seatrial.relations.contracts.supervised import SupervisedUpdate
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.relations.records import StepResult
from seatrial.targets.common.target import release

CPU_OPTIONS: Mapping[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "fp16": False,
    "report_to": [],
    "disable_tqdm": True,
    "save_strategy": "no",
    "eval_strategy": "no",
    "logging_steps": 1,
    "lr_scheduler_type": "constant",
    "learning_rate": 1.0,
    "max_grad_norm": 0.0,
    "seed": 0,
    "max_steps": 1,
    "gradient_checkpointing": False,
    "dataloader_pin_memory": False,
}
"""One quiet step on the CPU, without clipping; those that a release does not know are left out."""
NUMBER = "number"
"""Column of the number of a row."""


@contextmanager
def resuming() -> Iterator[None]:
    """Return a context for a run of a trainer that may resume from its own checkpoint.

    Raises:
        NotServed: torch refuses the file that the trainer wrote: the releases do not fit each other.
    """
    try:
        yield
    except Exception as error:  # raised again if it is another one
        if type(error).__name__ != "UnpicklingError":
            raise
        versions = f"transformers {release('transformers')} with torch {release('torch')}"
        raise NotServed(f"{versions} does not load its own checkpoints: {error_line(error)[:200]}") from error


class CapturingOptimizer(torch.optim.SGD):
    """Keeps the gradients that it is given and moves nothing."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1.0)
        self.captured: dict[int, Tensor] = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Copy every gradient, by the identity of its parameter."""
        for group in self.param_groups:
            for value in group["params"]:
                if value.grad is not None:
                    self.captured[id(value)] = value.grad.detach().clone()


def configuration(cls: type, wanted: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> Any:
    """Return a configuration of one step on the CPU in a fresh folder.

    Args:
        cls: the dataclass of the installed release.
        wanted: options without which the case would be another one.
        optional: options that a release may lack.

    Raises:
        NotServed: the release has no option of a name in `wanted`.
    """
    known = {item.name for item in dataclasses.fields(cls)}
    missing = sorted(set(wanted) - known)
    if missing:
        raise NotServed(f"{cls.__name__} of this release has no {', '.join(missing)}")
    given = {name: value for name, value in {**CPU_OPTIONS, **(optional or {})}.items() if name in known}
    return cls(output_dir=new_folder(), **{**given, **wanted})


@lru_cache(maxsize=1)
def freeze_imports() -> None:
    """Leave what is alive now out of garbage collection: each `train()` collects, half a second with the imports."""
    gc.freeze()


def temporary_folder() -> str:
    """Return a folder for what trainers write; it is removed when the process ends."""
    return _folder().name


def new_folder() -> str:
    """Return a new folder, which is removed when the process ends."""
    return tempfile.mkdtemp(dir=temporary_folder())


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return where trainers' folders lie; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="seatrial-")


def equal_size(micro_batches: Sequence[Sequence[int]]) -> int:
    """Return the size of all micro-batches.

    Raises:
        NotServed: they differ in size, which one `per_device_train_batch_size` cannot say.
    """
    sizes = {len(part) for part in micro_batches}
    if len(sizes) != 1:
        raise NotServed(f"micro-batches of {sorted(sizes)} rows: the trainer takes one size")
    return sizes.pop()


def batch_options(micro_batches: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the options that make one optimizer step of these micro-batches."""
    return {
        "per_device_train_batch_size": equal_size(micro_batches),
        "gradient_accumulation_steps": len(micro_batches),
    }


def in_order(trainer: Any) -> Any:
    """Serve a trainer's rows in their own order, and return it."""
    trainer._get_train_sampler = lambda *_, **__: SequentialSampler(trainer.train_dataset)
    return trainer


def captured_step(trainer: Any, model: Any, optimizer: CapturingOptimizer) -> StepResult:
    """Train one step and return the loss that the trainer logged with the gradients that reached the optimizer."""
    freeze_imports()
    trainer.train()
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    gradients = {
        name: optimizer.captured[id(value)]
        for name, value in model.named_parameters()
        if id(value) in optimizer.captured
    }
    return StepResult(loss=losses[0] if losses else float("nan"), gradients=gradients)


def step_of_rows(
    trainer_class: type[Any], model: Any, rows: Sequence[Mapping[str, Any]], **options: Any
) -> StepResult:
    """Train a copy of a model one step on rows of a data set, in their order.

    Args:
        trainer_class: `transformers.Trainer` or one of its kind.
        model: stays as it is.
        rows: of the data set.
        options: other arguments of the trainer.
    """
    from datasets import Dataset

    trained = copy.deepcopy(model)
    optimizer = CapturingOptimizer(trained.parameters())
    trainer = trainer_class(
        model=trained, train_dataset=Dataset.from_list(list(rows)), optimizers=(optimizer, None), **options
    )
    return captured_step(in_order(trainer), trained, optimizer)


def run_of_rows(
    trainer_class: type[Any],
    model: Any,
    rows: Sequence[Mapping[str, Any]],
    *,
    data_collator: Callable[[list[dict[str, Any]]], Mapping[str, Any]],
    **options: Any,
) -> list[SupervisedUpdate]:
    """Train a copy of a model whose optimizer moves nothing, in the trainer's own order, and return the updates.

    Args:
        trainer_class: `transformers.Trainer` or one of its kind.
        model: stays as it is.
        rows: of the data set; they are numbered from 0.
        data_collator: is given rows without their numbers.
        **options: other arguments of the trainer; its `args` keep columns that the model does not take.
    """
    import transformers
    from datasets import Dataset

    freeze_imports()
    trained = copy.deepcopy(model)
    optimizer = CapturingOptimizer(trained.parameters())
    seen: list[tuple[int, ...]] = []
    updates: list[tuple[tuple[tuple[int, ...], ...], dict[int, Tensor]]] = []

    class Watching(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            updates.append((tuple(seen), dict(optimizer.captured)))
            seen.clear()
            optimizer.captured.clear()

    def numbered(given: list[dict[str, Any]]) -> dict[str, Any]:
        batch = data_collator([{key: row[key] for key in row if key != NUMBER} for row in given])
        return {**batch, NUMBER: torch.tensor([row[NUMBER] for row in given])}

    trainer = trainer_class(
        model=trained,
        train_dataset=Dataset.from_list([{**row, NUMBER: number} for number, row in enumerate(rows)]),
        data_collator=numbered,
        optimizers=(optimizer, None),
        callbacks=[Watching()],
        **options,
    )
    step = trainer.training_step

    def watched(model: Any, inputs: Any, *more: Any) -> Any:
        seen.append(tuple(inputs.pop(NUMBER).tolist()))
        return step(model, inputs, *more)

    trainer.training_step = watched
    trainer.train()
    losses = {entry["step"]: float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry}
    names = {id(value): name for name, value in trained.named_parameters()}
    return [
        SupervisedUpdate(
            micro_batches=rows_taken,
            step=StepResult(
                loss=losses.get(number, float("nan")),
                gradients={names[key]: value for key, value in captured.items()},
            ),
        )
        for number, (rows_taken, captured) in enumerate(updates, start=1)
    ]


def target_rows(batch: Mapping[str, Tensor]) -> list[tuple[list[int], list[int]]]:
    """Return the ids of every row that its attention mask shows, with 1 for each that has a label.

    Raises:
        NotServed: the batch has no attention mask, as where rows are laid end to end.
    """
    if "attention_mask" not in batch or len(batch["attention_mask"].shape) != 2:
        raise NotServed("the batch has no attention mask of its rows")
    rows = []
    for ids, shown, labels in zip(batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True):
        real = shown.bool()
        rows.append((ids[real].tolist(), (labels[real] != -100).long().tolist()))
    return rows
