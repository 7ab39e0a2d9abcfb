"""The target `peft`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.target import ComponentsTarget, Unavailable

NOT_COVERED: Mapping[str, str] = {
    "ADAPTION_PROMPT": "it is written for the attention of a few architectures, which its forward pass replaces",
    "CARTRIDGE": "it is made from the cache of a given text",
    "CPT": "its tokens are those of given examples",
    "MULTITASK_PROMPT_TUNING": "it needs a task for each row",
    "POLY": "it needs a task for each row",
    "SHADOW": "it adds a second model, and its outputs are not those of one base",
    "XLORA": "it mixes adapters that are trained before",
}
"""Types of PEFT's registry without an adapter, by PEFT's name, with the reason."""


class PeftTarget(ComponentsTarget):
    """PEFT as it is installed."""

    name = "peft"
    modules = ("peft", "transformers")
    packages = ("peft", "transformers", "accelerate", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.peft.table import ADAPTERS

        return ADAPTERS

    def components(self) -> dict[str, Any]:
        """Return an adapter of each kind, and why there is none for each other type of the installed release."""
        made = super().components()
        return {**made, **{f"type {name}": Unavailable(reason) for name, reason in uncovered().items()}}


def uncovered() -> dict[str, str]:
    """Return the types of the installed registry that no adapter is of, with the reason."""
    import peft

    from seatrial.targets.peft.table import ADAPTERS

    covered = {adapter.kind.config for adapter in ADAPTERS.values() if hasattr(adapter, "kind")}
    found = {}
    for kind, config in peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING.items():
        name = str(getattr(kind, "value", kind))
        if config.__name__ not in covered:
            found[name] = f"not covered: {NOT_COVERED.get(name, 'no adapter is written for it yet')}"
    return found
