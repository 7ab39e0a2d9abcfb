"""verl's tools of a trainer: trackers, contents of checkpoints, schedules of rollouts, options and tools."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy
import torch
from torch.utils.data import RandomSampler

from seatrial.relations.laws.utilities.trainer_tools import PARTS
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.stand_ins import StandIn
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.verl.adapted import Adapted, found_without
from seatrial.targets.verl.estimators import UNUSED

CHECKPOINTS = "verl.utils.checkpoint.checkpoint_manager"
SCHEDULE = "verl.experimental.fully_async_policy.dynamic_schedule"
ENDS = {
    "first": "MLP_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
    "second": "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP",
}
"""Variables that say when a machine ends."""


class VerlTrainerTools(Adapted):
    """Functions and classes around the steps of a trainer."""

    def __init__(self) -> None:
        """Find those that the installed release has."""
        super().__init__(ADAPTED, _found)


def _found(place: str) -> Any:
    return found_without(place, ("verl.trainer", "verl.experimental"), (*UNUSED, "openai", "qwen_vl_utils"))


def _tracked(tracking_class: Any) -> Callable[..., Any]:
    if "file" not in tracking_class.supported_backend:
        raise Gone(f"verl {release('verl')} logs to no file")

    def tracked(
        project: str, experiment: str, steps: Sequence[tuple[int, Mapping[str, Any]]]
    ) -> dict[str, Any]:
        root, shown = Path(new_folder()), io.StringIO()
        with (
            mock.patch.dict(os.environ, {"VERL_FILE_LOGGER_ROOT": str(root)}),
            contextlib.redirect_stdout(shown),
        ):
            os.environ.pop("VERL_FILE_LOGGER_PATH", None)
            try:
                tracking = tracking_class(project, experiment, ["console", "file"])
            except ModuleNotFoundError as missing:
                raise NotServed(f"the file of a run needs {missing.name}") from missing
            for step, own in steps:
                tracking.log(dict(own), step)
            del tracking
        (file,) = (path for path in root.rglob("*") if path.is_file())
        return {
            "file": file.relative_to(root).as_posix(),
            "records": [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()],
            "console": [line for line in shown.getvalue().splitlines() if line.startswith("step:")],
        }

    return tracked


def _contents(manager_class: Any) -> Callable[..., Any]:
    names = [f"should_{action}_{part}" for action in ("save", "load") for part in PARTS]
    if not all(hasattr(manager_class, name) for name in names):
        raise Gone(f"checkpoints of verl {release('verl')} have not all of {names}")

    def contents(options: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
        config = None if options is None else {name: list(parts) for name, parts in options.items()}
        distributed = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: 1)
        with mock.patch.object(torch, "distributed", distributed):
            manager = manager_class(None, None, checkpoint_config=config)
        return {
            action: [part for part in PARTS if getattr(manager, f"should_{action}_{part}")]
            for action in ("save", "load")
        }

    return contents


def _saved_before_the_end(decide: Any) -> Callable[..., Any]:
    def saved(owner: str, left: float, step: float, save: float, spare: float) -> bool:
        given = dict.fromkeys(ENDS.values(), "")
        if owner in ENDS:
            given[ENDS[owner]] = str(int(time.time() + left))
        with mock.patch.dict(os.environ, given):
            return bool(decide(step, save, spare))

    return saved


def _decisions(build: Any, context_class: Any) -> Callable[..., Any]:
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(f"{SCHEDULE}.fixed_ratio_policy")  # which registers it

    def decisions(policy: str, ratio: float, only: bool, cycles: Sequence[Mapping[str, Any]]) -> list[Any]:
        with contextlib.redirect_stdout(io.StringIO()):
            made, found = build(policy, deactivate_ratio=ratio, only_hybrid=only), []
            for step, one in enumerate(cycles, 1):
                context = context_class(
                    required_samples=one["samples"],
                    trigger_parameter_sync_step=one["collections"],
                    total_generated_samples=one["generated"],
                    expected_samples=one["expected"],
                    buffer_samples=0,
                    step_wait_times=list(one["times"]),
                    step_wait_samples=list(one["waited"]),
                    only_hybrid=only,
                    last_activate_duration_s=0.25 * one["change"],
                    last_deactivate_duration_s=0.75 * one["change"],
                )
                own = [
                    made.should_deactivate(step, True, context),
                    made.deactivate_wait_samples(context),
                    made.should_activate_after_step(step, False, context),
                ]
                made.update_after_step(step, context)
                found.append([*own, float(made.deactivate_ratio)])
        return found

    return decisions


def _namespaces(namespace_class: Any) -> Callable[..., Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, namespace_class):
            return {name: plain(one) for name, one in vars(value).items()}
        return "a dictionary" if isinstance(value, dict) else value

    return lambda values: plain(namespace_class(values))


def _regular(convert: Any) -> Callable[..., Any]:
    def regular(values: Mapping[str, Any]) -> Any:
        from omegaconf import OmegaConf

        return convert(OmegaConf.create(dict(values)))

    return regular


def _overridden(update: Any) -> Callable[..., Any]:
    def spaces(values: Mapping[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(
            **{name: spaces(one) if isinstance(one, Mapping) else one for name, one in values.items()}
        )

    def plain(value: Any) -> Any:
        if isinstance(value, SimpleNamespace):
            return {name: plain(one) for name, one in vars(value).items()}
        return value

    def overridden(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Any:
        config = spaces(values)
        update(config, changes)
        return plain(config)

    return overridden


def _tool(decorate: Any, look: Any) -> Callable[..., Any]:
    registry = importlib.import_module("verl.tools.function_tool").FUNCTION_TOOL_REGISTRY

    def tool(name: str | None) -> dict[str, Any]:
        def look_up(city: str, days: int = 3) -> str:
            """Look up the weather.

            Args:
                city: Where.
                days: How many days.
            """
            return f"{city} {days}"

        with mock.patch.dict(registry, clear=True):
            if name is None:
                decorate(look_up)
            else:
                decorate(name)(look_up)
            found = look(name or "look_up")
            called = asyncio.run(found.call({"city": "Zürich"}))
        schema = found.tool_schema.function
        return {
            "name": schema.name,
            "description": schema.description,
            "parameters": {
                own: {"type": one.type, "description": one.description}
                for own, one in schema.parameters.properties.items()
            },
            "required": list(schema.parameters.required),
            "called": called,
        }

    return tool


STATEFUL = ("torchdata", "torchdata.stateful_dataloader", "torchdata.stateful_dataloader.sampler")


def _order(create: Any) -> Callable[..., Any]:
    # The sampler of torchdata is torch's with a state that can be saved, which nothing here does.
    missing = STATEFUL if PathFinder.find_spec("torchdata") is None else ()
    stand_ins = {name: StandIn(name, {"RandomSampler": RandomSampler}) for name in missing}

    def order(number: int, shuffled: bool, seed: int | None) -> dict[str, Any]:
        from omegaconf import OmegaConf

        def rows(own: int | None) -> list[int]:
            config = OmegaConf.create({"shuffle": shuffled, "seed": own})
            with mock.patch.dict(sys.modules, stand_ins):
                return list(create(config, range(number)))

        found = rows(seed)
        return {
            "rows": sorted(found),
            "in order": found == sorted(found),
            "again": found == rows(seed) if not shuffled or seed is not None else None,
            "of another seed": found in (rows(seed + 1), rows(None)) if seed is not None else None,
        }

    return order


COPIES = 1000
"""Of each row that is resampled."""


def _resampled(resample: Any, proto: Any) -> Callable[..., Any]:
    def resampled(scores: Sequence[float], method: str, power: float) -> tuple[bool, dict[str, float]]:
        number = len(scores) * COPIES
        own = torch.tensor(list(scores) * COPIES)
        # A row's score is the sum of its tokens'.
        tokens = torch.stack([own - 1, torch.ones(number)], dim=1)
        names = numpy.empty(number, dtype=object)
        names[:] = range(number)
        batch = proto.from_dict(
            tensors={"token_level_scores": tokens, "ids": torch.arange(number)}, non_tensors={"names": names}
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            found = resample(batch, method, power)
        places = found.batch["ids"]
        whole = torch.equal(found.batch["token_level_scores"], tokens[places])
        whole = whole and list(found.non_tensor_batch["names"]) == places.tolist() and len(places) == number
        drawn = own[places].tolist()
        return whole, {str(score): drawn.count(score) / number for score in scores}

    return resampled


def _waits(bucket_class: Any) -> Callable[..., Any]:
    module = importlib.import_module(bucket_class.__module__)

    def waits(rate: float, most: float | None, requests: Sequence[tuple[float, float]]) -> list[float]:
        clock = SimpleNamespace(now=0.0)

        async def sleep(seconds: float) -> None:
            clock.now += seconds

        loop = SimpleNamespace(time=lambda: clock.now)
        stand_in = SimpleNamespace(sleep=sleep, Lock=asyncio.Lock, get_running_loop=lambda: loop)
        found = []

        async def ask() -> None:
            bucket = bucket_class(rate, most)
            for moment, tokens in requests:
                clock.now = max(clock.now, moment)
                await asyncio.wait_for(bucket.acquire(tokens), timeout=30)
                found.append(clock.now)

        with (
            mock.patch.object(module, "asyncio", stand_in),
            mock.patch.object(module, "get_event_loop", lambda: loop, create=True),
        ):
            asyncio.run(ask())
        return found

    return waits


FUNCTIONAL = "verl.utils.py_functional"
ADAPTED: Mapping[str, tuple[Sequence[str], Callable[..., Callable[..., Any]]]] = {
    "tracked": (["verl.utils.tracking:Tracking"], _tracked),
    "contents of checkpoints": ([f"{CHECKPOINTS}:BaseCheckpointManager"], _contents),
    "saved before the end": ([f"{CHECKPOINTS}:should_save_ckpt_esi"], _saved_before_the_end),
    "decisions of a schedule": (
        [f"{SCHEDULE}:build_policy", f"{SCHEDULE}:DynamicScheduleContext"],
        _decisions,
    ),
    "renamed": ([f"{FUNCTIONAL}:rename_dict"], lambda rename: lambda values, prefix: rename(values, prefix)),
    "united": (
        [f"{FUNCTIONAL}:union_two_dict"],
        lambda unite: lambda one, other: unite(dict(one), dict(other)),
    ),
    "namespaces": ([f"{FUNCTIONAL}:NestedNamespace"], _namespaces),
    "regular values": ([f"{FUNCTIONAL}:convert_to_regular_types"], _regular),
    "overridden": (["verl.utils.model:update_model_config"], _overridden),
    "tool of a function": (
        ["verl.tools.function_tool:function_tool", "verl.tools.function_tool:get_function_tool"],
        _tool,
    ),
    "results as text": (
        ["verl.experimental.agent_loop.utils:build_gpt_oss_tool_response_text"],
        lambda build: lambda results, names: build([{"content": one} for one in results], list(names)),
    ),
    "resampled rows": (
        ["verl.trainer.ppo.core_algos:compute_pf_ppo_reweight_data", "verl.protocol:DataProto"],
        _resampled,
    ),
    "order of rows": (["verl.trainer.ppo.utils:create_rl_sampler"], _order),
    "differences of tokens": (
        ["verl.utils.debug.metrics:calculate_token_list_diff"],
        lambda count: lambda one, other, mask: count(one, other, mask),
    ),
    "waits of requests": (
        ["verl.experimental.reward_loop.reward_manager.limited:AsyncTokenBucket"],
        _waits,
    ),
}
"""By the name of the contract: functions of the release, and what fits them to it."""

ADAPTERS: dict[str, type[Any]] = {"trainer-tools": VerlTrainerTools}
