"""Worked examples of verl's metrics of ranks and trackers: what they write, and what their backends are given."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy
import torch

from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.values import refused_calls

TRACKING = "verl.utils.tracking:"
METRIC = "verl.utils.metric:"


def _reduced(reduce: Callable[..., Any]) -> dict[str, float]:
    metric = find_name("verl", [f"{METRIC}Metric"])
    found = reduce(
        {
            "loss": [1.0, 3.0],
            "length/max": [1.0, 3.0],
            "length/min": [1.0, 3.0],
            "own/max": metric("sum", 2.0),
        }
    )
    return {name: float(value) for name, value in found.items()}


def _metric(metric: Any) -> list[Any]:
    """Return metrics of several values, of ranks, of another metric, and what is refused."""
    kinds = ("mean", "sum", "min", "max")
    found: list[Any] = []
    for kind in kinds:
        one = metric(kind, 1)
        one.extend([torch.tensor([4.0]), numpy.float64(7.0)])
        one.append(metric(kind, 2))
        found.append(float(one.aggregate()))
    for kind in kinds:
        ranks = [metric(kind), metric(kind)]
        ranks[0].extend([1.0, 5.0])
        ranks[1].extend([3.0, 9.0])
        found.append(float(metric.aggregate_dp(ranks)))
    made = metric.from_dict({"a": 1.0, "b": 2.0}, "max")
    empty = metric("sum", 3.0).init_list()
    unequal = [metric("sum", 1.0), metric("sum")]
    return [
        *found,
        {name: [one.aggregation.value, one.values] for name, one in made.items()},
        [empty.aggregation.value, empty.values],
        refused_calls(metric, ("none",), ("sum", torch.ones(2)), ("sum", "x")),
        refused_calls(metric("sum").append, (metric("max", 1.0),)),
        refused_calls(metric.aggregate_dp, ([],), (unequal,)),
    ]


def _console(to_text: Callable[..., Any]) -> list[str]:
    values = {"a": 1, "b": 0.5, "c": "x", "e": [1], "f": True}
    return [to_text(values, step=3), to_text({}, step=0)]


def _in_file(tracking: Any) -> list[Any]:
    """Return the records of a file, which is in the folder of the project, or at a given path."""
    root = Path(new_folder())
    with contextlib.redirect_stdout(io.StringIO()):
        with mock.patch.dict("os.environ", {"VERL_FILE_LOGGER_ROOT": str(root)}):
            one = tracking("project", "run", default_backend=["file"])
            one.log({"a": numpy.float64(0.5)}, 3)
            one.log({"a": 1}, step=4, backend=["console"])
            one.log({"a": 2}, step=5, backend=["file"])
            one.finish()
            one.finish()
        with mock.patch.dict("os.environ", {"VERL_FILE_LOGGER_PATH": str(root / "own.jsonl")}):
            other = tracking("project", "run", default_backend="file")
            other.log({"b": 1}, 1)
            other.finish()
    paths = (root / "project" / "run.jsonl", root / "own.jsonl")
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


class _Kind(enum.Enum):
    """Enumerated, as an option of a run may be."""

    FIRST = "one"


@dataclasses.dataclass
class _Options:
    """Options of a run."""

    size: int = 3


def _parameters(flatten: Callable[..., Any]) -> list[Any]:
    given = {
        "a": {"b": [1, {"c": 2}]},
        "path": Path("x"),
        "kind": _Kind.FIRST,
        "options": _Options(),
        "none": None,
    }
    return [flatten(given), flatten(None)]


def _sanitized(adapter: Any) -> list[str]:
    """Return the names that metrics have in MLflow; the second time as the first."""
    one = adapter()
    names = ("val/mean@4", "a//b", "a(b)", "a/b.c-d:e f", "val/mean@4")
    return [one._sanitize_key(name) for name in names]


def _retried(adapter: Any) -> list[Any]:
    """Return what MLflow is given, the third time if it fails twice, and no more after it fails three times."""
    calls: list[Any] = []
    failing = 0

    def log_metrics(metrics: Any, step: int) -> None:
        calls.append((dict(metrics), step))
        if len(calls) <= failing:
            raise ValueError("busy")

    fake = ModuleType("mlflow")
    vars(fake).update(log_metrics=log_metrics)
    found = []
    with mock.patch.dict(sys.modules, {"mlflow": fake}):
        for times in (0, 2, 5):
            calls.clear()
            failing = times
            adapter().log({"a@b": 1.0}, 7)
            found.append((len(calls), calls[-1]))
    return found


def _tables(logger_class: Any) -> dict[str, Any]:
    """Return what backends are given of texts of a validation, twice, and which backends are called."""
    logged: list[Any] = []

    class _Table:
        def __init__(self, columns: Any, data: Any = ()) -> None:
            self.columns, self.data = list(columns), [list(row) for row in data]

        def add_data(self, *row: Any) -> None:
            self.data.append(list(row))

    wandb, swanlab = ModuleType("wandb"), ModuleType("swanlab")
    vars(wandb).update(Table=_Table, run=object(), log=lambda data, step: logged.append((data, step)))
    made: dict[str, Any] = {}
    echarts = SimpleNamespace(
        Table=lambda: SimpleNamespace(add=lambda headers, rows: made.update(rows=rows, headers=headers))
    )
    vars(swanlab).update(echarts=echarts, log=lambda data, step: made.update(step=step))
    one = logger_class("project", "run")
    samples = [["in 1", "out 1", 0.5], ["in 2", "out 2", 1.0]]
    with mock.patch.dict(sys.modules, {"wandb": wandb, "swanlab": swanlab}):
        one.log(["wandb", "swanlab"], samples, 1)
        one.log(["wandb"], samples, 2)
    last = logged[-1][0]["val/generations"]
    return {
        "columns": last.columns,
        "rows": last.data,
        "steps": [step for _, step in logged],
        "swanlab": made,
    }


TABLES: Mapping[str, Any] = {
    "columns": ["step", "input_1", "output_1", "score_1", "input_2", "output_2", "score_2"],
    "rows": [[step, "in 1", "out 1", 0.5, "in 2", "out 2", 1.0] for step in (1, 2)],
    "steps": [1, 2],
    "swanlab": {
        "rows": [[1, "in 1", "out 1", 0.5], [1, "in 2", "out 2", 1.0]],
        "headers": ["step", "input", "output", "score"],
        "step": 1,
    },
}


ROWS: Sequence[Row] = (
    Row(
        "metrics",
        f"{METRIC}reduce_metrics",
        "by name, and by their own kind",
        _reduced,
        {"loss": 2.0, "length/max": 3.0, "length/min": 1.0, "own/max": 2.0},
        since="0.4",
    ),
    Row(
        "metrics",
        f"{METRIC}Metric",
        "kinds, ranks, what is refused",
        _metric,
        [
            *(3.5, 14.0, 1.0, 7.0),
            *(4.5, 9.0, 1.0, 9.0),
            {"a": ["max", [1.0]], "b": ["max", [2.0]]},
            ["sum", []],
            [True] * 3,
            [True],
            [True, True],
        ],
        since="0.4",
    ),
    Row(
        "metrics",
        "verl.utils.logger.aggregate_logger:concat_dict_to_str verl.utils.logger:concat_dict_to_str",
        "numbers alone",
        _console,
        ["step:3 - a:1 - b:0.5 - f:True", "step:0"],
        since="0.5",
    ),
    Row(
        "metrics",
        f"{TRACKING}Tracking",
        "records of a file",
        _in_file,
        [
            [{"step": 3, "data": {"a": 0.5}}, {"step": 5, "data": {"a": 2}}],
            [{"step": 1, "data": {"b": 1}}],
        ],
        since="0.6",
    ),
    Row(
        "metrics",
        f"{TRACKING}Tracking",
        "a backend that is none",
        lambda tracking: refused_calls(tracking, ("a", "b", "none"), ("a", "b", ["console", "none"])),
        [True, True],
    ),
    Row(
        "metrics",
        f"{TRACKING}_compute_mlflow_params_from_objects",
        "options",
        _parameters,
        [
            {
                "a/b/list_len": 2,
                "a/b/0": 1,
                "a/b/1/c": 2,
                "path": "x",
                "kind": "one",
                "options/size": 3,
                "none": None,
            },
            {},
        ],
    ),
    Row(
        "metrics",
        f"{TRACKING}_MlflowLoggingAdapter",
        "names",
        _sanitized,
        ["val/mean_at_4", "a/b", "a_b_", "a/b.c-d:e f", "val/mean_at_4"],
        since="0.4",
    ),
    Row(
        "metrics",
        f"{TRACKING}_MlflowLoggingAdapter",
        "a server that is busy",
        _retried,
        [(calls, ({"a_at_b": 1.0}, 7)) for calls in (1, 3, 3)],
        since="0.8",
    ),
    Row("metrics", f"{TRACKING}ValidationGenerationsLogger", "tables of texts", _tables, TABLES, since="0.4"),
)
