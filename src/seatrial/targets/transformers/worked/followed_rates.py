"""Worked examples of rates of Transformers' schedules that follow metrics, in runs and step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import arguments, numbered


def _plateau(
    name: str, options: Mapping[str, Any], values: Sequence[float], trainer_class: Any
) -> list[float]:
    """Return the rates of steps after metrics of evaluations."""
    from transformers.trainer_utils import SchedulerType

    if name not in [one.value for one in SchedulerType]:
        raise NotServed(f"this release has no schedule {name}")
    given = iter(values)

    class Scored(trainer_class):  # type: ignore[misc]
        def evaluate(self, *more: Any, **named: Any) -> dict[str, float]:
            found = {"eval_score": next(given)}
            self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
            return found

    own: dict[str, Any] = {
        "max_steps": len(values), "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "score",
        "greater_is_better": False, "lr_scheduler_type": name, "lr_scheduler_kwargs": dict(options),
        "per_device_train_batch_size": 7, "learning_rate": 1.0, "optim": "sgd", "logging_strategy": "no",
    }  # fmt: skip
    trainer = Scored(model=Line(), args=arguments(**own), train_dataset=numbered(), eval_dataset=numbered())
    rates: list[float] = []
    step = trainer.training_step

    def watched(*given: Any, **more: Any) -> Any:
        rates.append(float(trainer.optimizer.param_groups[0]["lr"]))
        return step(*given, **more)

    trainer.training_step = watched
    trainer.train()
    return rates


FALLING = (3.0, 3.0, 3.0, 2.0, 2.0, 2.0)
PLATEAUS: Sequence[tuple[str, Mapping[str, Any], Sequence[float], Sequence[float]]] = (
    ("reduce_lr_on_plateau", {"factor": 0.5, "patience": 0}, FALLING, [1, 1, 0.5, 0.25, 0.25, 0.125]),
    ("reduce_lr_on_plateau", {"factor": 0.5, "patience": 1}, FALLING, [1, 1, 1, 0.5, 0.5, 0.5]),
    (
        "reduce_lr_on_plateau",
        {"factor": 0.25, "patience": 0, "min_lr": 0.2},
        FALLING,
        [1, 1, 0.25, 0.2, 0.2, 0.2],
    ),
    (
        "reduce_lr_on_plateau",
        {"factor": 0.5, "patience": 0, "mode": "max"},
        FALLING,
        [1, 1, 0.5, 0.25, 0.125, 0.0625],
    ),
    ("greedy", {"factor": 0.5, "patience": 0, "max_lr": 4.0}, FALLING, [1, 2, 1, 0.5, 1, 0.5]),
)


def _cooled(made: Any) -> list[Any]:
    """Return rates of a schedule that waits after each change, at the start, and by each form of its threshold."""
    found: list[Any] = []
    for options, values in (
        ({"cooldown": 1}, (1.0, 2.0, 2.0, 2.0, 2.0)), ({"warmup": 1}, (1.0, 2.0, 2.0, 2.0, 2.0)),
        ({"mode": "max"}, (1.0, 2.0, 3.0, 3.0, 1.0)),
        ({"threshold": 0.5, "threshold_mode": "rel"}, (4.0, 3.0, 1.0, 0.4)),
        ({"threshold": 0.5, "threshold_mode": "abs"}, (4.0, 3.0, 2.6, 2.2)),
        ({"mode": "max", "threshold": 0.5, "threshold_mode": "rel"}, (2.0, 2.5, 4.0, 5.0)),
        ({"mode": "max", "threshold": 0.5, "threshold_mode": "abs"}, (2.0, 2.4, 3.0, 3.6)),
    ):  # fmt: skip
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0)
        given = {"factor": 0.5, "patience": 0, "max_lr": 8.0, **options}
        schedule, again = made(optimizer, **given), None
        rates = []
        for place, value in enumerate(values):
            if place == 2:  # its state is that of another one
                again = made(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=1.0), **given)
                again.load_state_dict(schedule.state_dict())
            for one in (schedule, again):
                if one is not None:
                    one.step(value)
            rates.append(optimizer.param_groups[0]["lr"])
            if again is not None and again.optimizer.param_groups[0]["lr"] != rates[-1]:
                return [
                    f"{options}: another one with its state is at {again.optimizer.param_groups[0]['lr']}"
                ]
        found.append(rates)
    return found


COOLED = [
    [2.0, 1.0, 1.0, 0.5, 0.5], [2.0, 2.0, 1.0, 0.5, 0.25], [2.0, 4.0, 8.0, 4.0, 2.0], [2.0, 1.0, 2.0, 4.0],
    [2.0, 4.0, 2.0, 4.0], [2.0, 1.0, 2.0, 1.0], [2.0, 1.0, 2.0, 4.0],
]  # fmt: skip
PLACE, OF = "transformers:Trainer", "transformers.optimization"
# Sources: the documentation of ReduceLROnPlateau of torch and of GreedyLR.
FOLLOWED_ROWS: Sequence[Row] = (
    *(
        Row("rates", PLACE, f"rates by metrics, {name} {dict(options)}", partial(_plateau, name, options, values),
            [float(one) for one in due],
            since="4.57")
        for name, options, values, due in PLATEAUS
    ),
    Row("rates", f"{OF}:GreedyLR", "waits, thresholds and states", _cooled, COOLED, since="5"),
)  # fmt: skip
