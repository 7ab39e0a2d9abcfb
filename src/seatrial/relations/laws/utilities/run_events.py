"""R31.run_events: events that callbacks see, how losses that are not finite are logged, and rows of a resume."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

RUN_EVENTS = relation_of(
    "run_events",
    "events-of-a-run-are-those-of-its-options",
    "Callbacks see each event once and in order, their requests are met, and a resumed run has the rows that are due.",
)
Options = Mapping[str, Any]
BATCH, EPOCHS = 2, 2
EVENTS: Sequence[Options] = (
    {"logging_strategy": "steps", "logging_steps": 2, "logging_first_step": True},
    {"gradient_accumulation_steps": 3, "logging_strategy": "epoch", "save_strategy": "epoch"},
    {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 3, "save_strategy": "steps", "save_steps": 4},
    {"eval_strategy": "epoch", "eval_delay": 2},
    {"eval_strategy": "steps", "eval_steps": 4, "eval_on_start": True, "max_steps": 4},
    {"requests": (("training_stop", 3),), "save_strategy": "epoch"},
    {"requests": (("epoch_stop", 2),), "eval_strategy": "epoch"},
    {"requests": (("evaluate", 1), ("save", 3), ("log", 5))},
)
"""Options of a run; `requests`: what a callback requests for at the end of a step."""


def _event_cases(case: Numbers) -> Iterator[Arguments]:
    for options in EVENTS:
        yield options, 7


def events(options: Options, number: int) -> list[str]:
    """Return each event with its step; a log that is wanted for without a new step is none, the last one has means."""
    found: list[str] = []
    size = options.get("gradient_accumulation_steps", 1)
    batches = -(-number // BATCH)
    updates = [min(size, batches - start) for start in range(0, batches, size)]
    last = options.get("max_steps", EPOCHS * len(updates))
    requests = {place: what for what, place in options.get("requests", ())}
    logged = step = 0
    stops = False

    def note(*names: str) -> None:
        found.extend(f"{name} {step}" for name in names)

    def flow(log: bool, evaluate: bool, save: bool) -> None:
        nonlocal logged
        if log and step > logged:
            note("log")
            logged = step
        if evaluate:
            note("log", "evaluate")
        if save:
            note("save")

    def strategy(kind: str, name: str) -> bool:
        return bool(options.get(f"{kind}_strategy", "no") == name)

    note("train_begin")
    if options.get("eval_on_start"):
        note("log", "evaluate")
    for epoch in range(EPOCHS):
        note("epoch_begin")
        done = 0
        for micro_batches in updates:
            note("step_begin", *["substep_end"] * (micro_batches - 1), "pre_optimizer_step", "optimizer_step")
            step, done = step + 1, done + 1
            note("step_end")
            wanted = requests.get(step)
            stops = step == last or wanted == "training_stop"
            due = strategy("eval", "steps") and step % options["eval_steps"] == 0
            saves = strategy("save", "steps") and (step % options["save_steps"] == 0 or step == last)
            flow(
                (strategy("logging", "steps") and step % options["logging_steps"] == 0)
                or (step == 1 and bool(options.get("logging_first_step")))
                or wanted == "log",
                (due and step >= options.get("eval_delay", 0)) or wanted == "evaluate",
                saves or wanted == "save",
            )
            if stops or wanted == "epoch_stop":
                break
        note("epoch_end")
        reached = epoch + done / len(updates)
        flow(
            strategy("logging", "epoch"),
            strategy("eval", "epoch") and reached >= options.get("eval_delay", 0),
            strategy("save", "epoch"),
        )
        if stops:
            break
    note("log", "train_end")
    return found


FINITE = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
NOT_FINITE: Sequence[Sequence[float]] = (
    (1.0, 3.0, math.nan, 5.0, 6.0, 7.0),
    (2.0, math.inf, 4.0, 8.0, 1.0, 3.0),
)
WINDOW = 3


def _loss_cases(case: Numbers) -> Iterator[Arguments]:
    yield FINITE, False
    yield FINITE, True


def _unfiltered_cases(case: Numbers) -> Iterator[Arguments]:
    for losses in NOT_FINITE:
        yield losses, False


def _filtered_cases(case: Numbers) -> Iterator[Arguments]:
    for losses in NOT_FINITE:
        yield losses, True


def logged(losses: Sequence[float], filters: bool) -> list[float]:
    """Return the means of windows of losses; the filter replaces a loss that is not finite by the mean before it."""
    found = []
    for start in range(0, len(losses), WINDOW):
        own: list[float] = []
        for loss in losses[start : start + WINDOW]:
            own.append(loss if math.isfinite(loss) or not filters else sum(own) / max(len(own), 1))
        found.append(sum(own) / len(own))
    return found


COLUMNS: Sequence[Options] = (
    {},
    {"remove_unused_columns": False},
    {"label_names": ["aim"]},
    {"label_names": ["aim"], "remove_unused_columns": False},
)
GIVEN = ("number", "labels", "label", "label_ids", "aim", "text")
"""Columns of the rows; the model takes the first two, and what it is given by other names."""


def _column_cases(case: Numbers) -> Iterator[Arguments]:
    for options in COLUMNS:
        for form in ("data set", "list"):
            yield options, form


def columns(options: Options, form: str) -> list[str]:
    """Return the columns that a collator is given: those of the model, and labels by their usual and given names."""
    if not options.get("remove_unused_columns", True):
        return sorted(GIVEN)
    return sorted({"number", "labels", "label", "label_ids", *options.get("label_names", ())})


RESUMED: Sequence[tuple[Options, int]] = (
    ({}, 3),
    ({}, 6),
    ({"gradient_accumulation_steps": 2}, 1),
    ({"gradient_accumulation_steps": 2}, 3),
    ({"ignore_data_skip": True}, 3),
    ({"ignore_data_skip": True, "gradient_accumulation_steps": 2}, 3),
    ({"max_steps": 9}, 5),
)


def _resumed_cases(case: Numbers) -> Iterator[Arguments]:
    for options, stop in RESUMED:
        yield options, 7, stop


def resumed(options: Options, number: int, stop: int) -> list[list[list[int]]]:
    """Return rows by update and micro-batch after a resume; where nothing is skipped, the epoch begins again."""
    rows = list(range(1, number + 1))
    batches = [rows[start : start + BATCH] for start in range(0, number, BATCH)]
    size = options.get("gradient_accumulation_steps", 1)
    epoch = [batches[start : start + size] for start in range(0, len(batches), size)]
    last = options.get("max_steps", EPOCHS * len(epoch))
    begin = stop % len(epoch) if not options.get("ignore_data_skip") else 0
    return (epoch * 9)[begin : begin + last - stop]


RUN_EVENT_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="events of a run",
        law="events of a run",
        suspects="an event twice or of another step, a delay or what a callback requests for that is ignored",
        cases=_event_cases,
        right=events,
    ),
    Plain(
        name="logged losses",
        law="losses that are logged",
        suspects="a loss of another window",
        cases=_loss_cases,
        right=logged,
        bound=1e-4,
    ),
    Plain(
        name="logged losses",
        law="losses that are not finite",
        suspects="a window that keeps what is not finite of the one before",
        cases=_unfiltered_cases,
        right=logged,
        bound=1e-4,
    ),
    Plain(
        name="logged losses",
        law="losses that are not finite, filtered",
        suspects="a mean that counts the loss that it replaces",
        cases=_filtered_cases,
        right=logged,
        bound=1e-4,
    ),
    Plain(
        name="columns of a run",
        law="columns that a collator is given",
        suspects="labels by given names that are left out, an option that is ignored",
        cases=_column_cases,
        right=columns,
    ),
    Plain(
        name="rows after a resume",
        law="rows after a resume",
        suspects="rows twice or left out, micro-batches taken for updates, an option that is ignored",
        cases=_resumed_cases,
        right=resumed,
    ),
)
add_laws(RUN_EVENTS, RUN_EVENT_FUNCTIONS)
