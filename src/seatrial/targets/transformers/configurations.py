"""Transformers' classes of options: configurations of every model, of generation and of training."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from seatrial.relations.contracts.configurations import OptionClass
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.option_classes import fields_of, option_class
from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import temporary_folder

NOTED = (
    "transformers_version", "model_type", "architectures", "dtype", "torch_dtype", "_name_or_path",
    "_attn_implementation", "_attn_implementation_internal", "_from_model_config", "_commit_hash",
)  # fmt: skip
"""What an object notes about where it was made."""
DERIVED = "the class derives it from other options"
ALLOWED: Mapping[str, Mapping[str, str]] = {}
"""Options that a law leaves out, by `Class.option`."""


def _options(value: Any) -> dict[str, Any]:
    return {name: one for name, one in value.to_dict().items() if name not in NOTED}


def _reloaded(value: Any) -> Any:
    with tempfile.TemporaryDirectory(dir=temporary_folder()) as folder:
        value.save_pretrained(folder)
        return type(value).from_pretrained(folder)


class ModelConfigurations(KnowsFailures):
    """Configurations of every model of the release."""

    thorough = True

    @cached_property
    def option_classes(self) -> Sequence[OptionClass]:
        mapping = find_name("transformers", ["transformers.models.auto.configuration_auto:CONFIG_MAPPING"])
        found: dict[str, OptionClass] = {}
        for kind in mapping:
            made: Any = mapping[kind]
            one = option_class(made, options=_options, reload=_reloaded)
            if one is not None:
                found.setdefault(one.name, one)
        return list(found.values())

    def options_allowed(self, law: str) -> Mapping[str, str]:
        return ALLOWED.get(law, {})


class TrainingConfigurations(KnowsFailures):
    """Options of generation and of training."""

    thorough = True

    @cached_property
    def option_classes(self) -> Sequence[OptionClass]:
        import transformers

        folder = temporary_folder()
        arguments = {"output_dir": str(folder), "use_cpu": True, "report_to": "none"}
        made = [
            option_class(transformers.GenerationConfig, options=_options, reload=_reloaded),
            option_class(transformers.TrainingArguments, options=fields_of, **arguments),
            option_class(transformers.Seq2SeqTrainingArguments, options=fields_of, **arguments),
        ]
        return [one for one in made if one is not None]

    def options_allowed(self, law: str) -> Mapping[str, str]:
        return ALLOWED.get(law, {})


ADAPTERS: dict[str, type[Any]] = {
    "configurations-of-models": ModelConfigurations,
    "configurations-of-training": TrainingConfigurations,
}
