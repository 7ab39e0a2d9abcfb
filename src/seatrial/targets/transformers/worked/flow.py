"""Worked examples of the flow of Transformers' trainer: callbacks, states and seeds."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row

WISHES = ("should_log", "should_evaluate", "should_save", "should_training_stop", "should_epoch_stop")


Wishes = Sequence[tuple[Mapping[str, Any], Mapping[str, Any], list[str]]]


def _wishes(control: Any) -> list[str]:
    return [name.removeprefix("should_") for name in WISHES if getattr(control, name)]


def _flowing(event: str, table: Wishes, callback: Any) -> list[Any]:
    """Return what the default flow requests at an event, of options and states."""
    import transformers

    found = []
    for options, state, _ in table:
        args: Any = transformers.TrainingArguments
        made = args(
            output_dir="unused",
            use_cpu=True,
            report_to="none",
            **{"logging_strategy": "no", "save_strategy": "no", **options},
        )
        own = transformers.TrainerState(
            **{"logging_steps": 3, "eval_steps": 4, "save_steps": 5, "max_steps": 10, **state}
        )
        control = getattr(callback(), event)(made, own, transformers.TrainerControl())
        found.append(_wishes(control))
    return found


LOGS, EVALUATES, SAVES = {"logging_strategy": "steps"}, {"eval_strategy": "steps"}, {"save_strategy": "steps"}
STEPS: Wishes = (
    (LOGS, {"global_step": 3}, ["log"]),
    (LOGS, {"global_step": 4}, []),
    ({**LOGS, "logging_first_step": True}, {"global_step": 1}, ["log"]),
    ({"logging_first_step": True}, {"global_step": 1}, ["log"]),
    ({**LOGS, "logging_first_step": True}, {"global_step": 2}, []),
    ({}, {"global_step": 60, "max_steps": 61}, []),
    (EVALUATES, {"global_step": 4}, ["evaluate"]),
    (EVALUATES, {"global_step": 5}, []),
    ({**EVALUATES, "eval_delay": 5}, {"global_step": 4}, []),
    ({**EVALUATES, "eval_delay": 4}, {"global_step": 4}, ["evaluate"]),
    ({**EVALUATES, "eval_delay": 5}, {"global_step": 8}, ["evaluate"]),
    (SAVES, {"global_step": 5}, ["save"]),
    (SAVES, {"global_step": 4}, []),
    (SAVES, {"global_step": 4, "save_steps": 0}, []),
    ({**LOGS, **EVALUATES, **SAVES}, {"global_step": 60, "max_steps": 61}, ["log", "evaluate", "save"]),
    ({}, {"global_step": 10}, ["training_stop"]),
    ({}, {"global_step": 11}, ["training_stop"]),
    (SAVES, {"global_step": 7, "max_steps": 7}, ["save", "training_stop"]),
    ({"save_strategy": "epoch", "eval_strategy": "epoch", "logging_strategy": "epoch"}, {"global_step": 60,
        "max_steps": 61}, []),
    ({"save_strategy": "best"}, {"global_step": 5}, []),
)  # fmt: skip
"""Options, a state, and what is asked for at the end of a step."""
AT_THE_END: Wishes = (
    (EVALUATES, {"global_step": 10}, ["evaluate", "training_stop"]),
    (EVALUATES, {"global_step": 8, "max_steps": 8}, ["evaluate", "training_stop"]),
    ({**EVALUATES, "eval_delay": 11}, {"global_step": 10}, ["training_stop"]),
    ({"eval_strategy": "epoch"}, {"global_step": 10}, ["training_stop"]),
)
EPOCHS: Wishes = (
    ({"logging_strategy": "epoch"}, {"epoch": 1.0}, ["log"]),
    ({"eval_strategy": "epoch"}, {"epoch": 1.0}, ["evaluate"]),
    ({"eval_strategy": "epoch", "eval_delay": 2}, {"epoch": 1.0}, []),
    ({"eval_strategy": "epoch", "eval_delay": 2}, {"epoch": 2.0}, ["evaluate"]),
    ({"save_strategy": "epoch"}, {"epoch": 1.0}, ["save"]),
    ({**LOGS, **EVALUATES, **SAVES}, {"epoch": 1.0}, []),
    ({"save_strategy": "best", "eval_strategy": "epoch"}, {"epoch": 1.0}, ["evaluate"]),
)


def _handled(handler: Any) -> list[Any]:
    """Return the order of callbacks, the control that is passed on, what each is given, and what events reset."""
    import transformers

    seen: list[Any] = []

    class First(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            seen.append("first")
            return transformers.TrainerControl(should_save=True)

        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seen.append(
                [
                    more["logs"],
                    more["model"],
                    more["optimizer"],
                    more["lr_scheduler"],
                    more["processing_class"],
                ]
            )

        def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seen.append(more["metrics"])

    class Second(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seen.append(["second", control.should_save])

    flow: Any = transformers.trainer_callback.DefaultFlowCallback
    made = handler([flow, First(), Second], "model", "tokenizer", "optimizer", "schedule")
    state = transformers.TrainerState(global_step=1, max_steps=9)
    args = SimpleNamespace(
        logging_strategy="no", eval_strategy="no", save_strategy="no", logging_first_step=False
    )
    after = made.on_step_end(args, state, transformers.TrainerControl())
    resets = []
    for event, more in (
        ("on_train_begin", {}), ("on_epoch_begin", {}), ("on_step_begin", {}), ("on_evaluate", {"metrics": {"a": 1}}),
            ("on_save", {}),
        ("on_log", {"logs": {"b": 2}}), ("on_substep_end", {}), ("on_optimizer_step", {}),
    ):  # fmt: skip
        full = transformers.TrainerControl(*[True] * 5)
        resets.append(_wishes(getattr(made, event)(args, state, full, **more)))
    return [seen[:2], _wishes(after), seen[2:], resets]


def _kept(state: Any) -> list[Any]:
    """Return a state that is written and read again, steps that are shares, and states of callbacks of one class."""
    import transformers
    from transformers.trainer_callback import ExportableState

    class Counting(ExportableState):
        def __init__(self, count: int) -> None:
            self.count = count

        def state(self) -> dict[str, Any]:
            return {"args": {"count": self.count}, "attributes": {}}

    made = state(
        epoch=1.5,
        global_step=3,
        best_metric=0.5,
        stateful_callbacks=[Counting(1), Counting(2), transformers.TrainerControl()],
    )
    made.log_history.append({"loss": 1.0})
    file = Path(new_folder()) / "state.json"
    made.save_to_json(str(file))
    again = state.load_from_json(str(file))
    steps = []
    for options in ((0.3, 4, 0.25), (2, None, 0.9)):
        one = state()
        one.compute_steps(
            SimpleNamespace(**dict(zip(("logging_steps", "eval_steps", "save_steps"), options, strict=True))),
            10,
        )
        steps.append([one.logging_steps, one.eval_steps, one.save_steps])
    return [
        again == made,
        sorted(json.loads(file.read_text(encoding="utf-8"))["stateful_callbacks"]["Counting"], key=str),
        again.stateful_callbacks["TrainerControl"]["args"]["should_save"],
        steps,
        [state().log_history is state().log_history, state().stateful_callbacks],
    ]


def _controlled(control: Any) -> list[Any]:
    """Return controls after the start of a run, an epoch and a step, and one that is made of the state of another."""
    found: list[Any] = []
    for name in ("_new_training", "_new_epoch", "_new_step"):
        made = control(*[True] * 5)
        getattr(made, name)()
        found.append(_wishes(made))
    given = control(should_save=True, should_epoch_stop=True)
    return [*found, _wishes(control.from_state(given.state()))]


def _patient(callback: Any) -> list[Any]:
    """Return the counts of an early stop: by direction, threshold and name; without its metric, none."""
    import transformers

    found = []
    for greater, threshold, metric, values in (
        (True, 0.0, "score", (1.0, 2.0, 2.0, 1.5, 2.5)), (False, 0.0, "eval_score", (2.0, 1.0, 1.0, 1.5, 0.5)),
        (True, 0.6, "score", (1.0, 1.5, 1.7, 3.0, 3.5)), (False, 0.6, "score", (2.0, 1.5, 1.3, 0.2, 0.2)), (True, 0.0,
            "other", (1.0, 2.0)),
    ):  # fmt: skip
        made, state, control = (
            callback(2, threshold),
            transformers.TrainerState(),
            transformers.TrainerControl(),
        )
        args: Any = SimpleNamespace(metric_for_best_model=metric, greater_is_better=greater)
        counts = []
        for value in values:
            made.on_evaluate(args, state, control, {"eval_score": value})
            if state.best_metric is None or (
                value > state.best_metric if greater else value < state.best_metric
            ):
                state.best_metric = value
            counts.append(made.early_stopping_patience_counter)
        found.append([counts, control.should_training_stop])
    kept = callback(3, 0.5)
    kept.early_stopping_patience_counter = 2
    again = callback.from_state(kept.state())
    return [
        *found,
        [
            again.early_stopping_patience,
            again.early_stopping_threshold,
            again.early_stopping_patience_counter,
        ],
    ]


def _unmet(callback: Any) -> list[bool]:
    """Return whether an early stop refuses runs without a metric, and without evaluations."""
    import transformers

    found = []
    for metric, strategy in ((None, "steps"), ("score", "no"), ("score", "steps")):
        args: Any = SimpleNamespace(
            metric_for_best_model=metric,
            eval_strategy=transformers.IntervalStrategy(strategy),
            load_best_model_at_end=True,
        )
        try:
            callback().on_train_begin(args, transformers.TrainerState(), transformers.TrainerControl())
            found.append(False)
        except AssertionError:
            found.append(True)
    return found


def _drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


@contextlib.contextmanager
def _streams() -> Any:
    kept = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    cudnn = torch.backends.cudnn
    flags = torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.random.set_rng_state(kept[2])
        torch.use_deterministic_algorithms(flags[0])
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags[1:]


def _seeded(function: Any) -> list[list[bool]]:
    """Return whether each of three streams begins again with its seed, and not with another one."""
    with _streams():
        draws = []
        for seed in (3, 3, 4):
            function(seed)
            draws.append(_drawn())
    return [[one == two for one, two in zip(draws[0], other, strict=True)] for other in draws[1:]]


def _determined(function: Any) -> list[Any]:
    with _streams():
        function(3, warn_only=True)
        found = [
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
        ]
        first = _drawn()
        function(3, warn_only=True)
        return [*found, _drawn() == first]


def _of_workers(function: Any) -> list[bool]:
    """Return whether workers of a process draw by its seed, and those of another rank others."""
    with _streams():
        draws = []
        for rank in (0, 0, 1):
            torch.manual_seed(5)
            function(0, num_workers=2, rank=rank)
            draws.append(_drawn())
    return [draws[0] == draws[1], any(one == two for one, two in zip(draws[0], draws[2], strict=True))]


UTILITIES, CALLBACKS, PLACE = (
    "transformers.trainer_utils",
    "transformers.trainer_callback",
    "transformers:Trainer",
)
# Sources: the documentation of the callbacks, of TrainerState and TrainerControl.
FLOW_ROWS: Sequence[Row] = (
    Row(
        "loops", f"{CALLBACKS}:DefaultFlowCallback", "at the end of a step", partial(_flowing, "on_step_end", STEPS),
        [row[2] for row in STEPS], since="4.57",
    ),
    Row(
        "loops", f"{CALLBACKS}:DefaultFlowCallback", "at the end of a run", partial(_flowing, "on_step_end",
            AT_THE_END),
        [row[2] for row in AT_THE_END], since="5.16",
    ),
    Row(
        "loops", f"{CALLBACKS}:DefaultFlowCallback", "at the end of an epoch", partial(_flowing, "on_epoch_end",
            EPOCHS),
        [row[2] for row in EPOCHS], since="4.57",
    ),
    Row(
        "loops", f"{CALLBACKS}:CallbackHandler", "the order of callbacks, and what events reset", _handled,
        [
            ["first", ["second", True]], ["save"],
            [{"a": 1}, [{"b": 2}, "model", "optimizer", "schedule", "tokenizer"]],
            [
                ["log", "evaluate", "save", "epoch_stop"], ["log", "evaluate", "save", "training_stop"],
                    ["training_stop", "epoch_stop"],
                ["log", "save", "training_stop", "epoch_stop"], ["log", "evaluate", "training_stop", "epoch_stop"],
                ["evaluate", "save", "training_stop", "epoch_stop"], *[["log", "evaluate", "save", "training_stop",
                    "epoch_stop"]] * 2,
            ],
        ],
        since="4.57",
    ),
    Row(
        "states", f"{CALLBACKS}:TrainerState", "written and read again", _kept,
        [
            True, [{"args": {"count": 1}, "attributes": {}}, {"args": {"count": 2}, "attributes": {}}], False,
            [[3, 4, 3], [2, 500, 9]], [False, {}],
        ],
        since="4.57",
    ),
    Row(
        "states", f"{CALLBACKS}:TrainerControl", "after starts", _controlled,
        [
            ["log", "evaluate", "save", "epoch_stop"], ["log", "evaluate", "save", "training_stop"], ["training_stop",
                "epoch_stop"],
            ["save", "epoch_stop"],
        ],
        since="4.57",
    ),
    Row(
        "steps", f"{CALLBACKS}:EarlyStoppingCallback", "counts by direction and threshold", _patient,
        [
            [[0, 0, 1, 2, 0], True], [[0, 0, 1, 2, 0], True], [[0, 1, 2, 0, 1], True], [[0, 1, 2, 0, 1], True], [[0,
                0], False], [3, 0.5, 2],
        ],
        since="4.57",
    ),
    Row("steps", f"{CALLBACKS}:EarlyStoppingCallback", "runs that it refuses", _unmet, [True, True, False],
        since="4.57"),
    Row("starts", f"{UTILITIES}:set_seed", "of each stream", _seeded, [[True] * 3, [False] * 3], since="4.46"),
    Row("starts", f"{UTILITIES}:enable_full_determinism", "of algorithms and streams", _determined, [True, True,
        False, True], since="4.46"),
    Row("starts", f"{UTILITIES}:seed_worker", "of each rank", _of_workers, [True, False], since="4.57"),
)  # fmt: skip
