"""Worked examples of what Transformers' trainer passes to trackers of experiments, by stand-ins for their packages."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import MagicMock, patch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.short_runs import Line
from seatrial.targets.transformers.worked.runs import arguments

OF = "transformers.integrations.integration_utils"
LOGS: Mapping[str, Any] = {
    "loss": 1.5, "eval_loss": 2.5, "test_f1": 0.5, "train_runtime": 9.0, "train_loss": 1.25, "total_flos": 7.0,
    "epoch": 1.0, "note": "word",
}  # fmt: skip
STEP = 3


class _Packages(ExitStack):
    """Stand-ins for packages, which are said to be installed."""

    def __init__(self, names: Sequence[str], available: str) -> None:
        """Take names of modules, and the check of the integration."""
        super().__init__()
        self.found = MagicMock()
        whole = {}
        for name in names:
            place = self.found
            for part in name.split(".")[1:]:
                place = getattr(place, part)
            whole[name] = place
        self.enter_context(patch.dict(sys.modules, whole))
        module = importlib.import_module(OF)
        if not hasattr(module, available):
            raise NotServed(f"this release has no {available}")
        self.enter_context(patch.object(module, available, lambda: True))


def _state(**more: Any) -> Any:
    import transformers

    made: Any = transformers.TrainerState
    return made(global_step=STEP, epoch=1.0, max_steps=4, logging_steps=1, **more)


def _plain(calls: Any) -> list[Any]:
    """Return arguments of calls."""
    return [[*one.args, *([one.kwargs] if one.kwargs else [])] for one in calls]


Reads = Callable[[Any, Any], Any]


def _logged(names: Sequence[str], available: str, read: Reads, callback: Any) -> Any:
    """Return what a tracker is given of logs, and nothing of another process than the first."""
    with _Packages(names, available) as packages:
        package = packages.found
        package.__version__ = "2.7.0"
        package.utils.validation.MAX_PARAM_VAL_LENGTH = 250
        package.utils.validation.MAX_PARAMS_TAGS_PER_BATCH = 100
        args = arguments(run_name="own")
        made = callback()
        made.on_train_begin(args, _state(), None, model=Line())
        made.on_log(args, _state(), None, model=Line(), logs=dict(LOGS))
        found = read(package, made)
        package.reset_mock()
        other = _state(is_world_process_zero=False)
        made.on_log(args, other, None, model=Line(), logs=dict(LOGS))
        if read(package, made) != read(MagicMock(), made):
            return ["another process than the first logs too"]
        return found


RENAMED = {
    "train/loss": 1.5, "eval/loss": 2.5, "test/f1": 0.5, "train/epoch": 1.0, "train/note": "word",
    "train/global_step": STEP,
}  # fmt: skip
NUMBERS = {name: value for name, value in LOGS.items() if name != "note"}


def _of_swanlab(package: Any, made: Any) -> Any:
    return _plain(package.log.call_args_list)


def _of_wandb(package: Any, made: Any) -> Any:
    single = _plain(package.run.summary.__setitem__.call_args_list)
    return [single, _plain(package.log.call_args_list)]


def _of_mlflow(package: Any, made: Any) -> Any:
    return _plain(package.log_metrics.call_args_list)


def _of_trackio(package: Any, made: Any) -> Any:
    return _plain(package.log.call_args_list)


SINGLE = ("train_runtime", "train_loss", "total_flos")
TRACKED: Sequence[tuple[str, Sequence[str], str, Reads, Any]] = (
    (
        "SwanLabCallback", ["swanlab"], "is_swanlab_available", _of_swanlab,
        [*([{f"single_value/{name}": LOGS[name]}, {"step": STEP}] for name in SINGLE), [RENAMED, {"step": STEP}]],
    ),
    (
        "WandbCallback", ["wandb", "wandb.sdk", "wandb.sdk.lib", "wandb.sdk.lib.config_util"], "is_wandb_available",
        _of_wandb, [[[name, LOGS[name]] for name in SINGLE], [[RENAMED]]],
    ),
    ("MLflowCallback", ["mlflow"], "is_mlflow_available", _of_mlflow, [[{"metrics": NUMBERS, "step": STEP}]]),
    ("TrackioCallback", ["trackio"], "is_trackio_available", _of_trackio, [[RENAMED]]),
)  # fmt: skip


def _named(callback: Any) -> list[Any]:
    """Return the names of metrics that MLflow takes, by its release; and how runs start and end."""
    found: list[Any] = []
    for release in ("2.7.0", "2.8.0"):
        with _Packages(["mlflow"], "is_mlflow_available") as packages:
            package = packages.found
            package.__version__ = release
            package.utils.validation.MAX_PARAM_VAL_LENGTH = 20
            package.utils.validation.MAX_PARAMS_TAGS_PER_BATCH = 40
            package.active_run.return_value = None
            package.active_run.side_effect = [None, MagicMock(), MagicMock(), MagicMock()]
            made = callback()
            made.on_train_begin(arguments(run_name="own"), _state(), None, model=Line())
            made.on_log(None, _state(), None, logs={"a (b)": 1, "c@2": 2.0, "d/e-f.g": 3.0})
            made.on_train_end(None, _state(), None)
            found.append(_plain(package.log_metrics.call_args_list))
            found.append([package.start_run.call_args.kwargs, package.end_run.call_count])
            batches = [call.args[0] for call in package.log_params.call_args_list]
            values = [str(value) for one in batches for value in one.values()]
            whole = [name for one in batches for name in one]
            found.append(
                [max(map(len, batches)) <= 40, max(map(len, values)) <= 20, len(whole) == len({*whole})]
            )
            found.append("learning_rate" in whole)
    return found


NAMES = {"a _b_": 1, "c_2": 2.0, "d/e-f.g": 3.0}
MLFLOW = [
    [[{"metrics": NAMES, "step": STEP}]], [{"run_name": "own", "nested": False}, 1], [True, True, True], True,
    [[{"metrics": NAMES, "step": STEP, "synchronous": False}]], [{"run_name": "own", "nested": False}, 1],
    [True, True, True], True,
]  # fmt: skip


def _azure(callback: Any) -> list[Any]:
    """Return what a run of Azure is given: numbers alone, from the first process alone."""
    with _Packages(["azureml"], "is_azureml_available"):
        run = MagicMock()
        made = callback(run)
        made.on_log(None, _state(is_world_process_zero=False), None, logs=dict(LOGS))
        made.on_log(None, _state(), None, logs=dict(LOGS))
        return _plain(run.log.call_args_list)


def _clear(callback: Any) -> list[Any]:
    """Return what ClearML is given: single values, scalars by kind, and what it drops."""
    with _Packages(["clearml"], "is_clearml_available"):
        made = callback()
        made._initialized, made._clearml_task = True, MagicMock()
        logger = made._clearml_task.get_logger()
        made.on_log(None, _state(is_world_process_zero=False), None, logs=dict(LOGS))
        made.on_log(None, _state(), None, logs=dict(LOGS))
        suffix = callback.log_suffix
        return [
            [[one["name"].removesuffix(suffix), one["value"]] for (one,) in _plain(
                logger.report_single_value.call_args_list
            )],
            [[one["title"].removesuffix(suffix), one["series"], one["value"], one["iteration"]] for (one,) in _plain(
                logger.report_scalar.call_args_list
            )],
        ]  # fmt: skip


def _neptune(callback: Any) -> list[Any]:
    """Return what Neptune is given: flat values and series; and whether a checkpoint is the best so far."""
    names = ["neptune", "neptune.internal", "neptune.internal.utils"]
    with _Packages(names, "is_neptune_available") as packages:
        packages.found.Run = type("Run", (), {})
        space = MagicMock()
        with patch.object(callback, "_metadata_namespace", space):
            made = callback(log_checkpoints="best")
            made.on_log(None, _state(is_world_process_zero=False), None, logs=dict(LOGS))
            made.on_log(None, _state(), None, logs=dict(LOGS))
        found: list[Any] = [
            _plain(space.__setitem__.call_args_list),
            [call.args[0] for call in space.__getitem__.call_args_list],
            _plain(space.__getitem__.return_value.log.call_args_list),
        ]
        for greater, best, value in (
            (True, 1.0, 2.0),
            (True, 2.0, 1.0),
            (False, 2.0, 1.0),
            (True, None, 1.0),
        ):
            args = arguments(metric_for_best_model="score", greater_is_better=greater)
            made.on_evaluate(args, _state(best_metric=best), None, metrics={"eval_score": value})
            found.append(bool(made._should_upload_checkpoint))
        return found


def _live(callback: Any) -> list[Any]:
    """Return what DVCLive is given of logs, with a step after each."""
    names = ["dvclive", "dvclive.plots", "dvclive.utils"]
    with _Packages(names, "is_dvclive_available") as packages:
        package = packages.found
        package.Live = type("Live", (), {})
        package.plots.Metric.could_log = lambda value: isinstance(value, float)
        package.utils.standardize_metric_name = lambda name, framework: f"{framework} {name}"
        made = callback()
        made._initialized, made.live = True, MagicMock()
        made.on_log(None, _state(is_world_process_zero=False), None, logs=dict(LOGS))
        made.on_log(None, _state(), None, logs=dict(LOGS))
        return [_plain(made.live.log_metric.call_args_list), made.live.next_step.call_count]


def _flyte(callback: Any) -> list[Any]:
    """Return the checkpoints that Flyte is given: of the first process, where they are synced."""
    found: list[Any] = []
    with _Packages(["flytekit"], "is_flytekit_available") as packages:
        packages.enter_context(patch(f"{OF}.is_flyte_deck_standard_available", lambda: False))
        store = packages.found.current_context().checkpoint
        for syncs, first in ((True, True), (True, False), (False, True)):
            made = callback(save_log_history=False, sync_checkpoints=syncs)
            args = arguments()
            made.on_save(args, _state(is_world_process_zero=first), None)
            found.append([os.path.relpath(one.args[0], args.output_dir) for one in store.save.call_args_list])
            store.reset_mock()
    return found


def _progress(callback: Any) -> list[Any]:
    """Return the states of a job of Kubeflow: what is done, and its metrics."""
    with patch.dict(os.environ, {"KUBEFLOW_TRAINER_SERVER_URL": "https://none.invalid"}):
        made = callback()
        with patch.object(made, "_update_status") as update:
            made.on_log(None, _state(), None, logs={"loss": 9.0})
            made.on_train_begin(None, _state(), None)
            made.on_log(None, _state(), None, logs={"loss": 1.5, "note": "word"})
            made.on_step_end(None, _state(), None)
            made.on_step_end(None, _state(is_world_process_zero=False), None)
            made.on_train_end(None, _state(), None)
        return [[one.kwargs["progress_percent"], one.kwargs["metrics"]] for one in update.call_args_list]


STEPS = {"loss": 1.5, "current_step": STEP, "total_steps": 4, "current_epoch": 1.0}
OTHERS: Sequence[tuple[str, Callable[[Any], Any], Any]] = (
    ("MLflowCallback", _named, MLFLOW),
    ("AzureMLCallback", _azure, [[name, value, {"description": name}] for name, value in NUMBERS.items()]),
    (
        "ClearMLCallback", _clear,
        [
            [["train_runtime", 9.0], ["train_loss", 1.25], ["total_flos", 7.0], ["epoch", 1.0]],
            [["train", "loss", 1.5, STEP], ["eval", "loss", 2.5, STEP], ["test", "f1", 0.5, STEP]],
        ],
    ),
    (
        "NeptuneCallback", _neptune,
        [
            [["train/epoch", 1.0]],
            ["train/loss", "eval/loss", "test/f1", "train/train_runtime", "train/train_loss", "train/total_flos"],
            [[value, {"step": STEP}] for value in (1.5, 2.5, 0.5, 9.0, 1.25, 7.0)], True, False, True, True,
        ],
    ),
    ("DVCLiveCallback", _live, [[[f"dvclive.huggingface {name}", value] for name, value in NUMBERS.items()], 1]),
    ("FlyteCallback", _flyte, [[f"checkpoint-{STEP}"], [], []]),
    ("KubeflowCallback", _progress, [[0, {"total_steps": 4}], [75, STEPS], [100, {"loss": 1.5}]]),
)  # fmt: skip
# Sources: the documentation of each callback.
TRACKER_ROWS: Sequence[Row] = (
    *(
        Row(
            "metrics",
            f"{OF}:{name}",
            "what is logged",
            partial(_logged, names, check, read),
            right,
            since="4.57",
        )
        for name, names, check, read, right in TRACKED
    ),
    *(
        Row("metrics", f"{OF}:{name}", "what it is given", call, right, since="4.57")
        for name, call, right in OTHERS
    ),
)
