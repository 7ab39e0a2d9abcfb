"""Parts of OpenRLHF without what its packages import: flash-attn, deepspeed, Ray's actors."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from seatrial.targets.common.stand_ins import import_part, without_init

PACKAGES = (
    "openrlhf.models",
    "openrlhf.utils",
    "openrlhf.trainer",
    "openrlhf.trainer.ppo_utils",
    "openrlhf.trainer.ray",
)
STAND_INS = ("openrlhf.trainer.ray.launcher", "ray")
"""Imported for annotations and remote calls, which the adapters do not make."""


def part(name: str) -> Any:
    """Return `openrlhf.<name>`.

    Raises:
        Gone: there is no such module.
    """
    without_init("openrlhf", PACKAGES)
    if PathFinder.find_spec("deepspeed") is None:
        # Transformers looks up its spec.
        stand_in = ModuleType("deepspeed")
        stand_in.__spec__ = ModuleSpec("deepspeed", None)
        sys.modules.setdefault("deepspeed", stand_in)
    return import_part(f"openrlhf.{name}", {name: {} for name in STAND_INS})
