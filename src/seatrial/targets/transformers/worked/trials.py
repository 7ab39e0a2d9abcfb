"""Worked examples of what Transformers' trainer counts, keeps, tries and logs of a run."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.parts import Mixed
from seatrial.targets.transformers.worked.runs import arguments, line, numbered

Metrics = Sequence[tuple[bool, str, Sequence[float]]]
METRICS: Metrics = (
    (True, "steps", (1.0, 1.0, 2.0, 0.5)), (False, "epoch", (1.0, 1.0, 0.5, 2.0)), (True, "no", (0.0, -1.0, 1.0, 1.0)),
    (True, "steps", (-5.0, -6.0, -4.0, math.nan)),
)  # fmt: skip
"""Whether a greater metric is better, the strategy of saves, and metrics of steps."""


def _best(table: Metrics, trainer_class: Any) -> list[Any]:
    """Return whether each metric is the best so far, by direction and way of saving, and what the state keeps."""
    found = []
    for greater, strategy, values in table:
        own: dict[str, Any] = {
            "save_strategy": strategy,
            "metric_for_best_model": "score",
            "greater_is_better": greater,
        }
        trainer = line(trainer_class, **own)
        better = []
        for step, value in enumerate(values, start=1):
            trainer.state.global_step = step
            better.append(bool(trainer._determine_best_metric({"eval_score": value, "score": 9.0}, None)))
        found.append([better, trainer.state.best_metric, trainer.state.best_global_step])
    try:
        trainer._determine_best_metric({"eval_other": 1.0}, None)
    except KeyError as error:
        found.append(["eval_score" in str(error), "eval_other" in str(error)])
    return found


def _initial(trainer_class: Any) -> list[Any]:
    """Return epochs, steps, rows and the like of a run, of loaders with and without a length."""
    found: list[Any] = []

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(numbered())

    for options, streams in (
        ({"num_train_epochs": 3}, False), ({"num_train_epochs": 1.3, "gradient_accumulation_steps": 3}, False),
            ({"max_steps": 5}, False),
        ({"max_steps": 5, "gradient_accumulation_steps": 2}, False), ({"max_steps": 5,
            "gradient_accumulation_steps": 2}, True),
        ({"max_steps": 8}, False), ({"gradient_accumulation_steps": 9, "num_train_epochs": 2}, False),
    ):  # fmt: skip
        own = {"per_device_train_batch_size": 2, "max_steps": -1, **options}
        trainer = trainer_class(
            model=Line(), args=arguments(**own), train_dataset=Stream() if streams else numbered()
        )
        values = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())
        found.append(["many" if one == sys.maxsize else one for one in values])
    try:
        trainer_class(model=Line(), args=arguments(), train_dataset=Stream())
    except ValueError as error:
        found.append("max_steps" in str(error))
    return found


def _tried(trainer_class: Any) -> list[Any]:
    """Return options of a trial in the types of the run, sizes of batches that follow, and words left out."""
    import transformers.trainer_utils

    trainer = trainer_class(
        model_init=Line,
        args=arguments(
            per_device_train_batch_size=8,
            num_train_epochs=3,
            learning_rate=0.1,
            seed=1,
            gradient_accumulation_steps=1,
            data_seed=None,
        ),
        train_dataset=numbered(),
    )
    backends: Any = transformers.trainer_utils.HPSearchBackend
    trainer._hp_search_setup({"learning_rate": 0.5})
    before = trainer.args.learning_rate
    trainer.hp_search_backend = backends.RAY
    trial = {
        "learning_rate": "0.25", "num_train_epochs": 2, "seed": 7.0, "per_device_train_batch_size": 3.0, "unknown": 4,
            "wandb": {},
        "gradient_accumulation_steps": 2.0, "data_seed": 5,
    }  # fmt: skip
    trainer._hp_search_setup(trial)
    args = trainer.args
    return [
        before,
        [
            args.learning_rate,
            args.num_train_epochs,
            args.seed,
            args.per_device_train_batch_size,
            args.gradient_accumulation_steps,
            args.data_seed,
        ],
        [type(args.num_train_epochs).__name__, type(args.seed).__name__],
        trainer._train_batch_size,
        hasattr(args, "unknown"),
        next(iter(trainer.get_train_dataloader()))["number"].shape[0],
    ]


def _initialized(trainer_class: Any) -> list[Any]:
    """Return models that a function makes: made for each run, by the seed, with the trial; and what is refused."""
    given: list[Any] = []

    def of_trial(trial: Any) -> Any:
        given.append(trial)
        return Line()

    trainer = trainer_class(
        model_init=of_trial,
        args=arguments(max_steps=1, per_device_train_batch_size=2),
        train_dataset=numbered(),
    )
    trainer.train()
    first = trainer.model
    trainer.train()
    refused = []
    for made in (lambda one, two: Line(), lambda: None):
        try:
            trainer_class(model_init=made, args=arguments()).call_model_init()
        except RuntimeError as error:
            refused.append("argument" in str(error) or "None" in str(error))
    drawn = [
        trainer_class(model_init=Mixed, args=arguments(seed=seed)).model.first.weight.detach()
        for seed in (1, 1, 2)
    ]
    return [
        given, trainer.model is first, refused, [torch.equal(drawn[0], other) for other in drawn[1:]],
        any(one is trainer.model.slope for group in trainer.optimizer.param_groups for one in group["params"]),
    ]  # fmt: skip


def _found_sizes(trainer_class: Any) -> list[Any]:
    """Return the rows of steps of a run that halves its batches until they fit, and the size that it keeps."""
    seen: list[list[int]] = []

    class Limited(trainer_class):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *more: Any) -> Any:
            if len(inputs["number"]) > 2:
                raise RuntimeError("CUDA out of memory.")
            seen.append(inputs["number"].tolist())
            return super().training_step(model, inputs, *more)

    trainer = line(
        Limited, numbered(6), auto_find_batch_size=True, per_device_train_batch_size=4, num_train_epochs=1,
            learning_rate=0.0
    )  # fmt: skip
    trainer.train()
    rows = [row for batch in seen for row in batch]
    return [
        max(map(len, seen)),
        rows,
        trainer.state.global_step == len(seen),
        trainer.state.train_batch_size == len(seen[0]),
    ]


def _operations(trainer_class: Any) -> list[Any]:
    """Return operations that a step counts: 6 for each token and weight; none without the main input."""
    from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer

    model = tiny_model(tiny_tokenizer(), 0)
    trainer = trainer_class(model=model, args=arguments())
    ids = torch.ones(2, 5, dtype=torch.long)
    count = sum(value.numel() for name, value in model.named_parameters() if "embed" not in name)
    found = [trainer.floating_point_ops({"input_ids": ids}), trainer.floating_point_ops({"other": ids})]
    trainer.current_flos = 7.0
    trainer.store_flos()
    trainer.current_flos = 5.0
    trainer.store_flos()
    plain = trainer_class(model=Line(), args=arguments()).floating_point_ops({"input_ids": ids})
    return [found[0] == 60 * count, found[1], trainer.state.total_flos, trainer.current_flos, plain]


def _logged(trainer_class: Any) -> list[Any]:
    """Return what is added to what is logged, in the history and for callbacks."""
    trainer = line(trainer_class)
    trainer.state.epoch, trainer.state.global_step = 1.5, 7
    given = {"loss": 0.5}
    trainer.log(given)
    trainer.state.epoch = None
    trainer.log({"more": 1.0})
    return [trainer.state.log_history, given]


def _prepared(trainer_class: Any) -> list[Any]:
    """Return the kinds of inputs in any structure after they are moved, and the refusal of none."""
    from collections import UserDict

    trainer = line(trainer_class)
    one = torch.ones(1)
    found = trainer._prepare_input({"a": one, "b": (one, [one, "word"]), "c": UserDict(d=one), "e": 3})
    refused = False
    trainer._set_signature_columns_if_needed()
    try:
        trainer._prepare_inputs({})
    except ValueError:
        refused = True
    return [
        [type(found[name]).__name__ for name in "abce"], type(found["b"][1]).__name__, found["b"][1][1],
            found["c"]["d"].device.type, refused,
    ]  # fmt: skip


PLACE = "transformers:Trainer"
INITIAL = [
    [3, 4, 7, 21, 2, 4, 12], [2, 2, 7, 9.1, 6, 4, 3], [2, 4, 7, 10, 2, 4, 5], [3, 2, 7, 20, 4, 4, 5],
    ["many", 5, 20, 20, 4, 10, 5], [2, 4, 7, 16, 2, 4, 8], [2, 1, 7, 14, 18, 4, 2], True,
]  # fmt: skip
# Sources: the documentation of Trainer.
TRIAL_ROWS: Sequence[Row] = (
    Row(
        "steps", PLACE, "the best of all metrics", partial(_best, METRICS),
        [
            [[True, False, True, False], 2.0, 3], [[True, False, True, False], 0.5, 3], [[True, False, True, False],
                1.0, None],
            [[True, False, True, False], -4.0, 3], [True, True],
        ],
        since="4.57",
    ),
    Row(
        "steps", PLACE, "the best of metrics where only the best is saved", partial(_best, [(False, "best", (-1.0,
            -2.0, -1.5, -3.0))]),
        [[[True, True, False, True], -3.0, 4], [True, True]], since="4.57",
        known=KnownFailure(
            "its step is not kept",
            finding="Transformers: small functions of later releases",
            releases=before("transformers", "5.4"),
        ),
    ),
    Row("counts", PLACE, "epochs, steps and rows of a run", _initial, INITIAL, since="5.19"),
    Row(
        "starts", PLACE, "options of a trial", _tried,
        [0.1, [0.25, 2, 7, 3, 2, 5], ["int", "int"], 3, False, 3], since="5.8",
    ),
    Row("starts", PLACE, "models that a function makes", _initialized, [[None, None, None], False, [True, True],
        [True, False], True], since="4.57"),
    Row("starts", PLACE, "batches that fit", _found_sizes, [2, [1, 2, 3, 4, 5, 6], True, True], since="4.57"),
    Row("counts", PLACE, "operations of a step", _operations, [True, 0, 12.0, 0, 0], since="4.57"),
    Row(
        "steps", PLACE, "what is added to logs", _logged,
        [[{"loss": 0.5, "epoch": 1.5, "step": 7}, {"more": 1.0, "step": 7}], {"loss": 0.5, "epoch": 1.5}], since="4.57",
    ),
    Row("batches", PLACE, "inputs of any structure", _prepared, [["Tensor", "tuple", "UserDict", "int"], "list",
        "word", "cpu", True], since="4.57"),
)  # fmt: skip
