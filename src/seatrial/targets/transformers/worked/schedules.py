"""Worked examples of Transformers' schedules: rates by hand, of several groups, and refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.worked_rows import Row, unlike

RATES = (0.5, 0.25)
"""Of the groups of an optimizer."""


def _optimizer(**more: Any) -> Any:
    groups = [{"params": [nn.Parameter(torch.ones(2))], "lr": rate, **more} for rate in RATES]
    return torch.optim.SGD(groups, lr=RATES[0])


def _shares(arguments: Mapping[str, Any], due: Sequence[float], function: Any) -> list[str]:
    """Return where the rates of a schedule's steps are not these shares of the groups' own."""
    optimizer, wrong = _optimizer(), []
    schedule = function(optimizer, **arguments)
    for step, share in enumerate(due):
        found = [group["lr"] for group in optimizer.param_groups]
        wrong += unlike(found, [rate * share for rate in RATES], f"step {step}", 1e-7)
        wrong += unlike(schedule.get_last_lr(), found, f"last rate, step {step}", 1e-7)
        optimizer.step()
        schedule.step()
    return wrong


STEPS = {"num_warmup_steps": 2, "num_training_steps": 6}
WAVE = (1.0, 0.85355339, 0.5, 0.14644661, 0.0)
"""Half a cosine of four steps."""
RAISED = tuple(0.2 + 0.8 * one for one in WAVE)
PARTS = {"num_warmup_steps": 2, "num_decay_steps": 4, "num_stable_steps": 2, "min_lr_ratio": 0.2}
SQUARE = (1.0, 0.6, 0.43431458, 0.30717968)
SHARES: Sequence[tuple[str, str, Mapping[str, Any], Sequence[float]]] = (
    ("get_constant_schedule", "all steps", {}, [1.0] * 4),
    ("get_constant_schedule_with_warmup", "a warm-up", {"num_warmup_steps": 4}, [0, 0.25, 0.5, 0.75, 1, 1, 1]),
    ("get_linear_schedule_with_warmup", "a warm-up, and beyond", STEPS, [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0, 0]),
    ("get_linear_schedule_with_warmup", "no warm-up", {"num_warmup_steps": 0, "num_training_steps": 4}, [1, 0.75, 0.5,
        0.25, 0]),
    ("get_cosine_schedule_with_warmup", "a warm-up", STEPS, [0, 0.5, *WAVE]),
    ("get_cosine_schedule_with_warmup", "a whole wave", {**STEPS, "num_cycles": 1.0}, [0, 0.5, 1, 0.5, 0, 0.5, 1]),
    (
        "get_cosine_with_hard_restarts_schedule_with_warmup", "two waves, and beyond", {**STEPS, "num_cycles": 2},
        [0, 0.5, 1, 0.5, 1, 0.5, 0, 0],
    ),
    ("get_cosine_with_hard_restarts_schedule_with_warmup", "one wave", STEPS, [0, 0.5, *WAVE]),
    ("get_inverse_sqrt_schedule", "a warm-up", {"num_warmup_steps": 2}, [0, 0.5, 1, 0.81649658, 0.70710678]),
    ("get_inverse_sqrt_schedule", "a scale", {"num_warmup_steps": 2, "timescale": 4}, [0, 0.5, 1, 0.89442719,
        0.81649658]),
    ("get_cosine_with_min_lr_schedule_with_warmup", "a least share", {**STEPS, "min_lr_rate": 0.2}, [0, 0.5, *RAISED]),
    ("get_cosine_with_min_lr_schedule_with_warmup", "a least rate", {**STEPS, "min_lr": 0.1}, [0, 0.5, *RAISED]),
    ("get_cosine_with_min_lr_schedule_with_warmup", "no least rate", {**STEPS, "min_lr": 0.0}, [0, 0.5, *WAVE]),
    (
        "get_cosine_with_min_lr_schedule_with_warmup", "a whole wave", {**STEPS, "min_lr_rate": 0.2, "num_cycles": 1.0},
        [0, 0.5, 1, 0.6, 0.2, 0.6, 1],
    ),
    ("get_wsd_schedule", "its parts, and beyond", PARTS, [0.2, 0.6, 1, 1, *RAISED[:4], 0.2, 0.2]),
    ("get_wsd_schedule", "a line", {**PARTS, "decay_type": "linear"}, [0.2, 0.6, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2]),
    ("get_wsd_schedule", "a root", {**PARTS, "decay_type": "1-sqrt"}, [0.2, 0.6, 1, 1, *SQUARE, 0.2]),
    ("get_wsd_schedule", "a warm-up by a root", {**PARTS, "warmup_type": "1-sqrt"}, [0.2, 0.43431458, 1, 1,
        *RAISED[:4]]),
    ("get_wsd_schedule", "a warm-up by a cosine", {**PARTS, "num_warmup_steps": 4, "warmup_type": "cosine"}, [0.2,
        0.31715729, 0.6, 0.88284271, 1, 1]),
    ("get_wsd_schedule", "a whole wave", {**PARTS, "num_cycles": 1.0}, [0.2, 0.6, 1, 1, 1, 0.6, 0.2, 0.6, 0.2]),
    (
        "get_wsd_schedule", "all steps", {"num_warmup_steps": 2, "num_decay_steps": 4, "num_training_steps": 9},
        [0, 0.5, 1, 1, 1, *WAVE, 0],
    ),
)  # fmt: skip
"""Functions, what is tried, arguments, and the share of each step."""
LATER: Sequence[tuple[str, str, Mapping[str, Any], Sequence[float]]] = (
    ("get_cosine_with_min_lr_schedule_with_warmup_lr_rate", "a warm-up", {**STEPS, "min_lr_rate": 0.2}, [0.5, 1,
        *RAISED[1:]]),
    (
        "get_cosine_with_min_lr_schedule_with_warmup_lr_rate", "the start of a warm-up",
        {"num_warmup_steps": 3, "num_training_steps": 7, "min_lr": 0.1, "warmup_lr_rate": 0.5}, [0.5, 0.75, 1,
            *RAISED[1:]],
    ),
)  # fmt: skip


def _polynomial(function: Any) -> list[str]:
    """Return where rates of the first group do not fall to the end by a power, and stay there."""
    wrong = []
    for power, due in (
        (2.0, [0.5, 0.325, 0.2, 0.125, 0.1, 0.1, 0.1]),
        (1.0, [0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1]),
    ):
        optimizer = _optimizer()
        schedule = function(optimizer, num_warmup_steps=0, num_training_steps=4, lr_end=0.1, power=power)
        found = []
        for _ in due:
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        wrong += unlike(found, due, f"power {power}", 1e-7)
    return wrong


def _continued(function: Any) -> list[float]:
    """Return the rates of a schedule that continues after four steps."""
    optimizer = _optimizer()
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    schedule = function(optimizer, **STEPS, last_epoch=3)
    found = [optimizer.param_groups[0]["lr"]]
    optimizer.step()
    schedule.step()
    return [*found, optimizer.param_groups[0]["lr"]]


UNFIT: Sequence[tuple[str, Mapping[str, Any], str]] = (
    ("no warm-up", {"name": "linear", "num_training_steps": 4}, "requires `num_warmup_steps`"),
    ("no number of steps", {"name": "cosine", "num_warmup_steps": 1}, "requires `num_training_steps`"),
    ("another name", {"name": "steep", **STEPS}, "is not a valid SchedulerType"),
    ("an end above the start", {"name": "polynomial", **STEPS, "scheduler_specific_kwargs": {"lr_end": 0.7}},
        "must be smaller than initial lr"),
    ("no least rate", {"name": "cosine_with_min_lr", **STEPS}, "One of min_lr or min_lr_rate"),
    (
        "two least rates", {"name": "cosine_with_min_lr", **STEPS, "scheduler_specific_kwargs": {"min_lr": 0.1,
            "min_lr_rate": 0.2}},
        "Only one of min_lr or min_lr_rate",
    ),
    (
        "a warm-up of another kind", {"name": "warmup_stable_decay", **STEPS,
            "scheduler_specific_kwargs": {"num_decay_steps": 2, "warmup_type": "x"}},
        "Unknown warmup type",
    ),
    (
        "a decay of another kind", {"name": "warmup_stable_decay", **STEPS,
            "scheduler_specific_kwargs": {"num_decay_steps": 2, "decay_type": "x"}},
        "Unknown decay type",
    ),
)  # fmt: skip


def _unfit(given: Mapping[str, Any], function: Any) -> Any:
    return function(optimizer=_optimizer(), **given)


def _greedy(made: Any) -> list[Any]:
    """Return rates of groups with limits of their own, after a start again, with smoothed metrics, and refusals."""
    found: list[Any] = []
    optimizer = _optimizer()
    schedule = made(optimizer, factor=0.5, patience=0, min_lr=[0.2, 0.1], max_lr=[0.6, 1.0])
    for metric in (1.0, 0.5, 2.0, 2.0, 2.0):
        schedule.step(metric)
        found.append([group["lr"] for group in optimizer.param_groups])
    optimizer = _optimizer()
    schedule = made(optimizer, factor=0.5, patience=0, min_lr=0.25, reset_start=1)
    for metric in (1.0, 2.0, 2.0):
        schedule.step(metric)
        found.append([*schedule.get_last_lr(), schedule.best])
    schedule = made(_optimizer(), smooth=True, window_size=2)
    for metric in (4.0, 2.0, 0.0):
        schedule.step(metric)
        found.append(schedule.best)
    for bad in (
        {"factor": 1.0},
        {"mode": "x"},
        {"threshold_mode": "x"},
        {"min_lr": [0.1]},
        {"max_lr": [0.1]},
    ):
        try:
            made(_optimizer(), **bad)
        except ValueError:
            found.append("refused")
    return found


GREEDY = [
    [0.6, 0.5], [0.6, 1.0], [0.3, 0.5], [0.2, 0.25], [0.2, 0.125],
    [1.0, 0.5, 1.0], [0.5, 0.25, 1.0], [0.5, 0.25, math.inf], 4.0, 3.0, 1.0, *["refused"] * 5,
]  # fmt: skip


def _averaged(made: Any) -> list[Any]:
    """Return means of the last three values, and those of another average with the state of the first."""
    one, other = made(3), made(5)
    found = [one.streamavg(value) for value in (1.0, 3.0, 5.0, 7.0)]
    other.load_state_dict(one.state_dict())
    return [*found, other.streamavg(9.0), one.streamavg(0.0), other.window_size, len(one.values)]


OF = "transformers.optimization"
# Sources: the documentation of each function.
SCHEDULE_ROWS: Sequence[Row] = (
    *(Row("rates", f"{OF}:{name}", what, partial(_shares, given, due), [], since="4.57") for name, what, given,
        due in SHARES),
    *(Row("rates", f"{OF}:{name}", what, partial(_shares, given, due), [], since="4.57") for name, what, given,
        due in LATER),
    Row("rates", f"{OF}:get_polynomial_decay_schedule_with_warmup", "powers, and beyond", _polynomial, [],
        since="4.46"),
    Row("rates", f"{OF}:get_linear_schedule_with_warmup", "after four steps", _continued, [0.25, 0.125], since="4.46"),
    *(Row("combinations", f"{OF}:get_scheduler", what, partial(_unfit, given), Refused(words), since="4.57") for what,
        given, words in UNFIT),
    Row("rates", f"{OF}:GreedyLR", "groups, starts and means", _greedy, GREEDY, since="5"),
    Row("rates", f"{OF}:StreamingAverage", "windows and states", _averaged, [1.0, 2.0, 3.0, 5.0, 7.0, 4.0, 3, 3],
        since="5"),
)  # fmt: skip
