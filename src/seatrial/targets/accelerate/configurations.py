"""Accelerate's classes of options: those of plugins, of precision and of projects."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from seatrial.relations.contracts.configurations import OptionClass
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.option_classes import classes_of, fields_of, option_class
from seatrial.targets.common.target import find_name

ALLOWED: Mapping[str, Mapping[str, str]] = {
    "kept": {
        "DeepSpeedPlugin.zero3_init_flag": "it is turned off below stage 3, which the default is",
        "FullyShardedDataParallelPlugin.auto_wrap_policy": "the name becomes the function",
    }
}
"""Options that a law leaves out, by `Class.option`."""


def _alone(found: type[Any]) -> Callable[..., Any]:
    """Return what makes an object of a class and leaves the variables of the environment, which plugins set."""

    def made(**options: Any) -> Any:
        before = dict(os.environ)
        try:
            return found(**options)
        finally:
            os.environ.clear()
            os.environ.update(before)

    return made


class Configurations(KnowsFailures):
    """Classes of options of the release."""

    thorough = True

    @cached_property
    def option_classes(self) -> Sequence[OptionClass]:
        utils = find_name("accelerate", ["accelerate:utils"])
        found = classes_of(
            [utils], lambda one: dataclasses.is_dataclass(one) and one.__module__.startswith("accelerate")
        )
        made = [option_class(one, options=fields_of, make=_alone(one)) for one in found]
        return [one for one in made if one is not None]

    def options_allowed(self, law: str) -> Mapping[str, str]:
        return ALLOWED.get(law, {})


ADAPTERS: dict[str, type[Any]] = {"configurations": Configurations}
