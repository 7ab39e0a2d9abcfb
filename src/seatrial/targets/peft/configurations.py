"""PEFT's classes of options: those of every type of adapter, and those within them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from seatrial.relations.contracts.configurations import OptionClass
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.option_classes import classes_of, fields_of, option_class, reloaded

NOTED = ("peft_version", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode")
"""What an object notes about where it was made; a configuration that is read is for inference."""
FINDING = "PEFT: the documented default of OFT"
ALLOWED: Mapping[str, Mapping[str, str]] = {
    "kept": dict.fromkeys(
        ("CPTConfig.num_virtual_tokens", "CPTConfig.num_transformer_submodules"), "made of its tokens"
    ),
    "documented": {"OFTConfig.use_cayley_neumann": f"docs/evidence/findings.md, {FINDING}"},
}
"""Options that a law leaves out, by `Class.option`, with the finding."""


def _concrete(found: type[Any]) -> bool:
    bases = ("PeftConfig", "PromptLearningConfig", "PeftConfigMixin")
    own = dataclasses.is_dataclass(found) and found.__module__.startswith("peft")
    return own and found.__name__ not in bases


def _options(value: Any) -> dict[str, Any]:
    return {name: one for name, one in fields_of(value).items() if name not in NOTED}


class Configurations(KnowsFailures):
    """Classes of options of the release."""

    thorough = True

    @cached_property
    def option_classes(self) -> Sequence[OptionClass]:
        import peft

        found = classes_of([peft], _concrete)
        files = [hasattr(one, "save_pretrained") for one in found]
        made = [
            option_class(one, options=_options, reload=reloaded if saves else None)
            for one, saves in zip(found, files, strict=True)
        ]
        return [one for one in made if one is not None]

    def options_allowed(self, law: str) -> Mapping[str, str]:
        return ALLOWED.get(law, {})


ADAPTERS: dict[str, type[Any]] = {"configurations": Configurations}
