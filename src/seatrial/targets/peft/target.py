"""The target `peft`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.target import ComponentsTarget, Unavailable

NOT_COVERED: Mapping[str, str] = {
    "CARTRIDGE": "it is made from the cache of a given text",
    "SHADOW": "it adds a second model, and its outputs are not those of one base",
}
"""Types of PEFT's registry without an adapter, by PEFT's name, with the reason."""
PARTS = ("AdaptionPromptConfig", "CPTConfig", "MultitaskPromptTuningConfig", "PolyConfig")
"""Configuration classes of types whose adapters are in `parts`."""
OPTIONS: Mapping[str, str] = {
    "loftq_config": "its start is that of a quantised base",
    "megatron_config": "it needs Megatron-core",
    "megatron_core": "it needs Megatron-core",
    "qalora_group_size": "it needs a quantised base",
    "use_qalora": "it needs a quantised base",
    "runtime_config": "it is about where tensors are while an adapter is made",
}
"""Options of LoRA that no adapter sets, with the reason."""
NAMES = (
    "task_type",
    "peft_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
)
"""Fields of every configuration that say what it is of."""


class PeftTarget(ComponentsTarget):
    """PEFT as it is installed."""

    name = "peft"
    modules = ("peft", "transformers")
    packages = ("peft", "transformers", "accelerate", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.peft import activated, adapter_steps, configurations, mixtures, refusals
        from seatrial.targets.peft.parts import table as parts_table
        from seatrial.targets.peft.table import ADAPTERS
        from seatrial.targets.peft.worked import adapter as worked

        parts = (activated, adapter_steps, configurations, mixtures, refusals, worked, parts_table)
        return {**ADAPTERS, **{name: one for part in parts for name, one in part.ADAPTERS.items()}}

    def components(self) -> dict[str, Any]:
        """Return an adapter of each kind, and why there is none for each other type of the installed release."""
        made = super().components()
        types = {f"type {name}": reason for name, reason in uncovered().items()}
        options = {
            f"LoraConfig.{name}": f"not covered: {reason}" for name, reason in uncovered_options().items()
        }
        return {**made, **{name: Unavailable(reason) for name, reason in {**types, **options}.items()}}


def uncovered() -> dict[str, str]:
    """Return the types of the installed registry that no adapter is of, with the reason."""
    import peft

    from seatrial.targets.peft.table import ADAPTERS

    covered = {"XLoraConfig", *PARTS} | {
        adapter.kind.config for adapter in ADAPTERS.values() if hasattr(adapter, "kind")
    }
    found = {}
    for kind, config in peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING.items():
        name = str(getattr(kind, "value", kind))
        if config.__name__ not in covered:
            found[name] = f"not covered: {NOT_COVERED.get(name, 'no adapter is written for it yet')}"
    return found


def uncovered_options() -> dict[str, str]:
    """Return the options of LoRA in the installed release that no adapter sets, with the reason."""
    import peft

    from seatrial.targets.peft.prepared import PREPARED
    from seatrial.targets.peft.table import LORA

    given = {name for adapter in LORA.values() for name in (*adapter.kind.options, adapter.kind.dropout)}
    given |= {adapter.own[0] for adapter in PREPARED.values()} | {"alora_invocation_tokens", "arrow_config"}
    known = [item.name for item in dataclasses.fields(peft.LoraConfig)]
    left = [name for name in known if name not in given and name not in NAMES]
    return {name: OPTIONS.get(name, "no adapter is written for it yet") for name in left}
