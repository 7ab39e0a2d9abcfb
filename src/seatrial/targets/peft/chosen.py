"""The weights of a base that options name, by PEFT's documentation and not by its code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from seatrial.targets.peft.bases import Trait, base

HEADS = ("lm_head", "head")
"""The output layer, which `all-linear` leaves out."""


def chosen_weights(trait: Trait, options: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the weights that the options name; None where they name no layers, or a weight has two names."""
    targets = options.get("target_modules")
    if targets is None or trait == "tied":
        return None
    model = base(trait, torch.float32)
    layers = {
        name: layer for name, layer in model.named_modules() if hasattr(layer, "weight") or _attends(layer)
    }
    found = {
        f"{name}.{kept}"
        for name, layer in layers.items()
        if _is_named(name, layer, targets) and not _ends(name, options.get("exclude_modules") or ())
        if _is_in_layers(name, options)
        for kept in (("in_proj_weight", "out_proj.weight") if _attends(layer) else ("weight",))
    }
    parameters = [name for name, _ in model.named_parameters()]
    found |= {name for name in parameters if _ends(name, options.get("target_parameters") or ())}
    for name in options.get("trainable_token_indices") or ():
        found |= {one for one in parameters if _ends(one, [f"{name}.weight"])}
    return frozenset(found)


def _attends(layer: Any) -> bool:
    return isinstance(layer, torch.nn.MultiheadAttention)


def _is_named(name: str, layer: Any, targets: str | Sequence[str]) -> bool:
    if targets == "all-linear":
        return type(layer).__name__ in ("Linear", "Conv1D") and name.split(".")[-1] not in HEADS
    return re.fullmatch(targets, name) is not None if isinstance(targets, str) else _ends(name, targets)


def _ends(name: str, ends: Sequence[str]) -> bool:
    return any(name == end or name.endswith(f".{end}") for end in ends)


def _is_in_layers(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether a module is in one of the layers of `layers_to_transform`; the first number is the layer's."""
    chosen = options.get("layers_to_transform")
    if chosen is None:
        return True
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return bool(numbers) and numbers[0] in ([chosen] if isinstance(chosen, int) else chosen)
