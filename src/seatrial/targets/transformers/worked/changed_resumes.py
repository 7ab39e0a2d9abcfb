"""Worked examples of runs of Transformers' trainer that resume with other arguments than those of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from seatrial.targets.common.trainers import new_folder, resuming
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import arguments, numbered

STOP = 2
"""The step after which a run is stopped and resumed."""
FIRST: Mapping[str, Any] = {
    "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "num_train_epochs": 2, "learning_rate": 0.0625,
    "lr_scheduler_type": "linear", "save_strategy": "steps", "save_steps": STOP, "logging_steps": 1, "seed": 3,
    "optim": "sgd", "weight_decay": 0.0, "max_grad_norm": 0.0, "dataloader_drop_last": False,
}  # fmt: skip
"""The arguments of the run that is stopped: 7 rows, so 4 steps an epoch and 8 in all."""


class Seen(NamedTuple):
    """What a run does after it is resumed."""

    rows: list[list[list[int]]]
    """Numbers of rows by step and micro-batch."""
    rates: list[float]
    """Of each step."""
    decays: list[float]
    """Of the weights, by step."""
    norms: list[float]
    """Of the gradient that each step takes."""
    logged: list[int]
    saved: list[int]
    evaluated: list[int]


def _run(trainer_class: Any, folder: str, checkpoint: str | None, options: Mapping[str, Any]) -> Seen:
    """Run from a checkpoint, or from the start."""
    import transformers

    given = {**FIRST, **options}
    mixed, stop = given.pop("mixed", False), given.pop("stop", None)
    rows: dict[int, list[list[int]]] = {}
    rates: dict[int, float] = {}
    found = Seen([], [], [], [], [], [], [])

    class Noted(trainer_class):  # type: ignore[misc]
        def _get_train_sampler(self, *more: Any) -> Any:
            data = more[0] if more else self.train_dataset
            return super()._get_train_sampler(*more) if mixed else torch.utils.data.SequentialSampler(data)

        def training_step(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
            rows.setdefault(self.state.global_step, []).append(inputs["number"].tolist())
            rates[self.state.global_step] = round(self.optimizer.param_groups[0]["lr"], 8)
            return super().training_step(model, inputs, *more, **named)

    class Events(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            found.decays.append(more["optimizer"].param_groups[0]["weight_decay"])
            gradients = [value.grad for value in more["model"].parameters()]
            found.norms.append(round(float(torch.stack(gradients).norm()), 3))

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop |= state.global_step == stop

        def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            found.saved.append(state.global_step)

        def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            found.evaluated.append(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if "loss" in more["logs"]:
                found.logged.append(state.global_step)

    trainer = Noted(
        model=Line(),
        args=arguments(output_dir=folder, **given),
        train_dataset=numbered(),
        eval_dataset=numbered(2),
        callbacks=[Events()],
    )
    with resuming():
        trainer.train(resume_from_checkpoint=checkpoint)
    return found._replace(rows=[*rows.values()], rates=[*rates.values()])


def _resumed(first: Mapping[str, Any], then: Mapping[str, Any], field: str, trainer_class: Any) -> Any:
    """Return a field of what a run does that is stopped after two steps and resumed with other arguments."""
    folder = new_folder()
    _run(trainer_class, folder, None, {**first, "stop": STOP})
    found = _run(trainer_class, folder, str(Path(folder) / f"checkpoint-{STOP}"), {**first, **then})
    value = getattr(found, field)
    return value[1:] if field == "rates" else value  # the first rate is the one that the checkpoint has


def _mixed(options: Mapping[str, Any], trainer_class: Any) -> bool:
    """Return whether the rows after a resume are those of a whole run with the same new arguments."""
    whole = _run(trainer_class, new_folder(), None, {"mixed": True, **options})
    due: list[list[list[int]]] = whole.rows[STOP:]
    return bool(_resumed({"mixed": True}, options, "rows", trainer_class) == due)


CLIPPED = {"max_grad_norm": 0.5}
REST = [[[5, 6]], [[7]], [[1, 2]], [[3, 4]], [[5, 6]], [[7]]]
"""The rows that are left, with the arguments of the checkpoint."""
RATES = [0.0390625, 0.03125, 0.0234375, 0.015625, 0.0078125]
EVALUATED: Mapping[str, Any] = {"eval_strategy": "steps", "eval_steps": 2}
Table = Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any], str, Any]]
ASKED: Table = (
    ("nothing", {}, {}, "rows", REST),
    ("a larger batch", {}, {"per_device_train_batch_size": 4}, "rows", [[[1, 2, 3, 4]], [[5, 6, 7]]]),
    ("a smaller batch", {}, {"per_device_train_batch_size": 1}, "rows",
     [[[row]] for row in (3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7)]),
    ("a larger batch, its schedule", {}, {"per_device_train_batch_size": 4}, "rates", [0.015625]),
    ("micro-batches", {}, {"gradient_accumulation_steps": 2}, "rows", [[[1, 2], [3, 4]], [[5, 6], [7]]]),
    ("no micro-batches", {"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 1}, "rows", REST),
    ("more epochs", {}, {"num_train_epochs": 3}, "rows", [*REST, *REST[2:]]),
    ("more epochs, their schedule", {}, {"num_train_epochs": 3}, "rates",
     [round(0.0625 * (1 - step / 12), 8) for step in range(3, 12)]),
    ("a number of steps", {}, {"max_steps": 5}, "rows", REST[:3]),
    ("a number of steps, its schedule", {}, {"max_steps": 5}, "rates", [0.025, 0.0125]),
    ("another schedule", {}, {"lr_scheduler_type": "constant"}, "rates", [0.0625] * 5),
    ("a warmup", {}, {"warmup_steps": 4}, "rates", [0.046875, 0.0625, 0.046875, 0.03125, 0.015625]),
    ("dropped rests", {}, {"dataloader_drop_last": True}, "rows", [[[5, 6]], *REST[2:5]]),
    ("rows that are not skipped", {}, {"ignore_data_skip": True}, "rows",
     [[[1, 2]], [[3, 4]], [[5, 6]], [[7]], [[1, 2]], [[3, 4]]]),
    ("clipped gradients", {}, CLIPPED, "norms", [0.5] * 6),
    ("no checkpoints", {}, {"save_strategy": "no"}, "saved", []),
    ("a checkpoint an epoch", {}, {"save_strategy": "epoch"}, "saved", [4, 8]),
    ("a log an epoch", {}, {"logging_strategy": "epoch"}, "logged", [4, 8]),
    ("no logs", {}, {"logging_strategy": "no"}, "logged", []),
    ("an evaluation an epoch", EVALUATED, {"eval_strategy": "epoch"}, "evaluated", [4, 8]),
)  # fmt: skip
"""What is changed, the arguments before and after, and what the run then does: the new arguments count."""
KEPT: Table = (
    ("a rate", {}, {"learning_rate": 0.5}, "rates", RATES),
    ("a decay", {"weight_decay": 0.25}, {"weight_decay": 0.5}, "decays", [0.25] * 6),
    ("a batch that is looked for", {}, {"per_device_train_batch_size": 4, "auto_find_batch_size": True}, "rows", REST),
    ("logging steps", {}, {"logging_steps": 2}, "logged", [3, 4, 5, 6, 7, 8]),
    ("saving steps", {}, {"save_steps": 3}, "saved", [4, 6, 8]),
    ("evaluation steps", EVALUATED, {"eval_steps": 3}, "evaluated", [4, 6, 8]),
)  # fmt: skip
"""What the checkpoint has: states of the optimizer, the schedule and the trainer, which warns of other steps."""
PLACE = "transformers:Trainer"


def _rows(table: Table, what: str) -> Sequence[Row]:
    return [
        Row(
            "checkpoints",
            PLACE,
            f"resumed with other arguments, {what}: {name}",
            partial(_resumed, first, then, field),
            due,
            # Releases before take the batch of the checkpoint, found by trying or not.
            since="5.2" if name.endswith(" batch") or "batch, its" in name else "4.57",
        )
        for name, first, then, field, due in table
    ]


# Sources: the documentation of Trainer.train (resume_from_checkpoint) and TrainingArguments, and the warning of a
# resumed run about arguments that are others than those of its checkpoint.
CHANGED_ROWS: Sequence[Row] = (
    *_rows(ASKED, "which count"),
    *_rows(KEPT, "where the checkpoint's counts"),
    *(
        Row("checkpoints", PLACE, f"resumed with another order of rows: {name}", partial(_mixed, options), True,
            since="4.57")
        for name, options in (("none", {}), ("a seed", {"seed": 5}), ("a seed of data", {"data_seed": 5}))
    ),
)  # fmt: skip
