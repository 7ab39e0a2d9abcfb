"""Worked examples of whole runs of Transformers' trainer: what they return, save, restore and are built of."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.trainers import configuration, freeze_imports, new_folder, resuming
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line

RATE = 0.05
NUM_ROWS = 7


def arguments(**options: Any) -> Any:
    """Return options of a run on the CPU, in a new folder unless one is given."""
    import transformers

    freeze_imports()
    folder = options.pop("output_dir", None)
    made = configuration(transformers.TrainingArguments, {"learning_rate": RATE, "max_steps": -1, **options})
    if folder is not None:
        made.output_dir = folder
    return made


def numbered(number: int = NUM_ROWS, first: int = 1) -> list[dict[str, Any]]:
    """Return rows of numbers, each with a target."""
    return [{"number": row, "labels": float((row * 3) % 5) - 1.5} for row in range(first, first + number)]


def line(trainer_class: Any, rows: Sequence[Any] | None = None, **options: Any) -> Any:
    class InOrder(trainer_class):  # type: ignore[misc]
        def _get_train_sampler(self, *given: Any) -> Any:
            return torch.utils.data.SequentialSampler(given[0] if given else self.train_dataset)

    return InOrder(
        model=Line(), args=arguments(**options), train_dataset=list(numbered() if rows is None else rows)
    )


RETURNED: Sequence[tuple[Mapping[str, Any], int, int, float, float]] = (
    ({"per_device_train_batch_size": 2, "num_train_epochs": 2}, 8, 2, 2.0, 14),
    ({"per_device_train_batch_size": 2, "num_train_epochs": 1.5}, 6, 2, 1.5, 10.5),
    ({"per_device_train_batch_size": 2, "num_train_epochs": 1.4, "logging_steps": 4}, 6, 2, 1.5, 9.8),
    ({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 3, "num_train_epochs": 2}, 6, 2, 2.0, 14),
    ({"per_device_train_batch_size": 2, "max_steps": 6, "logging_steps": 4}, 6, 2, 1.5, 12),
    ({"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "max_steps": 4}, 4, 2, 2.0, 24),
    ({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 20, "num_train_epochs": 3}, 3, 3, 3.0, 21),
    ({"per_device_train_batch_size": 2, "dataloader_drop_last": True, "num_train_epochs": 2}, 6, 2, 2.0, 14),
)  # fmt: skip
"""Options; the steps, the epochs begun and done, and the rows of the schedule."""


def _returned(trainer_class: Any) -> list[str]:
    """Return where a run does not return, keep in its state and log last what its steps give."""
    wrong = []
    for options, steps, epochs, done, rows in RETURNED:
        trainer = line(trainer_class, **{"logging_steps": 1, **options})
        losses: list[float] = []
        step = trainer.training_step

        def watched(*given: Any, step: Any = step, losses: list[float] = losses, **more: Any) -> Any:
            found = step(*given, **more)
            losses.append(float(found))
            return found

        trainer.training_step = watched
        found = trainer.train()
        state, metrics = trainer.state, found.metrics
        per_step = metrics["train_samples_per_second"] / metrics["train_steps_per_second"]
        # Rates are rounded to three digits, seconds to four.
        time = metrics["train_steps_per_second"] * metrics["train_runtime"]
        last = trainer.state.log_history[-1]
        wrong += unlike(
            [
                found.global_step, found.training_loss, state.global_step, state.max_steps,
                state.num_train_epochs, state.epoch, state.train_batch_size, metrics["train_loss"],
                metrics["epoch"], last["train_loss"], last["step"],
            ],
            [
                steps, sum(losses) / steps, steps, steps, epochs, done, options["per_device_train_batch_size"],
                sum(losses) / steps, done, sum(losses) / steps, steps,
            ],
            str(dict(options)),
        )  # fmt: skip
        if abs(per_step - rows / steps) > 0.01 or abs(time - steps) > 0.03 * steps:
            wrong.append(f"{dict(options)}: {per_step} rows a step, {time} steps")
        if {"total_flos", *metrics} - {*last} or "train_runtime" not in metrics or state.total_flos != 0:
            wrong.append(f"{dict(options)}: returned {sorted(metrics)}, logged {sorted(last)}")
        if trainer.is_in_train:
            wrong.append("it is still in training")
    return wrong


def _tokens(trainer_class: Any, folder: str, checkpoint: str | None = None, **options: Any) -> Any:
    ids = [40, 41, 42, 43, 44, 45]
    rows = [{"input_ids": ids[: 2 + row % 4], "labels": ids[: 2 + row % 4]} for row in range(8)]
    args = arguments(
        output_dir=folder, per_device_train_batch_size=1, gradient_accumulation_steps=2, logging_steps=1,
        include_num_input_tokens_seen="all", save_strategy="steps", save_steps=1, **options,
    )  # fmt: skip
    trainer = trainer_class(model=tiny_model(tiny_tokenizer(), 0), args=args, train_dataset=rows)
    with resuming():
        trainer.found = trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


def _resumed(trainer_class: Any) -> list[str]:
    """Return where a run that is stopped and resumed counts, logs or keeps anything else than one that is not."""
    whole = _tokens(trainer_class, new_folder(), max_steps=6)
    folder = new_folder()
    _tokens(trainer_class, folder, max_steps=3)
    resumed = _tokens(trainer_class, folder, str(Path(folder) / "checkpoint-3"), max_steps=6)
    flops = 6 * whole.state.num_input_tokens_seen * whole.model.num_parameters(exclude_embeddings=True)
    wrong = unlike([whole.state.total_flos, resumed.state.total_flos], [flops] * 2, "operations", 1e-6)
    names = (
        "global_step",
        "epoch",
        "max_steps",
        "num_input_tokens_seen",
        "num_train_epochs",
        "logging_steps",
    )
    for name in names:
        found, due = getattr(resumed.state, name), getattr(whole.state, name)
        wrong += [] if found == due else [f"{name} is {found}, {due} is due"]
    for name in ("loss", "learning_rate", "step", "epoch", "num_input_tokens_seen"):
        logs = [
            [entry[name] for entry in one.state.log_history if name in entry and "train_runtime" not in entry]
            for one in (resumed, whole)
        ]
        wrong += unlike(logs[0], logs[1], f"logged {name}", 1e-5)
    log = [entry for entry in resumed.state.log_history if "train_tokens_per_second" in entry][-1]
    tokens = log["train_tokens_per_second"] * log["train_runtime"]
    due = whole.state.num_input_tokens_seen - log_tokens(resumed)
    wrong += (
        [] if abs(tokens - due) < 0.2 else [f"{tokens} tokens in the seconds after a resume, {due} are due"]
    )
    later = [entry["loss"] for entry in whole.state.log_history if "loss" in entry][3:]
    wrong += unlike([resumed.found.training_loss], [sum(later) / 3], "loss of the resumed part", 1e-5)
    rate = resumed.found.metrics["train_samples_per_second"] / resumed.found.metrics["train_steps_per_second"]
    wrong += [] if abs(rate - 2) < 0.01 else [f"{rate} rows a step after a resume, 2 are due"]
    return wrong + [
        f"weights {name} differ"
        for name, value in whole.model.named_parameters()
        if not torch.allclose(value, dict(resumed.model.named_parameters())[name], atol=1e-5)
    ]


def log_tokens(trainer: Any) -> int:
    """Return the tokens that the third step of a log has seen."""
    return next(int(one["num_input_tokens_seen"]) for one in trainer.state.log_history if one["step"] == 3)


def _repeated(trainer_class: Any) -> list[str]:
    """Return where a second training of a trainer has other rates or counts than the first."""
    trainer = line(
        trainer_class, per_device_train_batch_size=2, num_train_epochs=1, logging_steps=1, lr_scheduler_type="linear"
    )  # fmt: skip
    rates = []
    for _ in range(2):
        trainer.train()
        rates.append([entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry])
    due = [RATE * (1 - step / 4) for step in range(4)]
    return unlike(rates[0], due, "first rates") + unlike(rates[1], due, "second rates")


def _best(trainer_class: Any) -> list[str]:
    """Return where the best step, its checkpoint, or what is left of a run are not those of its metrics."""
    wrong = []
    table: Sequence[tuple[Mapping[str, Any], Sequence[float], int, Sequence[int]]] = (
        ({"greater_is_better": True, "save_total_limit": 1}, (1, 3, 2, 3), 2, [2]),
        ({"greater_is_better": False, "save_total_limit": 1}, (1, 3, 2, 1), 1, [1]),
        ({"greater_is_better": True, "save_total_limit": 2}, (2, 1, 0, 0), 1, [1, 4]),
        ({"greater_is_better": True, "save_total_limit": 3}, (2, 1, 0, 0), 1, [1, 3, 4]),
        ({"greater_is_better": False}, (2, 1, 0.5, 4), 3, [1, 2, 3, 4]),
        ({"greater_is_better": False, "save_only_model": True}, (2, 1, 0.5, 4), 3, [1, 2, 3, 4]),
        ({"greater_is_better": True, "save_strategy": "best", "save_total_limit": 2}, (1, 3, 2, 4), 4, [2, 4]),
        ({"greater_is_better": True, "save_strategy": "best", "save_total_limit": 1}, (1, 3, 2, 1), 2, [2]),
    )  # fmt: skip
    for options, values, best, left in table:
        given = iter([*values, *values])

        class Scored(trainer_class):  # type: ignore[misc]
            def evaluate(self, *more: Any, given: Iterator[float] = given, **named: Any) -> dict[str, float]:
                found = {"eval_score": next(given), "eval_loss": 0.0}
                self.control: Any = self.callback_handler.on_evaluate(
                    self.args, self.state, self.control, found
                )
                return found

        own: dict[str, Any] = {
            "per_device_train_batch_size": 7, "max_steps": 4, "eval_strategy": "steps", "eval_steps": 1,
            "save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True,
            "metric_for_best_model": "score", **options,
        }  # fmt: skip
        data = {"train_dataset": numbered(), "eval_dataset": numbered()}
        trainer = Scored(model=Line(), args=arguments(**own), **data)
        weights = _weights_of_steps(trainer)
        trainer.train()
        folder = Path(trainer.args.output_dir)
        found = sorted(int(one.name.partition("-")[2]) for one in folder.glob("checkpoint-*"))
        state = trainer.state
        said = [state.best_metric, state.best_global_step, Path(str(state.best_model_checkpoint)).name, found]
        due = [values[best - 1], best, f"checkpoint-{best}", left]
        wrong += [] if said == due else [f"{dict(options)}: {said}, {due} is due"]
        wrong += unlike([float(trainer.model.slope)], [weights[best]], f"{dict(options)}, the loaded weight")
        wrong += _files(folder / f"checkpoint-{best}", bool(options.get("save_only_model")))
        if "save_only_model" in options:
            continue
        again = Scored(model=Line(), args=arguments(output_dir=str(folder), **own), **data)
        with resuming():
            again.train(resume_from_checkpoint=str(folder / f"checkpoint-{left[-1]}"))
        if left[-1] == 4:
            said = [again.state.best_metric, Path(str(again.state.best_model_checkpoint)).name]
            due = [values[best - 1], f"checkpoint-{best}"]
            wrong += [] if said == due else [f"{dict(options)}, resumed: {said}, {due} is due"]
            wrong += unlike([float(again.model.slope)], [weights[best]], f"{dict(options)}, resumed")
    return wrong


def _weights_of_steps(trainer: Any) -> dict[int, float]:
    import transformers

    weights: dict[int, float] = {}

    class Noting(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            weights[state.global_step] = float(kwargs["model"].slope)

    trainer.add_callback(Noting())
    return weights


def _files(folder: Path, only_model: bool) -> Iterator[str]:
    names = {one.name for one in folder.iterdir()}
    always, state = (
        {"model.safetensors", "training_args.bin", "trainer_state.json"},
        {
            "optimizer.pt",
            "scheduler.pt",
            "rng_state.pth",
        },
    )
    if not always <= names or (names & state) != (set() if only_model else state):
        yield f"{folder.name} with {only_model=} has {sorted(names)}"
    kept = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    step = int(folder.name.partition("-")[2])
    if kept["global_step"] != step or not math.isclose(kept["epoch"], step):
        yield f"{folder.name} is of step {kept['global_step']}, epoch {kept['epoch']}"


PLACE = "transformers:Trainer"
# Sources: the documentation of Trainer, TrainingArguments, TrainerState and TrainerCallback.
RUN_ROWS: Sequence[Row] = (
    Row("returns", PLACE, "what training returns", _returned, [], since="4.57"),
    Row(
        "returns",
        PLACE,
        "what a resumed run counts and logs",
        _resumed,
        [],
        since="4.57",
        known=KnownFailure(
            "its loss is divided by the steps of the whole run, and earlier releases count all its tokens",
            finding="Transformers: small functions of later releases",
            releases=before("transformers", "5.23"),
        ),
    ),
    Row("starts", PLACE, "training twice", _repeated, [], since="4.57"),
    Row("checkpoints", PLACE, "the best step and what is left", _best, [], since="5.4"),
)
