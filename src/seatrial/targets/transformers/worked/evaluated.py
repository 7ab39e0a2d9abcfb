"""Worked examples of evaluations of Transformers' trainer: what metrics are given, and what stops a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.trainers import resuming
from seatrial.targets.common.worked_rows import Row, unlike
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.predictions import (
    LABELS,
    LOSS,
    NUM_ROWS,
    PAIRS,
    Shaped,
    _padded,
    collate,
    labelled_rows,
)
from seatrial.targets.transformers.worked.runs import arguments, numbered

LOSSES = [float(abs(row + 1 - row % 3)) for row in range(NUM_ROWS)]


def _trainer(trainer_class: Any, **more: Any) -> Any:
    named = (
        "compute_metrics",
        "preprocess_logits_for_metrics",
        "callbacks",
        "compute_loss_func",
        "eval_dataset",
    )
    given = {name: more.pop(name) for name in named if name in more}
    made = {"per_device_eval_batch_size": 2, "remove_unused_columns": False, **more}
    return trainer_class(
        model=Shaped("dictionary"),
        args=arguments(**made),
        data_collator=collate,
        **{"eval_dataset": labelled_rows(), **given},
    )


def _list(found: Any) -> Any:
    if isinstance(found, (tuple, list)):
        return [_list(one) for one in found]
    return None if found is None else found.tolist()


def _means(size: int) -> list[float]:
    """Return the loss of each row's batch."""
    return [
        sum(LOSSES[first : first + size]) / len(LOSSES[first : first + size])
        for first in range(0, NUM_ROWS, size)
        for _ in LOSSES[first : first + size]
    ]


def _given(trainer_class: Any) -> list[str]:
    """Return where metrics are not given all outputs, labels, inputs and losses of rows, in batches of any size."""
    wrong = []
    for size, accumulation, names, cut in product(
        (1, 2, 5, 8), (None, 1, 2), ((), ("inputs",), ("loss",), ("inputs", "loss")), (False, True)
    ):
        seen: list[Any] = []

        def metrics(found: Any, seen: list[Any] = seen) -> dict[str, Any]:
            seen.append(found)
            return {"number": np.float32(2.5), "eval_own": 3}

        def first(logits: Any, labels: Any) -> Any:
            return logits[0][:, 0] + labels

        trainer = _trainer(
            trainer_class, per_device_eval_batch_size=size, eval_accumulation_steps=accumulation,
            include_for_metrics=list(names), compute_metrics=metrics,
            preprocess_logits_for_metrics=first if cut else None,
        )  # fmt: skip
        metrics_found = trainer.evaluate()
        (found,) = seen
        what = f"{size=}, {accumulation=}, {names}, {cut=}"
        due: Any = [PAIRS, _padded(size)]
        if cut:
            due = [row + 1 + label for row, label in enumerate(LABELS)]
        wrong += (
            [] if _list(found.predictions) == due else [f"{what}: predictions {_list(found.predictions)}"]
        )
        wrong += [] if _list(found.label_ids) == LABELS else [f"{what}: labels {_list(found.label_ids)}"]
        inputs = [float(row + 1) for row in range(NUM_ROWS)] if "inputs" in names else None
        wrong += [] if _list(found.inputs) == inputs else [f"{what}: inputs {_list(found.inputs)}"]
        losses = [] if found.losses is None else np.ravel(found.losses).tolist()
        wrong += unlike(losses, _means(size) if "loss" in names else [], f"{what}: losses")
        wrong += unlike([metrics_found["eval_loss"]], [LOSS], what)
        kinds = [
            metrics_found.get("eval_number"),
            metrics_found.get("eval_own"),
            trainer.state.log_history[-1]["step"],
        ]
        wrong += [] if kinds == [2.5, 3, 0] else [f"{what}: {kinds}"]
    return wrong[:4]


def _by_batch(trainer_class: Any) -> list[str]:
    """Return where metrics of batches are not given each batch once, with the result asked for at the last alone."""
    wrong = []
    for size, names, cut in product((1, 2, 3, 8), ((), ("inputs", "loss")), (False, True)):
        seen: list[Any] = []

        def metrics(found: Any, compute_result: bool, seen: list[Any] = seen) -> dict[str, float]:
            rows = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
            inputs = found.inputs["number"] if isinstance(found.inputs, Mapping) else found.inputs
            seen.append([_list(rows), _list(found.label_ids), _list(inputs), found.losses, compute_result])
            return {"rows": float(sum(len(one[1]) for one in seen))} if compute_result else {}

        trainer = _trainer(
            trainer_class, per_device_eval_batch_size=size, batch_eval_metrics=True, include_for_metrics=list(names),
            compute_metrics=metrics, preprocess_logits_for_metrics=(lambda logits, labels: logits[0]) if cut else None,
        )  # fmt: skip
        found = trainer.evaluate()
        what, starts = f"{size=}, {names}, {cut=}", range(0, NUM_ROWS, size)
        due = [PAIRS[start : start + size] for start in starts]
        wrong += (
            [] if [one[0] for one in seen] == due else [f"{what}: predictions {[one[0] for one in seen]}"]
        )
        due_labels = [LABELS[start : start + size] for start in starts]
        wrong += (
            [] if [one[1] for one in seen] == due_labels else [f"{what}: labels {[one[1] for one in seen]}"]
        )
        asked = [bool(one[4]) for one in seen]
        wrong += [] if asked == [False] * (len(seen) - 1) + [True] else [f"{what}: results {asked}"]
        inputs = [
            [row + 1 for row in range(NUM_ROWS)][start : start + size] if names else None for start in starts
        ]
        wrong += [] if [one[2] for one in seen] == inputs else [f"{what}: inputs {[one[2] for one in seen]}"]
        if names:
            means = [_means(size)[start] for start in starts]
            wrong += unlike([float(np.mean(_list(one[3]))) for one in seen], means, f"{what}: losses")
        wrong += unlike([found["eval_rows"], found["eval_loss"]], [NUM_ROWS, LOSS], what)
    return wrong[:4]


def _noticed(trainer_class: Any) -> list[Any]:
    """Return events of evaluations and predictions, with what they are given."""
    import transformers

    seen: list[Any] = []

    class Noting(transformers.TrainerCallback):
        def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seen.append(["step", len(more["eval_dataloader"])])

        def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seen.append(["evaluate", "eval_loss" in more["metrics"]])

        def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **more: Any) -> None:
            seen.append(["predict", "one_loss" in metrics])

        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seen.append(["log", sorted(name for name in more["logs"] if name.endswith("loss"))])

    trainer = _trainer(trainer_class, callbacks=[Noting()])
    trainer.evaluate()
    trainer.predict(labelled_rows()[:2], metric_key_prefix="one")
    return seen


NOTICED = [*[["step", 3]] * 3, ["log", ["eval_loss"]], ["evaluate", True], ["step", 1], ["predict", True]]


def _precise(trainer_class: Any) -> list[Any]:
    """Return the type of outputs of evaluations in bfloat16, before and within a run, and of weights afterwards."""
    seen: list[Any] = []

    class Typed(Line):
        def forward(self, number: Any, labels: Any) -> Any:
            found = super().forward(number.to(self.slope.dtype), labels)
            seen.append([self.training, str(self.slope.dtype).removeprefix("torch.")])
            return found

    args = arguments(
        bf16_full_eval=True, max_steps=1, eval_strategy="steps", eval_steps=1, logging_strategy="no"
    )
    trainer = trainer_class(model=Typed(), args=args, train_dataset=numbered(1), eval_dataset=numbered(1))
    trainer.train()
    trainer.evaluate()
    return seen


def _own_loss(trainer_class: Any) -> list[Any]:
    """Return losses of an evaluation by a function, and what it is given of counts."""
    seen: list[Any] = []

    def own(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        seen.append(None if num_items_in_batch is None else float(num_items_in_batch))
        return ((outputs["logits"][:, 0] - labels) ** 2).mean()

    found = _trainer(trainer_class, compute_loss_func=own, per_device_eval_batch_size=1).evaluate()
    return [round(found["eval_loss"] - sum(one**2 for one in LOSSES) / NUM_ROWS, 5), seen]


def _smoothed(trainer_class: Any) -> list[str]:
    """Return where losses of evaluations are not smoothed as those of training are."""
    ids = [40, 41, 42, 43]
    model = tiny_model(tiny_tokenizer(), 0).eval()
    with torch.no_grad():
        rows = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, :-1].double(), dim=-1)
    wrong = []
    for factor in (0.0, 0.3):
        own = -rows[torch.arange(3), torch.tensor(ids[1:])].mean()
        due = (1 - factor) * own - factor * rows.mean()
        args = arguments(label_smoothing_factor=factor, per_device_eval_batch_size=2)
        # The first label has no prediction; releases of 4 count it.
        data = [{"input_ids": ids, "labels": [-100, *ids[1:]]}] * 3
        found = trainer_class(model=tiny_model(tiny_tokenizer(), 0), args=args, eval_dataset=data).evaluate()
        wrong += unlike([found["eval_loss"]], [float(due)], f"{factor=}", 1e-5)
    return wrong


Patience = Mapping[str, Any]
STOPPED: Sequence[tuple[Patience, Patience, Sequence[float], int, int]] = (
    ({"early_stopping_patience": 1}, {"greater_is_better": False}, (3, 2, 2, 1, 1), 3, 2),
    ({"early_stopping_patience": 2}, {"greater_is_better": False}, (3, 2, 2.5, 2, 1), 4, 2),
    ({"early_stopping_patience": 2}, {"greater_is_better": False}, (3, 2, 2.5, 1, 2), 5, 4),
    ({"early_stopping_patience": 1}, {"greater_is_better": True}, (1, 2, 1, 3, 3), 3, 2),
    (
        {"early_stopping_patience": 2, "early_stopping_threshold": 0.5}, {"greater_is_better": True},
        (1, 1.4, 1.8, 3, 3), 3, 3,
    ),
    (
        {"early_stopping_patience": 1}, {"greater_is_better": False, "save_strategy": "steps", "save_total_limit": 1},
        (3, 2, 2, 1, 1), 3, 2,
    ),
)  # fmt: skip
"""Options of an early stop and of a run, metrics of steps, the last step and the best one."""


def _stopped(trainer_class: Any) -> list[str]:
    """Return where runs do not stop at the step that their metrics say, with the weights of the best one."""
    import transformers

    wrong = []
    for patience, options, values, last, best in STOPPED:
        given = iter(values)

        class Scored(trainer_class):  # type: ignore[misc]
            def evaluate(self, *more: Any, given: Iterator[float] = given, **named: Any) -> dict[str, float]:
                found = {"eval_score": next(given)}
                self.control: Any = self.callback_handler.on_evaluate(
                    self.args, self.state, self.control, found
                )
                return found

        own: dict[str, Any] = {
            "max_steps": 5, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
            "metric_for_best_model": "score", "load_best_model_at_end": True, "per_device_train_batch_size": 7,
            **options,
        }  # fmt: skip
        made: Any = transformers.EarlyStoppingCallback
        trainer = Scored(
            model=Line(), args=arguments(**own), train_dataset=numbered(), eval_dataset=numbered(),
            callbacks=[made(**patience)],
        )  # fmt: skip
        with resuming():
            trainer.train()
        state = trainer.state
        found = [state.global_step, Path(str(state.best_model_checkpoint)).name, state.best_metric]
        due = [last, f"checkpoint-{best}", values[best - 1]]
        wrong += (
            [] if found == due else [f"{dict(patience)}, {dict(options)}, {values}: {found}, {due} is due"]
        )
    return wrong


def _sized(trainer_class: Any) -> list[Any]:
    """Return predictions and rows a step of data sets of any form."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(labelled_rows())

    class Counted(Stream):
        def __len__(self) -> int:
            return NUM_ROWS

    class Uncounted(Stream):
        def __len__(self) -> int:
            return 0

    found = []
    for data, more in (
        (Stream(), {}),
        (Counted(), {}),
        (Uncounted(), {}),
        (labelled_rows(), {"dataloader_drop_last": True}),
    ):
        trainer = _trainer(trainer_class, **more)
        one = trainer.predict(data, ignore_keys=["tokens", "past"])
        rate = one.metrics["test_samples_per_second"] / one.metrics["test_steps_per_second"]
        found.append([one.predictions.tolist(), round(3 * rate, 1) == 5.0])
    return found


def _within(trainer_class: Any) -> list[Any]:
    """Return steps and sets of a run's evaluations: at its start, after a delay, by epochs, of several sets."""
    found = []
    for options in (
        {"eval_strategy": "steps", "eval_steps": 2}, {"eval_strategy": "steps", "eval_steps": 3},
        {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 3}, {"eval_strategy": "epoch"},
        {"eval_strategy": "epoch", "eval_delay": 2}, {"eval_strategy": "steps", "eval_steps": 0.25},
        {"eval_strategy": "epoch", "eval_on_start": True}, {"eval_strategy": "no"},
    ):  # fmt: skip
        args = arguments(num_train_epochs=2, per_device_train_batch_size=1, logging_strategy="no", **options)
        sets = {"one": numbered(2), "two": numbered(3)}
        trainer = trainer_class(model=Line(), args=args, train_dataset=numbered(4), eval_dataset=sets)
        trainer.train()
        history = trainer.state.log_history
        found.append(
            [[one["step"], name] for one in history for name in ("one", "two") if f"eval_{name}_loss" in one]
        )
    return found


def _steps(*steps: int) -> list[list[Any]]:
    return [[step, name] for step in steps for name in ("one", "two")]


WITHIN = [
    _steps(2, 4, 6, 8), _steps(3, 6, 8), _steps(4, 6, 8), _steps(4, 8), _steps(8), _steps(2, 4, 6, 8),
    _steps(0, 4, 8), [],
]  # fmt: skip
WITHIN_4 = [WITHIN[0], _steps(3, 6), *WITHIN[2:]]


def _frequent(trainer_class: Any) -> list[bool]:
    """Return whether evaluations within a run are those of its steps, in releases of 4 without the last, or later."""
    found = _within(trainer_class)
    return [one in (due, earlier) for one, due, earlier in zip(found, WITHIN, WITHIN_4, strict=True)]


PLACE = "transformers:Trainer"
BF16, FULL = "bfloat16", "float32"
ENTRIES: Sequence[tuple[str, str, Any, Any]] = (
    ("validations", "what metrics are given of batches of any size", _given, []),
    ("validations", "metrics of each batch", _by_batch, []),
    ("loops", "events of evaluations and predictions", _noticed, NOTICED),
    (
        "validations", "evaluations in bfloat16", _precise,
        [[True, FULL], [False, FULL], [False, BF16]],
    ),
    ("validations", "evaluations by an own loss", _own_loss, [0.0, [1.0] * NUM_ROWS]),
    ("validations", "evaluations of smoothed losses", _smoothed, []),
    ("steps", "runs that stop early", _stopped, []),
    (
        "validations", "data sets of any form", _sized,
        [[PAIRS, True], [PAIRS, True], [PAIRS, True], [PAIRS[:4], True]],
    ),
    ("loops", "evaluations within runs", _frequent, [True] * len(WITHIN)),
)  # fmt: skip
# Sources: the documentation of Trainer, TrainingArguments and EarlyStoppingCallback.
EVALUATED_ROWS: Sequence[Row] = tuple(
    Row(subject, PLACE, name, call, right, since="4.57") for subject, name, call, right in ENTRIES
)
