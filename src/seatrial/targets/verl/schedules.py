"""verl's schedules of the learning rate, and how its engine makes them from the configuration of an optimizer."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from seatrial.relations.contracts.schedules import SchedulePlan
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name, release
from seatrial.targets.verl.engines import implementation_of_engine

FUNCTIONAL = "verl.utils.torch_functional"
OPTIONS: Mapping[str, Sequence[str]] = {
    "constant_with_warmup": (),
    "cosine": ("num_cycles",),
    "cosine_with_min_lr": ("num_cycles", "min_lr", "min_lr_rate"),
    "cosine_with_init_lr": ("num_cycles", "min_lr_ratio", "init_lr_ratio", "zero_indexed_step"),
    "warmup_stable_decay": ("num_cycles", "min_lr_ratio", "num_decay_steps"),
}
"""What verl's form of each schedule takes, by the names of `oracles.schedules`."""
OF_COSINE = frozenset({"init_lr_ratio", "zero_indexed_step"})
"""Options of the cosine that later releases have."""


class VerlSchedules(KnowsFailures):
    """`get_constant_schedule_with_warmup`, `get_cosine_schedule_with_warmup`, `get_wsd_schedule_with_warmup`."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "the first step of a constant schedule without a warm-up has a rate of 0",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.4"),
        ).of("R24.schedules/without a warm-up"),
    )
    schedule_names: Sequence[str] = tuple(OPTIONS)

    def __init__(self) -> None:
        """Find the functions; releases before 0.4 have no schedule that is stable and then decays."""
        names = ("get_constant_schedule_with_warmup", "get_cosine_schedule_with_warmup")
        self.constant, self.cosine = (find_name("verl", [f"{FUNCTIONAL}:{name}"]) for name in names)
        module = find_name("verl", ["verl.utils:torch_functional"])
        self.stable: Any = getattr(module, "get_wsd_schedule_with_warmup", None)
        self.own = OF_COSINE & set(inspect.signature(self.cosine).parameters)
        # Before 0.6 the warm-up begins at the lowest rate, and not at 0.
        self.begins_at_0 = "init_lr_ratio" in self.own
        if self.stable is None:
            self.schedule_names = [name for name in OPTIONS if name != "warmup_stable_decay"]

    def scheduled_rates(self, plan: SchedulePlan) -> Sequence[float]:
        unknown = sorted(set(plan.options) - set(OPTIONS[plan.name]))
        if unknown:
            raise NotServed(f"the schedule has no {', '.join(unknown)}")
        if "zero_indexed_step" in plan.options and "zero_indexed_step" not in self.own:
            raise NotServed(f"the cosine of verl {release('verl')} counts steps from 0 alone")
        if plan.warmup and lowest(plan) != plan.options.get("init_lr_ratio", 0.0) and not self.begins_at_0:
            raise NotServed("the warm-up of this release begins at the lowest rate, as its code says")
        if 0 < plan.warmup < 1:
            raise NotServed("a warm-up of a share of the steps is rounded down, as the code says")
        state: Mapping[str, Any] | None = None
        rates: list[float] = []
        for end in sorted({plan.ends_after or plan.num_steps, plan.num_steps}):
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=plan.peak)
            schedule = self.schedule(optimizer, plan)
            if state is not None:
                optimizer.load_state_dict(state["optimizer"])
                schedule.load_state_dict(state["schedule"])
            while len(rates) < end:
                rates.append(float(optimizer.param_groups[0]["lr"]))
                optimizer.step()
                schedule.step()
            state = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        return rates

    def schedule(self, optimizer: Any, plan: SchedulePlan) -> Any:
        """Return the schedule of a plan."""
        warmup, options = int(plan.warmup), dict(plan.options)
        if plan.name == "constant_with_warmup":
            return self.constant(optimizer, num_warmup_steps=warmup)
        given = {"num_cycles": options["num_cycles"]} if "num_cycles" in options else {}
        if plan.name == "warmup_stable_decay":
            rest = plan.num_steps - warmup
            # The number of stable steps is the rounded-down product.
            given["stable_ratio"] = (rest - int(options["num_decay_steps"]) + 1e-6) / rest
            given["min_lr_ratio"] = options.get("min_lr_ratio", 0.0)
            make = self.stable
        else:
            given["min_lr_ratio"] = lowest(plan)
            given |= {name: options[name] for name in self.own & set(options)}
            make = self.cosine
        return make(optimizer, num_warmup_steps=warmup, num_training_steps=plan.num_steps, **given)


def lowest(plan: SchedulePlan) -> float:
    """Return the lowest rate of a plan as a share of its peak."""
    if "min_lr" in plan.options:
        return float(plan.options["min_lr"]) / plan.peak
    return float(plan.options.get("min_lr_rate", plan.options.get("min_lr_ratio", 0.0)))


class VerlEngineSchedules(VerlSchedules):
    """The same as the engine makes them from the options of its optimizer."""

    types: ClassVar[Mapping[str, str]] = {
        "constant_with_warmup": "constant",
        "cosine": "cosine",
        "cosine_with_min_lr": "cosine",
        "cosine_with_init_lr": "cosine",
    }
    schedule_names: Sequence[str] = tuple(types)

    def __init__(self) -> None:
        """Find the engine and the configuration of its optimizer."""
        self.engine_class = implementation_of_engine().FSDPEngine
        self.begins_at_0 = True
        self.config_class = find_name("verl", ["verl.workers.config:FSDPOptimizerConfig"])
        self.own = OF_COSINE & {one.name for one in dataclasses.fields(self.config_class)}

    def schedule(self, optimizer: Any, plan: SchedulePlan) -> Any:
        if plan.options.get("init_lr_ratio") and "init_lr_ratio" not in self.own:
            raise NotServed("the engine's warm-up begins at 0")
        options = {name: plan.options[name] for name in {"num_cycles", *self.own} & set(plan.options)}
        configured = self.config_class(
            lr=plan.peak,
            lr_warmup_steps=int(plan.warmup),
            lr_scheduler_type=self.types[plan.name],
            total_training_steps=plan.num_steps,
            min_lr_ratio=lowest(plan),
            **options,
        )
        return self.engine_class._build_lr_scheduler(
            SimpleNamespace(optimizer_config=configured, rank=1), optimizer
        )


ADAPTERS: dict[str, type[Any]] = {"schedules": VerlSchedules, "schedules-of-engine": VerlEngineSchedules}
