"""Stand-ins for the clients of tracking services, which keep what a tracker gives them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Record:
    """What a client got."""

    values: list[tuple[str, Any, int | None]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    images: list[tuple[str, int, int | None]] = field(default_factory=list)
    tables: list[tuple[str, list[Any], list[Any], int | None]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    num_ends: int = 0

    def made(self, option: Any) -> None:
        """Keep an option that the client is made with."""
        if option is not None:
            self.options["made"] = option

    def value(self, name: str, value: Any, step: int | None, option: Any = None) -> None:
        """Keep a value, a group of values, images or a table by its type."""
        if option is not None:
            self.options["logged"] = option
        if isinstance(value, Mapping):
            for key, one in value.items():
                self.values.append((f"{name}/{key}", one, step))
        elif isinstance(value, list) and value and all(isinstance(one, _Image) for one in value):
            self.images.append((name, len(value), step))
        elif isinstance(value, _Image):
            self.images.append((name, 1, step))
        elif isinstance(value, _Table):
            self.tables.append((name, list(value.columns), list(value.data), step))
        else:
            self.values.append((name, value, step))

    def settle(self, values: Mapping[str, Any]) -> None:
        """Keep settings."""
        self.settings.update(values)

    def end(self) -> None:
        """Count an end."""
        self.num_ends += 1


class _Image:
    def __init__(self, image: Any, caption: str = "") -> None:
        self.image = image


class _Table:
    def __init__(self, columns: Any = None, data: Any = None, dataframe: Any = None) -> None:
        self.columns, self.data = columns, data


class _Settings:
    """The configuration of a run, as Weights & Biases, Trackio and SwanLab have it."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def __setitem__(self, name: str, value: Any) -> None:
        """Leave out what Accelerate adds of its own."""

    def update(self, values: Mapping[str, Any], allow_val_change: bool = False) -> None:
        """Keep settings."""
        self._record.settle(values)


class _Run:
    """A run of Weights & Biases, Trackio or SwanLab."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def log(self, data: Mapping[str, Any], step: int | None = None, option: Any = None) -> None:
        for name, value in data.items():
            self._record.value(name, value, step, option)

    def finish(self) -> None:
        self._record.end()


def _module(name: str, **members: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(members)
    return made


def _of_runs(name: str) -> Callable[[Record], list[types.ModuleType]]:
    def made(record: Record) -> list[types.ModuleType]:
        def init(project: str | None = None, option: Any = None, **more: Any) -> _Run:
            record.made(option)
            return _Run(record)

        return [
            _module(
                name,
                init=init,
                config=_Settings(record),
                log=_Run(record).log,
                finish=record.end,
                Image=_Image,
                Table=_Table,
            )
        ]

    return made


def _tensorboard(record: Record) -> list[types.ModuleType]:
    class SummaryWriter:
        def __init__(self, log_dir: str | None = None, option: Any = None) -> None:
            record.made(option)

        def add_scalar(
            self, tag: str, scalar_value: Any, global_step: int | None = None, option: Any = None
        ) -> None:
            record.value(tag, scalar_value, global_step, option)

        def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
            record.value(tag, text_string, global_step)

        def add_scalars(self, main_tag: str, tag_scalar_dict: Any, global_step: int | None = None) -> None:
            record.value(main_tag, tag_scalar_dict, global_step)

        def add_images(self, tag: str, img_tensor: Any, global_step: int | None = None) -> None:
            record.images.append((tag, len(img_tensor), global_step))

        def add_hparams(self, hparam_dict: Any, metric_dict: Any) -> None:
            record.settle(hparam_dict)

        def flush(self) -> None:
            pass

        def close(self) -> None:
            record.end()

    return [_module("torch.utils.tensorboard", SummaryWriter=SummaryWriter)]


def _comet(record: Record) -> list[types.ModuleType]:
    class Experiment:
        def __init__(self, project_name: str | None = None, option: Any = None) -> None:
            record.made(option)

        def set_step(self, step: int | None) -> None:
            self.step = step

        def log_metric(self, name: str, value: Any, step: int | None = None, option: Any = None) -> None:
            record.value(name, value, step, option)

        def log_other(self, key: str, value: Any) -> None:
            record.value(key, value, None)

        def log_metrics(self, dic: Mapping[str, Any], step: int | None = None) -> None:
            for name, value in dic.items():
                record.value(name, value, step)

        def log_parameters(self, parameters: Mapping[str, Any]) -> None:
            record.settle(parameters)

        def end(self) -> None:
            record.end()

    return [_module("comet_ml", __version__="3.50.0", start=Experiment, Experiment=Experiment)]


def _aim(record: Record) -> list[types.ModuleType]:
    class Run:
        def __init__(self, repo: Any = None, option: Any = None) -> None:
            record.made(option)

        def __setitem__(self, key: str, value: Any) -> None:
            record.settle(value)

        def track(
            self, value: Any, name: str | None = None, step: int | None = None, option: Any = None
        ) -> None:
            record.value(str(name), value, step, option)

        def close(self) -> None:
            record.end()

    return [_module("aim", Run=Run, Image=_Image)]


def _mlflow(record: Record) -> list[types.ModuleType]:
    def log_metrics(metrics: Mapping[str, Any], step: int | None = None, option: Any = None) -> None:
        for name, value in metrics.items():
            record.value(name, value, step, option)

    def log_params(params: Mapping[str, Any]) -> None:
        if len(params) > validation.MAX_PARAMS_TAGS_PER_BATCH:
            raise ValueError("too many parameters in one request")
        record.settle(params)

    def start_run(**options: Any) -> Any:
        record.made(options.get("description"))
        return types.SimpleNamespace(info=None)

    validation = _module("mlflow.utils.validation", MAX_PARAM_VAL_LENGTH=6000, MAX_PARAMS_TAGS_PER_BATCH=100)
    utils = _module("mlflow.utils", validation=validation)
    mlflow = _module(
        "mlflow",
        utils=utils,
        log_metrics=log_metrics,
        log_params=log_params,
        start_run=start_run,
        end_run=record.end,
        search_experiments=lambda **options: [],
        create_experiment=lambda **options: "1",
        set_experiment=lambda *given, **options: None,
    )
    return [mlflow, utils, validation]


def _clearml(record: Record) -> list[types.ModuleType]:
    def named(title: str, series: str) -> str:
        # A name without a prefix is of the series `train`, as Accelerate's documentation says.
        return title if series == "train" else f"{series}_{title}"

    class Logger:
        def report_scalar(
            self, title: str, series: str, value: Any, iteration: int, option: Any = None
        ) -> None:
            record.value(named(title, series), value, iteration, option)

        def report_single_value(self, name: str, value: Any) -> None:
            record.value(name, value, None)

        def report_image(
            self, title: str, series: str, iteration: int | None = None, image: Any = None
        ) -> None:
            record.images.append((named(title, series), len(image), iteration))

        def report_table(
            self, title: str, series: str, table_plot: Any = None, iteration: int | None = None, **more: Any
        ) -> None:
            record.tables.append((named(title, series), list(table_plot[0]), list(table_plot[1:]), iteration))

    class Task:
        @staticmethod
        def current_task() -> None:
            return None

        @staticmethod
        def init(project_name: str | None = None, task_name: str | None = None, option: Any = None) -> Task:
            record.made(option)
            return Task()

        def get_logger(self) -> Logger:
            return Logger()

        def connect_configuration(self, configuration: Mapping[str, Any]) -> None:
            record.settle(configuration)

        def close(self) -> None:
            record.end()

    return [_module("clearml", Task=Task)]


def _dvclive(record: Record) -> list[types.ModuleType]:
    class Live:
        def __init__(self, option: Any = None) -> None:
            record.made(option)
            self.step = 0

        def log_metric(self, name: str, val: Any, option: Any = None) -> None:
            record.value(name, val, self.step, option)

        def next_step(self) -> None:
            self.step += 1

        def log_params(self, params: Mapping[str, Any]) -> None:
            record.settle(params)

        def end(self) -> None:
            record.end()

    class Metric:
        @staticmethod
        def could_log(value: Any) -> bool:
            return isinstance(value, (int, float))

    plots = _module("dvclive.plots", Metric=Metric)
    return [_module("dvclive", Live=Live, plots=plots), plots]


CLIENTS: Mapping[str, Callable[[Record], list[types.ModuleType]]] = {
    "tensorboard": _tensorboard,
    "wandb": _of_runs("wandb"),
    "trackio": _of_runs("trackio"),
    "swanlab": _of_runs("swanlab"),
    "comet_ml": _comet,
    "aim": _aim,
    "mlflow": _mlflow,
    "clearml": _clearml,
    "dvclive": _dvclive,
}
"""By Accelerate's name of the tracker."""


@contextmanager
def stand_in(name: str) -> Iterator[Record]:
    """Put a client in the place of the installed one for a block, and give what it gets."""
    record = Record()
    modules = CLIENTS[name](record)
    kept = {module.__name__: sys.modules.get(module.__name__) for module in modules}
    sys.modules.update({module.__name__: module for module in modules})
    try:
        yield record
    finally:
        for key, module in kept.items():
            sys.modules.pop(key)
            if module is not None:
                sys.modules[key] = module
