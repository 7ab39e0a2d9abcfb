"""Worked examples of saved state, variables of the environment, layouts and trackers."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seatrial.targets.accelerate.ranked import new_accelerator
from seatrial.targets.accelerate.worked.placed import inputs, net
from seatrial.targets.common.worked_rows import Row, unlike

ENVIRONMENT = "accelerate.utils.environment"


PARALLELISM = "accelerate.parallelism_config:ParallelismConfig"


def _saved_names(accelerator_class: Any) -> list[Any]:
    """Return folders that are left of twelve, and the weight that is loaded from the last one and from one by name."""
    from accelerate.utils import ProjectConfiguration

    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        project = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True, total_limit=3)
        accelerator = new_accelerator(project_config=project)
        model = accelerator.prepare(nn.Linear(1, 1, bias=False))
        for number in range(12):
            model.weight.data.fill_(number)
            accelerator.save_state()
        left = sorted(
            (path.name for path in (Path(folder) / "checkpoints").iterdir()), key=lambda name: int(name[11:])
        )
        loaded = []
        for name in (None, "checkpoint_10"):
            model.weight.data.fill_(-1)
            accelerator.load_state(name and str(Path(folder) / "checkpoints" / name))
            loaded.append(float(model.weight))
        again = ProjectConfiguration(
            project_dir=folder, automatic_checkpoint_naming=True, iteration=12, total_limit=None
        )
        accelerator = new_accelerator(project_config=again)
        accelerator.prepare(nn.Linear(1, 1, bias=False))
        accelerator.save_state()
        return [left, loaded, len(list((Path(folder) / "checkpoints").iterdir())), accelerator.save_iteration]


def _save_hooks(accelerator_class: Any) -> list[Any]:
    """Return what hooks before a save and a load see and change."""
    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        accelerator = new_accelerator()
        model, other = accelerator.prepare(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
        seen: list[Any] = []

        def before_save(models: Any, weights: Any, place: str) -> None:
            seen.append(["save", len(models), len(weights), models[0] is model])
            weights.pop()

        def before_load(models: Any, place: str) -> None:
            seen.append(["load", len(models), models[1] is other])
            models.pop()

        model.weight.data.fill_(2)
        handles = [
            accelerator.register_save_state_pre_hook(before_save),
            accelerator.register_load_state_pre_hook(before_load),
        ]
        accelerator.save_state(folder)
        files = sorted(path.name for path in Path(folder).glob("model*"))
        model.weight.data.fill_(3)
        other.weight.data.fill_(4)
        accelerator.load_state(folder)
        weights = [float(model.weight), float(other.weight)]
        for handle in handles:
            handle.remove()
        accelerator.save_state(folder)
        accelerator.load_state(folder)
        return [seen, files, weights, len(list(Path(folder).glob("model*")))]


class _Counter:
    def __init__(self, number: int) -> None:
        self.number = number

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.number = state["number"]


def _registered(accelerator_class: Any) -> list[Any]:
    """Return values of objects that are saved in their order, and what is refused."""
    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        accelerator, refused = new_accelerator(), []
        counters = [_Counter(number) for number in range(12)]
        accelerator.register_for_checkpointing(*counters)
        accelerator.save_state(folder)
        for counter in counters:
            counter.number = -1
        accelerator.load_state(folder)
        attempts: Sequence[Callable[[], Any]] = (
            lambda: accelerator.register_for_checkpointing(object()),
            lambda: new_accelerator().load_state(folder),
        )
        for attempt in attempts:
            try:
                attempt()
            except (ValueError, RuntimeError):
                refused.append(True)
            else:
                refused.append(False)
        return [[counter.number for counter in counters], refused]


def _state_of_run(accelerator_class: Any) -> list[str]:
    """Return what is another after a load: random numbers, accumulated micro-batches, momenta, rates."""
    import numpy as np

    def made() -> tuple[Any, Any, Any, Any]:
        accelerator = new_accelerator(gradient_accumulation_steps=3)
        own = net()
        groups: Any = [{"params": own.first.parameters(), "lr": 0.1}, {"params": own.norm.parameters()}]
        optimizer = torch.optim.Adam(groups)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.2, 0.4], total_steps=20)
        return (accelerator, *accelerator.prepare(own, optimizer, schedule))

    def steps(parts: tuple[Any, Any, Any, Any], number: int) -> list[float]:
        accelerator, model, optimizer, schedule = parts
        found = []
        for _ in range(number):
            with accelerator.accumulate(model):
                accelerator.backward(model(inputs() + torch.rand(3, 1)).pow(2).sum() * random.random())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            found += [float(accelerator.sync_gradients), *schedule.get_last_lr(), float(np.random.rand())]
        return found + [float(value.sum()) for value in model.parameters()]

    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        torch.manual_seed(0)
        first = made()
        steps(first, 6)
        first[0].save_state(folder)
        due = steps(first, 7)
        other = made()
        steps(other, 3)
        other[0].load_state(folder)
        return unlike(steps(other, 7), due)


def _handled(handler_class: Any) -> list[str]:
    """Return options of torch that are not what a class says: only those that differ from its defaults."""
    import dataclasses

    from accelerate import utils

    wrong = []
    for name in ("DistributedDataParallelKwargs", "GradScalerKwargs", "AutocastKwargs", "ProfileKwargs"):
        made = getattr(utils, name, None)
        if made is None:
            continue
        for field in dataclasses.fields(made):
            if isinstance(field.default, bool):
                value: Any = not field.default
            elif isinstance(field.default, int | float):
                value = field.default * 2 + 1
            else:
                continue
            found = made(**{field.name: value}).to_kwargs()
            if found != {field.name: value}:
                wrong.append(f"{name}({field.name}={value}): {found}")
        if made().to_kwargs():
            wrong.append(f"{name}(): {made().to_kwargs()}")
    return wrong


def _environment(flag: Callable[..., Any]) -> list[Any]:
    from accelerate.utils import environment

    os.environ |= {"ST_YES": "yes", "ST_0": "0", "ST_NUMBER": "7", "ST_MINUS": "-1", "ST_TEXT": "bf16"}
    return [
        flag("ST_YES"), flag("ST_0", default=True), flag("ST_NONE"), flag("ST_NONE", default=True),
        environment.get_int_from_env(["ST_NONE", "ST_NUMBER", "ST_0"], 3),
        environment.get_int_from_env(["ST_MINUS", "ST_0"], 3), environment.get_int_from_env(["ST_NONE"], 3),
        environment.parse_choice_from_env("ST_TEXT"), environment.parse_choice_from_env("ST_NONE"),
        environment.parse_choice_from_env("ST_NONE", "fp16"),
    ]  # fmt: skip


def _patched(patch: Callable[..., Any]) -> list[Any]:
    """Return variables within blocks, after them, and after an error."""
    from accelerate.utils import clear_environment

    os.environ["ST_KEPT"] = "before"
    os.environ.pop("ST_NEW", None)
    found: list[Any] = []
    with patch(st_kept="1", ST_NEW=2):
        with patch(ST_NEW="3"):
            found.append([os.environ["ST_KEPT"], os.environ["ST_NEW"]])
        found.append([os.environ["ST_KEPT"], os.environ["ST_NEW"]])
    found.append([os.environ["ST_KEPT"], "ST_NEW" in os.environ])
    try:
        with patch(ST_KEPT="error"):
            raise KeyError
    except KeyError:
        found.append(os.environ["ST_KEPT"])
    with clear_environment():
        found.append("ST_KEPT" in os.environ)
        os.environ["ST_WITHIN"] = "1"
    found.append([os.environ["ST_KEPT"], "ST_WITHIN" in os.environ])
    return found


def _purged(purge: Callable[..., Any]) -> list[Any]:
    @purge
    def sets(fails: bool) -> str:
        os.environ["ACCELERATE_ST"] = "1"
        os.environ["ST_OTHER"] = "1"
        os.environ["ACCELERATE_KEPT"] = "changed"
        if fails:
            raise KeyError
        return "found"

    os.environ["ACCELERATE_KEPT"] = "kept"
    os.environ.pop("ACCELERATE_ST", None)
    found: list[Any] = [sets(False), "ACCELERATE_ST" in os.environ]
    try:
        sets(True)
    except KeyError:
        found.append("ACCELERATE_ST" in os.environ)
    return [*found, os.environ["ST_OTHER"]]


def _parallel(config: Any) -> list[Any]:
    """Return sizes and names of dimensions of two layouts."""
    found = []
    for sizes in (
        {"dp_replicate_size": 2, "dp_shard_size": 3, "tp_size": 4},
        {"dp_shard_size": 2, "cp_size": 3},
        {},
    ):
        made = config(**sizes)
        found.append([
            made.total_size, made.data_parallel_size, made.non_data_parallel_size, made.dp_dim_names,
            made.non_dp_dim_names, made.dp_shard_cp_dim_names, made.dp_cp_dim_names, made.fsdp_dim_names,
            [list(one) for one in made._get_mesh()],
        ])  # fmt: skip
    return found


def _refused_layouts(config: Any) -> list[bool]:
    found = []
    for sizes in (
        {"tp_size": 0}, {"dp_shard_size": -1}, {"dp_replicate_size": 2, "tp_size": 2}, {"dp_replicate_size": 2},
        {"cp_size": 2, "cp_backend": "other"},
    ):  # fmt: skip
        try:
            config(**sizes)
        except ValueError:
            found.append(True)
        else:
            found.append(False)
    return found


def _trackers(filter_trackers: Callable[..., Any]) -> list[Any]:
    """Return which trackers are taken, and what a tracker of the caller gets."""
    from accelerate.tracking import GeneralTracker

    got: list[Any] = []

    class Own(GeneralTracker):  # type: ignore[misc]
        name = "own"
        requires_logging_directory = False

        @property
        def tracker(self) -> Any:
            return got

        def store_init_configuration(self, values: Any) -> None:
            got.append(["settings", dict(values)])

        def log(self, values: Any, step: Any = None, **more: Any) -> None:
            got.append([dict(values), step, more])

        def finish(self) -> None:
            got.append("end")

    own = Own()
    accelerator = new_accelerator(log_with=own)
    accelerator.init_trackers("project", config={"rate": 0.5})
    accelerator.log({"loss": 1.5}, step=0)
    accelerator.log({"loss": 2.5}, step=3, log_kwargs={"own": {"more": 1}, "other": {"less": 2}})
    same = accelerator.get_tracker("own") is own, accelerator.get_tracker("own", unwrap=True) is got
    accelerator.end_training()
    return [got, list(same), filter_trackers(own) == [own]]


ACCELERATOR = "accelerate:Accelerator"
STATE_ROWS: Sequence[Row] = (
    Row(
        "states",
        ACCELERATOR,
        "folders that are named and limited",
        _saved_names,
        [["checkpoint_9", "checkpoint_10", "checkpoint_11"], [11.0, 10.0], 4, 13],
    ),
    Row(
        "states",
        ACCELERATOR,
        "hooks",
        _save_hooks,
        [[["save", 2, 2, True], ["load", 2, True]], ["model.safetensors"], [2.0, 4.0], 2],
    ),
    Row("states", ACCELERATOR, "objects of the caller", _registered, [list(range(12)), [True, True]]),
    Row("states", ACCELERATOR, "a run within an update", _state_of_run, [], since="1.3"),
    Row("options", "accelerate.utils:KwargsHandler", "options that differ", _handled, []),
    Row(
        "options",
        f"{ENVIRONMENT}:parse_flag_from_env",
        "variables",
        _environment,
        [True, False, False, True, 7, 0, 3, "bf16", "no", "fp16"],
    ),
    Row(
        "options",
        f"{ENVIRONMENT}:patch_environment",
        "blocks in blocks, an error",
        _patched,
        [["1", "3"], ["1", "2"], ["before", False], "before", False, ["before", False]],
    ),
    Row(
        "options",
        f"{ENVIRONMENT}:purge_accelerate_environment",
        "a function, an error",
        _purged,
        ["found", False, False, "1"],
    ),
    Row(
        "options",
        PARALLELISM,
        "sizes and names",
        _parallel,
        [
            [
                24,
                6,
                4,
                ["dp_replicate", "dp_shard"],
                ["tp"],
                ["dp_shard"],
                ["dp_replicate", "dp_shard"],
                ["dp_replicate", "dp_shard_cp"],
                [["dp_replicate", "dp_shard", "tp"], [2, 3, 4]],
            ],
            [
                6,
                2,
                3,
                ["dp_shard"],
                ["cp"],
                ["dp_shard", "cp"],
                ["dp_shard", "cp"],
                ["dp_shard_cp"],
                [["dp_shard", "cp"], [2, 3]],
            ],
            [1, 1, 1, [], [], [], [], ["dp_shard_cp"], []],
        ],
    ),
    Row(
        "options", PARALLELISM, "layouts that are refused", _refused_layouts, [True, True, True, False, True]
    ),
    Row(
        "metrics",
        "accelerate.tracking:filter_trackers",
        "a tracker of the caller",
        _trackers,
        [
            [["settings", {"rate": 0.5}], [{"loss": 1.5}, 0, {}], [{"loss": 2.5}, 3, {"more": 1}], "end"],
            [True, True],
            True,
        ],
    ),
)
