"""verl's classes of options: those of workers, algorithms and trainers."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from seatrial.relations.contracts.configurations import OptionClass
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.option_classes import classes_of, fields_of, option_class
from seatrial.targets.common.target import find_name

MODULES = ("verl.workers.config", "verl.trainer.config", "verl.trainer.config.config")
ALLOWED: Mapping[str, Mapping[str, str]] = {
    "kept": dict.fromkeys(
        ("McoreEngineConfig.sequence_parallel", "MindSpeedEngineConfig.sequence_parallel"),
        "needs several tensor-parallel ranks, and is off with one",
    )
}
"""Options that a law leaves out, by `Class.option`, with the reason."""


def _modules() -> list[Any]:
    found = []
    for name in MODULES:
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or " "):
                raise
    return found


def _options(value: Any) -> dict[str, Any]:
    """Return the options that are no objects of options themselves, which are classes of their own."""
    return {
        name: one
        for name, one in fields_of(value).items()
        if name != "_target_" and not dataclasses.is_dataclass(one)
    }


def _needed(found: type[Any]) -> dict[str, Any]:
    """Return a text for each option that has to be given."""
    return {one.name: "made" for one in dataclasses.fields(found) if one.default == "???"}


class Configurations(KnowsFailures):
    """Classes of options of the release; a reload is the way of its YAML files to objects."""

    thorough = True

    def __init__(self) -> None:
        """Find the function that makes objects of files."""
        self.read = find_name("verl", ["verl.utils.config:omega_conf_to_dataclass"])
        find_name("verl", ["verl.workers.config:ActorConfig"])

    def reload(self, value: Any) -> Any:
        """Return the object that the function makes of a file with these options."""
        from omegaconf import OmegaConf

        place = f"{type(value).__module__}.{type(value).__qualname__}"
        return self.read(OmegaConf.create({**_options(value), "_target_": place}))

    @cached_property
    def option_classes(self) -> Sequence[OptionClass]:
        found = classes_of(
            _modules(), lambda one: dataclasses.is_dataclass(one) and one.__module__.startswith("verl")
        )
        made = [option_class(one, options=_options, reload=self.reload, **_needed(one)) for one in found]
        return [one for one in made if one is not None]

    def options_allowed(self, law: str) -> Mapping[str, str]:
        return ALLOWED.get(law, {})


ADAPTERS: dict[str, type[Any]] = {"configurations": Configurations}
