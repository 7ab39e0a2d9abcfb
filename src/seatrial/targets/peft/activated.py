"""Activated LoRA; see `relations.laws.utilities.activated`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.activated import INVOKED, Activated
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.peft.bases import base
from seatrial.targets.peft.generated import generated

LAYERS = ["q_proj", "up_proj"]


def _plain() -> Any:
    return base("linear", torch.float32).eval()


def _config(name: str) -> Any:
    import peft

    options = {"alora_invocation_tokens": list(INVOKED[name] or ())} if INVOKED[name] else {}
    return peft.LoraConfig(r=4, lora_alpha=6, target_modules=LAYERS, task_type="CAUSAL_LM", **options)


def _logits(model: Any, ids_BS: Tensor, mask_BS: Tensor, **more: Any) -> Tensor:
    found: Tensor = model(input_ids=ids_BS, attention_mask=mask_BS, use_cache=False, **more).logits
    return found


def _added(ids_BS: Tensor, mask_BS: Tensor, added: Mapping[str, Callable[[Tensor], Tensor]]) -> Tensor:
    """Return logits of the base, with what is added to its layers."""
    model = _plain()
    for name, add in added.items():
        model.get_submodule(name).register_forward_hook(
            lambda layer, given, made, add=add: made + add(given[0])
        )
    return _logits(model, ids_BS, mask_BS)


def activated() -> Activated:
    """Return a model of three adapters with drawn factors, the first of which is in use."""
    import peft

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = peft.get_peft_model(_plain(), _config("first"), adapter_name="first")
        for name in list(INVOKED)[1:]:
            model.add_adapter(name, _config(name))
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "lora_" in name:
                    value.copy_(torch.randn_like(value) * 0.3)
    model.eval()
    layers = {
        name: layer for name, layer in model.get_base_model().named_modules() if hasattr(layer, "lora_A")
    }

    def outputs(ids_BS: Tensor, mask_BS: Tensor, names: Sequence[str | None] | None) -> Tensor:
        more = {} if names is None else {"adapter_names": [name or "__base__" for name in names]}
        with torch.no_grad():
            return _logits(model, ids_BS, mask_BS, **more)

    def gradients(ids_BS: Tensor, weights_BSV: Tensor, again: bool) -> dict[str, Any]:
        if again:
            model.train()  # there is no dropout
            model.get_base_model().gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        model.zero_grad(set_to_none=True)
        torch.autograd.backward((_logits(model, ids_BS, torch.ones_like(ids_BS)) * weights_BSV).sum())
        model.eval()
        return {
            name: (layer.lora_A["first"].weight.grad, layer.lora_B["first"].weight.grad)
            for name, layer in layers.items()
        }

    def disabled(ids_BS: Tensor, mask_BS: Tensor) -> Tensor:
        with model.disable_adapter():
            return outputs(ids_BS, mask_BS, None)

    def loaded() -> Callable[[Tensor, Tensor], Tensor]:
        folder = new_folder()
        model.save_pretrained(folder, selected_adapters=["first"])
        other = peft.PeftModel.from_pretrained(_plain(), f"{folder}/first").eval()
        return lambda ids_BS, mask_BS: _logits(other, ids_BS, mask_BS).detach()

    return Activated(
        outputs=outputs,
        plain=_added,
        factors={
            adapter: {
                name: (
                    layer.lora_A[adapter].weight.detach(),
                    layer.lora_B[adapter].weight.detach(),
                    layer.scaling[adapter],
                )
                for name, layer in layers.items()
            }
            for adapter in INVOKED
        },
        generated=lambda ids_BS, mask_BS, number, cache: generated(
            model, ids_BS, mask_BS, number, use_cache=cache
        ),
        gradients=gradients,
        disabled=disabled,
        loaded=loaded,
    )


class ActivatedAdapters(KnowsFailures):
    """Activated LoRA, next to another one and to plain LoRA."""

    known_failures = (
        KnownFailure(
            "the place of the ids is counted from the end of a row that becomes longer",
            finding="PEFT: activated adapters and generation without a cache",
        ).of("R31.activated/generated without a cache"),
        KnownFailure(
            "an activated adapter that is added to another one is plain LoRA",
            finding="PEFT: a second activated adapter in older releases",
            releases=before("peft", "0.19"),
        ).of("R31.activated/a batch of several adapters"),
        KnownFailure(
            "activations that are computed again do not have the places",
            finding="PEFT: a second activated adapter in older releases",
            releases=before("peft", "0.20"),
        ).of("R31.activated/gradients, activations computed again"),
    )

    def __init__(self) -> None:
        """Find the option."""
        import peft

        if "alora_invocation_tokens" not in {item.name for item in dataclasses.fields(peft.LoraConfig)}:
            raise Gone(f"peft {release('peft')} has no LoraConfig.alora_invocation_tokens")
        self.utilities: Mapping[str, Callable[..., Any]] = {"activated adapters": activated}


ADAPTERS: dict[str, type[Any]] = {"alora": ActivatedAdapters}
