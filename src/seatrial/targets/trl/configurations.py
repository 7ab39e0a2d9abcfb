"""TRL's classes of options: those of every trainer, of models and of scripts."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from seatrial.relations.contracts.configurations import OptionClass
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.option_classes import classes_of, fields_of, option_class
from seatrial.targets.common.trainers import temporary_folder

OLDER = ("OnlineDPOConfig.max_length", "RLOOConfig.token_level_kl")
"""Options that early releases document with another default."""


def _modules() -> list[Any]:
    import trl

    found: list[Any] = [trl]
    try:
        experimental = importlib.import_module("trl.experimental")
    except ImportError:  # the release has none
        return found
    for module in pkgutil.iter_modules(experimental.__path__):
        try:
            found.append(importlib.import_module(f"trl.experimental.{module.name}"))
        except (ImportError, RuntimeError):  # it needs another package
            continue
    return found


def _own(value: Any) -> dict[str, Any]:
    """Return the options that Transformers' own class of options does not have."""
    import transformers

    theirs = {one.name for one in dataclasses.fields(transformers.TrainingArguments)}
    return {name: one for name, one in fields_of(value).items() if name not in theirs}


class Configurations(KnowsFailures):
    """Classes of options of the release, those of experimental trainers too."""

    thorough = True

    @cached_property
    def option_classes(self) -> Sequence[OptionClass]:
        import transformers

        arguments: dict[str, Any] = {
            "output_dir": str(temporary_folder()),
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
        }
        made = [
            option_class(
                found,
                options=_own,
                **(arguments if issubclass(found, transformers.TrainingArguments) else {}),
            )
            for found in classes_of(
                _modules(), lambda one: dataclasses.is_dataclass(one) and one.__module__.startswith("trl")
            )
        ]
        return [one for one in made if one is not None]

    def options_allowed(self, law: str) -> Mapping[str, str]:
        return dict.fromkeys(OLDER, "documented otherwise by early releases") if law == "documented" else {}


ADAPTERS: dict[str, type[Any]] = {"configurations": Configurations}
