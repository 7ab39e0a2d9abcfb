"""Optimizers of PEFT, and the budget of AdaLoRA, on two layers; see `relations.laws.utilities.adapter_steps`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.laws.utilities.adapter_steps import DECAY, RANK, RATE, SIZES, TARGET
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name

Tensors = Mapping[str, Mapping[str, Tensor]]


def _adapted(kind: str, **options: Any) -> Any:
    import peft

    layers = nn.ModuleDict({name: nn.Linear(*sizes, bias=False) for name, sizes in SIZES.items()})
    config: Any = getattr(peft, kind)
    return peft.get_peft_model(layers, config(target_modules=list(SIZES), **options))


def _found(place: str) -> Any:
    try:
        return find_name("peft", [f"peft.optimizers:{place}"])
    except Gone as error:
        raise NotServed(str(error)) from error


def _parts(model: Any) -> dict[str, dict[str, Any]]:
    """Return the tensors of each layer."""
    layers = model.base_model.model
    found: dict[str, dict[str, Any]] = {}
    for name in SIZES:
        kept = {part: getattr(layers[name], f"lora_{part}", {}) for part in "ABE"}
        found[name] = {
            part: value["default"].weight if isinstance(value["default"], nn.Module) else value["default"]
            for part, value in kept.items()
            if "default" in value
        }
    return found


def _set(parts: Mapping[str, Mapping[str, Any]], values: Tensors, gradients: Tensors | None) -> None:
    with torch.no_grad():
        for layer, own in values.items():
            for part, value in own.items():
                parts[layer][part].copy_(value)
    for layer, own in (gradients or {}).items():
        for part, value in own.items():
            parts[layer][part].grad = value.clone()


def _stepped(
    model: Any, optimizer: Any, first: Tensors, gradients: Sequence[Tensors]
) -> list[dict[str, dict[str, Tensor]]]:
    parts, found = _parts(model), []
    _set(parts, first, None)
    for own in gradients:
        for layer, values in own.items():
            for part, value in values.items():
                parts[layer][part].grad = value.clone() if parts[layer][part].requires_grad else None
        optimizer.step()
        found.append(
            {
                layer: {part: one.detach().double() for part, one in own.items()}
                for layer, own in parts.items()
            }
        )
    return found


def frozen_a(options: Mapping[str, Any], first: Tensors, gradients: Sequence[Tensors]) -> Any:
    """Return A and B after each step of the optimizer that `create_lorafa_optimizer` makes."""
    create = _found("create_lorafa_optimizer")
    model = _adapted("LoraConfig", **options)
    made = create(model=model, r=options["r"], lora_alpha=options["lora_alpha"], lr=RATE, weight_decay=DECAY)
    return _stepped(model, made, first, gradients)


def preconditioned(options: Mapping[str, Any], first: Tensors, gradients: Sequence[Tensors]) -> Any:
    """Return A and B after each step of the optimizer that `create_riemannian_optimizer` makes."""
    create = _found("create_riemannian_optimizer")
    model = _adapted("LoraConfig", **options)
    made = create(model, torch.optim.SGD, lr=RATE, reg=0.01)
    return _stepped(model, made, first, gradients)


def budgeted(
    options: Mapping[str, Any], weights: Sequence[Tensors], gradients: Sequence[Tensors]
) -> list[dict[str, list[int]]]:
    """Return which ranks are left after each call of `update_and_allocate`."""
    model = _adapted("AdaLoraConfig", init_r=RANK, target_r=TARGET, **options)
    parts, found = _parts(model), []
    for step, (values, slopes) in enumerate(zip(weights, gradients, strict=True)):
        _set(parts, values, slopes)
        model.base_model.update_and_allocate(step)
        found.append({layer: own["E"][:, 0].nonzero()[:, 0].tolist() for layer, own in parts.items()})
    return found


class AdapterSteps(KnowsFailures):
    """LoRA-FA, preconditioned descent and the budget of AdaLoRA."""

    known_failures = (
        KnownFailure(
            "LoRA-FA has one scale for all layers",
            finding="PEFT: scales of LoRA-FA in older releases",
            releases=before("peft", "0.20"),
        ).of("R31.adapter_steps/steps with A frozen, other scales"),
    )
    utilities: Mapping[str, Callable[..., Any]] = {
        "steps of LoRA-FA": frozen_a,
        "preconditioned steps": preconditioned,
        "ranks within a budget": budgeted,
    }


ADAPTERS: dict[str, type[Any]] = {"adapter-steps": AdapterSteps}
