"""Worked examples of what a PEFT model does: adapters that are added, deleted, counted and shown, and its states."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.peft.bases import base
from seatrial.targets.peft.worked.models import (
    WIDTH,
    Text,
    adapted,
    is_refused,
    lora,
    of_method,
    text,
)


def _added(add: Callable[..., Any]) -> dict[str, Any]:
    """Return what adding adapters changes of a model."""
    import peft

    model = adapted()
    before = [name for name, one in model.named_parameters() if one.requires_grad]
    add(model, "second", lora(r=3))
    found: dict[str, Any] = {
        "trained": before == [name for name, one in model.named_parameters() if one.requires_grad],
        "used": [model.active_adapter, model.active_adapters],
        "there": sorted(model.base_model.model.proj.lora_A),
        "of another type": is_refused(
            lambda: add(model, "third", peft.LoHaConfig(r=2, target_modules=["proj"]))
        ),
    }
    add(model, "fourth", lora(), low_cpu_mem_usage=True)
    found["without memory"] = [one.weight.is_meta for one in model.base_model.model.proj.lora_A.values()]
    biased = peft.get_peft_model(text(), lora(bias="all"))
    add(biased, "plain", lora())
    found["two biases"] = is_refused(lambda: add(biased, "more", lora(bias="all")))
    whole = peft.get_peft_model(text(), lora())
    add(whole, "whole", lora(modules_to_save=["head"]))
    found["whole modules"] = [sorted(whole.modules_to_save), whole.base_model.model.head.active_adapters]
    whole.set_adapter("whole")
    found["whole modules"] += [whole.base_model.model.head.active_adapters]
    found["whole modules"] += [sum(one.requires_grad for one in whole.parameters())]
    return found


ADDED: Mapping[str, Any] = {
    "trained": True,
    "used": ["default", ["default"]],
    "there": ["default", "second"],
    "of another type": True,
    "without memory": [False, False, True],
    "two biases": True,
    "whole modules": [["head"], [], ["whole"], 4],
}


def _refused_adding(add: Callable[..., Any]) -> list[Any]:
    """Return whether a name that is there and layers that are not are refused, and the adapters that are left."""
    model = adapted()
    return [
        is_refused(lambda: add(model, "default", lora(r=3))),
        is_refused(lambda: add(model, "second", lora(target_modules=["none"]))),
        sorted(model.peft_config),
    ]


def _deleted(delete: Callable[..., Any]) -> dict[str, Any]:
    """Return the adapters in use as they are deleted, and what is left of whole modules."""
    model = adapted(modules_to_save=["head"])
    for name in ("second", "third"):
        model.add_adapter(name, lora(modules_to_save=["head"]))
    found: dict[str, Any] = {"unknown": is_refused(lambda: delete(model, "none"))}
    for name in ("second", "default"):
        delete(model, name)
        found[name] = [
            model.active_adapter,
            sorted(model.peft_config),
            sorted(model.base_model.model.proj.lora_A),
            sorted(model.base_model.model.proj.scaling),
            sorted(model.base_model.model.head.modules_to_save),
            model.base_model.model.head.active_adapters,
        ]
    return found


def _deleted_while_merged(delete: Callable[..., Any]) -> list[bool]:
    """Return whether an adapter that is merged is not deleted, and another one is."""
    model = adapted()
    model.add_adapter("second", lora())
    model.merge_adapter()
    return [is_refused(lambda name=name: delete(model, name)) for name in ("default", "second")]  # type: ignore[misc]


DELETED: Mapping[str, Any] = {
    "unknown": True,
    "second": ["default", *[["default", "third"]] * 4, ["default"]],
    "default": ["third", *[["third"]] * 5],
}


def _states(of: Any) -> list[Any]:
    """Return the states of a model by its status: new, disabled, merged, of two adapters, irregular."""
    import peft

    def shown(model: Any) -> list[Any]:
        one = model.get_model_status()
        return [
            one.enabled,
            one.active_adapters,
            one.merged_adapters,
            one.requires_grad,
            one.available_adapters,
        ]

    config = {"target_modules": ["proj", "head"]}
    model = peft.get_peft_model(text(), lora(**config))
    status = model.get_model_status()
    numbers = [
        status.base_model_type,
        status.adapter_model_type,
        status.peft_types,
        status.trainable_params,
        status.total_params,
        status.num_adapter_layers,
        status.devices,
        status.quantization_backend,
    ]
    found = [numbers, shown(model), model.has_active_enabled_adapter]
    with model.disable_adapter():
        found += [shown(model)[0], model.has_active_enabled_adapter]
    found += [shown(model)[0]]
    model.add_adapter("second", lora(target_modules=["proj"]))
    found.append(shown(model))
    model.merge_adapter(["default"])
    found.append(shown(model)[2])
    model.base_model.model.head.unmerge()
    found.append(shown(model)[2])
    model.unmerge_adapter()
    model.base_model.model.head.enable_adapters(False)
    found.append(shown(model)[0])
    model.base_model.model.head.enable_adapters(True)
    model.base_model.model.head.set_adapter([])
    found.append(shown(model)[1])
    layer = model.get_layer_status()[0]
    found.append([layer.name, layer.module_type, layer.enabled, layer.active_adapters, layer.merged_adapters])
    found.append([layer.requires_grad, layer.available_adapters, layer.devices])
    plain = peft.inject_adapter_in_model(lora(), text())
    other = peft.get_model_status(plain)
    found.append([other.base_model_type, other.adapter_model_type, other.peft_types, other.trainable_params])
    return [*found, is_refused(lambda: peft.get_model_status(text()))]


STATES = [
    ["Text", "LoraModel", {"default": "LORA"}, 64, 208, 2, {"default": ["cpu"]}, None],
    [True, ["default"], [], {"default": True}, ["default"]],
    True,
    *[False] * 2,
    True,
    [True, ["default"], [], {"default": True, "second": False}, ["default", "second"]],
    ["default"],
    "irregular",
    "irregular",
    "irregular",
    ["model.proj", "lora.Linear", True, ["default"], []],
    [{"default": True, "second": False}, ["default", "second"], {"default": ["cpu"], "second": ["cpu"]}],
    ["other", "None", {}, 32],
    True,
]


def _disabled_twice(of: Any) -> list[Any]:
    """Return what is in use in a block without the adapter, after another block within it, and after both."""
    model = adapted()
    with model.disable_adapter():
        with model.disable_adapter():
            pass
        found = [model.get_model_status().enabled, model.has_active_enabled_adapter]
    return [*found, model.get_model_status().enabled, model.has_active_enabled_adapter]


def _printed(show: Callable[..., Any]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        show(adapted())
    return said.getvalue().strip()


def _injected(inject: Callable[..., Any]) -> dict[str, Any]:
    """Return what `inject_adapter_in_model` makes of its options."""
    import peft

    model: Any = text()
    made = inject(lora(), model, "mine")
    state = {"proj.lora_A.weight": torch.zeros(2, WIDTH), "proj.lora_B.weight": torch.zeros(WIDTH, 2)}
    by_state = inject(lora(target_modules=["none"]), text(), state_dict=state)
    prompt = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    return {
        "in place": made is model,
        "named": list(model.proj.lora_A),
        "trained": sorted(name for name, one in model.named_parameters() if one.requires_grad),
        "without memory": inject(lora(), text(), low_cpu_mem_usage=True)
        .proj.lora_A["default"]
        .weight.is_meta,
        "by a state": list(by_state.proj.lora_A),
        "refused": is_refused(lambda: inject(prompt, text())),
        "for inference": sum(
            one.requires_grad for one in inject(lora(inference_mode=True), text()).parameters()
        ),
    }


INJECTED: Mapping[str, Any] = {
    "in place": True,
    "named": ["mine"],
    "trained": ["proj.lora_A.mine.weight", "proj.lora_B.mine.weight"],
    "without memory": True,
    "by a state": ["default"],
    "refused": True,
    "for inference": 0,
}


def _made(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the types that `get_peft_model` makes, and what it does by its options."""
    import peft

    causal = lora(task_type="CAUSAL_LM", target_modules=["q_proj"])
    labelled = make(
        base("tokens classified", torch.float32), lora(task_type="TOKEN_CLS", target_modules=["q_proj"])
    )
    mixed = make(text(), lora(), mixed=True)
    mixed.add_adapter("second", peft.LoHaConfig(r=2, target_modules=["proj"]))
    mixed.set_adapter(["default", "second"], inference_mode=True)
    trained = [sum(one.requires_grad for one in mixed.parameters())]
    mixed.set_adapter(["default", "second"])
    trained.append(sum(one.requires_grad for one in mixed.parameters()))
    return {
        "plain": type(make(text(), lora())).__name__,
        "causal": type(make(base("linear", torch.float32), causal)).__name__,
        "labelled": [type(labelled).__name__, sorted(labelled.modules_to_save)],
        "mixed": [type(mixed).__name__, trained, sorted(mixed.peft_config)],
        "revision": make(text(), lora(), revision="old").peft_config["default"].revision,
        "named": list(make(text(), lora(), "mine").peft_config),
        "without memory": make(text(), lora(), low_cpu_mem_usage=True)
        .base_model.model.proj.lora_A["default"]
        .weight.is_meta,
        "for inference": sum(
            one.requires_grad for one in make(text(), lora(inference_mode=True)).parameters()
        ),
        "nowhere": is_refused(lambda: make(text(), lora(target_modules=["none"]))),
        "left out": is_refused(lambda: make(text(), lora(target_modules=["proj"], exclude_modules=["proj"]))),
    }


MADE: Mapping[str, Any] = {
    "plain": "PeftModel",
    "causal": "PeftModelForCausalLM",
    "labelled": ["PeftModelForTokenClassification", ["classifier", "score"]],
    "mixed": ["PeftMixedModel", [0, 6], ["default", "second"]],
    "revision": "old",
    "named": ["mine"],
    "without memory": True,
    "for inference": 0,
    "nowhere": True,
    "left out": True,
}


def _parts_of(model: Any) -> Iterator[Any]:
    for one in model.modules():
        if hasattr(one, "lora_A"):
            yield one


def _cast_inputs(context: Callable[..., Any]) -> list[Any]:
    """Return whether layers cast their inputs: before, in a block, in one that is not active, and after."""
    model = adapted()
    found = [[one.cast_input_dtype_enabled for one in _parts_of(model)]]
    with context(model):
        found.append([one.cast_input_dtype_enabled for one in _parts_of(model)])
    with context(model, active=False):
        found.append([one.cast_input_dtype_enabled for one in _parts_of(model)])
    return [*found, [one.cast_input_dtype_enabled for one in _parts_of(model)]]


def _signatures(update: Callable[..., Any]) -> dict[str, bool]:
    """Return whether a model shows what the base's forward pass says, and whether another method is refused."""
    model = adapted()
    update(model, method="forward")
    found = {"forward": bool(model.forward.__doc__ == Text.forward.__doc__)}
    found["none"] = is_refused(lambda: update(adapted(), method="none"))
    return found


NEXT = "0.20.1.dev0"
"""Trees that lead to the release 0.21."""
ROWS: Sequence[Row] = (
    Row("states", "peft:PeftModel", "its states", _states, STATES, since="0.20"),
    Row(
        "models",
        "peft:PeftModel",
        "what it changes and refuses",
        of_method("add_adapter", _added),
        ADDED,
        since="0.18",
    ),
    Row(
        "states", "peft:PeftModel", "disabled twice", _disabled_twice, [False, False, True, True], since=NEXT
    ),
    Row(
        "models",
        "peft:PeftModel",
        "adapters that are not added",
        of_method("add_adapter", _refused_adding),
        [True, True, ["default"]],
        since=NEXT,
    ),
    Row(
        "models",
        "peft:PeftModel",
        "a merged adapter stays",
        of_method("delete_adapter", _deleted_while_merged),
        [True, False],
        since=NEXT,
    ),
    Row(
        "models",
        "peft:PeftModel",
        "the adapters in use",
        of_method("delete_adapter", _deleted),
        DELETED,
        since="0.14",
    ),
    Row(
        "metrics",
        "peft:PeftModel",
        "what is printed",
        of_method("print_trainable_parameters", _printed),
        "trainable params: 32 || all params: 176 || trainable%: 18.1818",
        since="0.10",
    ),
    Row("models", "peft:inject_adapter_in_model", "its options", _injected, INJECTED, since="0.14"),
    Row("models", "peft:get_peft_model", "its options", _made, MADE, since="0.14"),
    Row(
        "parts",
        "peft.helpers:disable_input_dtype_casting",
        "in a block and after it",
        _cast_inputs,
        [[True], [False], [True], [True]],
        since="0.15",
    ),
    Row(
        "options",
        "peft.helpers:update_signature",
        "by method",
        _signatures,
        {"forward": True, "none": True},
        since="0.15",
    ),
)
